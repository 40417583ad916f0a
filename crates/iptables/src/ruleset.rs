//! One table, read and changed.

use crate::changes::Changes;
use crate::installed_chains::InstalledChains;
use crate::kernel_table::KernelTable;
use crate::programs::{Changing, Listing, Programs, Saving};
use crate::read_scope::ReadScope;
use crate::rule::IptablesRule;
use crate::table::Table;
use crate::{Error, Result};

/// How often it is tried again when somebody else changed what was read before it could be changed.
const TRIES: usize = 3;

/// One table of iptables, as it was read a moment ago.
///
/// Reading and changing are two programs, and others may come between them; then the change fails as a whole, the table
/// is read again and the difference computed anew. What is only added cannot be told apart from its like by the program:
/// whoever adds has to look whether it is there.
pub struct Ruleset {
    programs: Programs,
    table: &'static str,
    mention: String,
    named: String,
    beside: &'static [&'static str],
    traces: Option<InstalledChains>,
    /// What stood before it was read.
    standing: Option<KernelTable>,
    read: Table,
}

/// A table that is being read. To drop it gives it up: nothing was to be changed, and the program ends with the caller's
/// thread.
#[must_use = "what was read tells Opening::finish alone"]
pub struct Opening {
    ruleset: Ruleset,
    reading: Reading,
}

enum Reading {
    Whole(Saving),
    Some(Listing),
}

impl Opening {
    /// Waits until it is read.
    pub fn finish(self) -> Result<Ruleset> {
        let Self { mut ruleset, reading } = self;
        let read = match reading {
            Reading::Whole(saving) => Some(ruleset.or_near(saving.finish(&ruleset.part()))?),
            Reading::Some(listing) => listing.finish(&ruleset.part()),
        };
        let Some(read) = read else { return ruleset.read_whole() };
        ruleset.read = read;
        Ok(ruleset)
    }
}

impl Ruleset {
    /// Reads a table, of which only a part is of interest.
    pub fn open(programs: Programs, part: &ReadScope) -> Result<Self> {
        Self::begin_open(programs, part)?.finish()
    }

    /// Has a table read, and waits for nothing.
    pub fn begin_open(programs: Programs, part: &ReadScope) -> Result<Opening> {
        Self::new(programs, part, None).begin_read()
    }

    /// Reads again, if the program that the administrator chose has left out rules of the chains that are of interest beside our
    /// own, as one that lacks memory does without a word: what is added only where it is missing would be there twice.
    ///
    /// # Errors
    /// [`Error::Hidden`] if they are left out again and again.
    pub fn with_rules_beside(self) -> Result<Self> {
        if !self.programs.are_of_nf_tables() {
            return Ok(self);
        }
        let traces = InstalledChains::among(self.programs.version(), self.table, self.beside);
        Self { traces: Some(traces), ..self }.with_nothing_hidden()
    }

    /// As [`Ruleset::open`] where it is known what stands: none of it may be missing from what the programs show.
    ///
    /// # Errors
    /// [`Error::Hidden`] if it is, and still stands.
    pub fn open_whole(programs: Programs, traces: InstalledChains, part: &ReadScope) -> Result<Self> {
        Self::new(programs, part, Some(traces)).begin_read()?.finish()?.with_nothing_hidden()
    }

    fn new(programs: Programs, part: &ReadScope, traces: Option<InstalledChains>) -> Self {
        let ReadScope { table, mention, named, beside } = *part;
        let (mention, named) = (mention.to_owned(), named.to_owned());
        Self { programs, table, mention, named, beside, traces, standing: None, read: Table::default() }
    }

    fn part(&self) -> ReadScope<'_> {
        ReadScope { table: self.table, mention: &self.mention, named: &self.named, beside: self.beside }
    }

    fn begin_read(mut self) -> Result<Opening> {
        self.standing = self.programs.kernel_table(self.table);
        let listed = self.standing.as_ref().and_then(|standing| standing.worth_listing(&self.part()));
        let reading = match listed {
            Some(listed) => Reading::Some(self.programs.begin_list(self.table, listed)?),
            None => Reading::Whole(self.programs.begin_read(self.table)?),
        };
        Ok(Opening { ruleset: self, reading })
    }

    /// Reads the table again, as a whole: another program has changed it.
    ///
    /// # Errors
    /// As [`Ruleset::open`] and [`Ruleset::open_whole`].
    pub fn read_again(self) -> Result<Self> {
        self.read_whole()?.with_nothing_hidden()
    }

    fn read_whole(mut self) -> Result<Self> {
        self.standing = self.programs.kernel_table(self.table);
        self.read = self.or_near(self.programs.begin_read(self.table)?.finish(&self.part()))?;
        Ok(self)
    }

    /// What others have put into chains of their own, that the program does not understand it, is no matter.
    fn or_near(&self, told: Result<Table>) -> Result<Table> {
        let listed = || self.standing.as_ref()?.near(&self.part());
        let near = || self.programs.begin_list(self.table, listed()?).ok()?.finish(&self.part());
        match told {
            Err(error @ Error::Incompatible { .. }) => near().ok_or(error),
            told => told,
        }
    }

    /// Others may remove a chain and make it anew while the program reads, so that it looks hidden: whoever is, stays so.
    fn with_nothing_hidden(mut self) -> Result<Self> {
        let mut hidden = self.traces.clone();
        for left in (0..TRIES).rev() {
            hidden = hidden.map_or(Ok(None), |traces| traces.hidden_from(&self.read))?;
            match &hidden {
                None => break,
                Some(traces) if left == 0 => return Err(Error::Hidden { table: self.table, chain: traces.first() }),
                Some(_) => self = self.read_whole()?,
            }
        }
        Ok(self)
    }

    /// The table as it was read.
    pub fn table(&self) -> &Table {
        &self.read
    }

    /// Whether the chain has all of these rules, as the program compares them: it may know other words for the same.
    pub fn holds(&self, chain: &str, rules: &[IptablesRule]) -> Result<bool> {
        let mut looks = Changes::default();
        rules.iter().for_each(|rule| looks.look_for(chain, rule));
        match self.begin(&looks).and_then(|begun| begun.map_or(Ok(()), Changing::finish)) {
            Err(error @ Error::Failed { .. }) if error.is_lasting() => Ok(false),
            told => told.map(|()| true),
        }
    }

    /// Has changes begun that were decided by the table as it was read, and waits for nothing. They are made or refused as a
    /// whole, the latter also where somebody else came between; none is begun where nothing is to be different.
    pub fn begin(&self, changes: &Changes) -> Result<Option<Changing>> {
        if changes.is_empty() {
            return Ok(None);
        }
        let removes = |standing: &KernelTable| standing.remove(&self.read, changes);
        if self.standing.as_ref().is_some_and(removes) {
            return Ok(Some(Changing::MADE));
        }
        self.programs.begin(self.table, changes).map(Some)
    }

    /// Makes the changes that `decide` wants of the table as it is, and none where it wants none.
    pub fn change(mut self, mut decide: impl FnMut(&Table) -> Changes) -> Result<()> {
        for left in (0..TRIES).rev() {
            let changes = decide(&self.read);
            match self.begin(&changes).and_then(|begun| begun.map_or(Ok(()), Changing::finish)) {
                Ok(()) => break,
                Err(Error::Failed { .. } | Error::Unread { .. }) if left > 0 => {
                    self = self.read_again()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cnikit_netns::make;

    use super::*;
    use crate::variant::IpVersion;

    /// Programs of `nf_tables`, of which one reads and none writes.
    fn that_only_read(place: &std::path::Path) -> Programs {
        let save = place.join("iptables-nft-save");
        std::fs::write(&save, "#!/bin/sh\nexec /usr/sbin/iptables-nft-save \"$@\"\n").unwrap();
        std::fs::set_permissions(&save, std::fs::Permissions::from_mode(0o700)).unwrap();
        Programs::of(IpVersion::V4, save, "/bin/false".into())
    }

    #[test]
    fn what_only_removes_needs_no_program_that_writes() {
        let place = std::env::temp_dir().join(format!("cnikit-ruleset-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let (programs, netns) = (that_only_read(&place), make::anonymous().unwrap());
        let part = ReadScope { table: "nat", mention: "", named: "", beside: &[] };
        let rule = |port: u16| IptablesRule::any().destination_port("tcp", port).jump("ACCEPT");
        let shown = netns.enter(|_| {
            let found = Programs::find(IpVersion::V4).unwrap();
            let mut changes = Changes::default();
            changes.new_chain("OWN");
            [1, 2, 1, 3].into_iter().for_each(|port| changes.append("OWN", &rule(port)));
            changes.new_chain("GOES");
            changes.append("GOES", &rule(4));
            Ruleset::open(found, &part).unwrap().change(|_| changes.clone()).unwrap();

            let (mut removals, mut addition) = (Changes::default(), Changes::default());
            removals.delete("OWN", &rule(1));
            removals.delete("OWN", &rule(1));
            removals.delete_chain("GOES");
            addition.append("OWN", &rule(5));
            let ruleset = Ruleset::open(programs.clone(), &part).unwrap();
            assert!(ruleset.begin(&addition).unwrap().unwrap().finish().is_err(), "that needs one");
            ruleset.begin(&removals).unwrap().unwrap().finish().unwrap();
            assert!(ruleset.begin(&removals).unwrap().unwrap().finish().is_err(), "by now others may have changed it");
            let left = Ruleset::open(programs, &part).unwrap();
            (left.table().clone(), left.table().has_chain("GOES"))
        });
        std::fs::remove_dir_all(&place).unwrap();
        let (table, goes) = shown.unwrap();
        assert_eq!(table.rules("OWN").collect::<Vec<_>>(), [&rule(2), &rule(3)]);
        assert!(!goes);
    }
}
