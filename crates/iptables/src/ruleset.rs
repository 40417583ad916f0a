//! One table: read it and change it.

use crate::changes::Changes;
use crate::error::{Error, Result};
use crate::installed_chains::InstalledChains;
use crate::kernel_table::KernelTable;
use crate::programs::{Changing, Listing, Programs, Saving};
use crate::read_scope::ReadScope;
use crate::rule::IptablesRule;
use crate::table::Table;

/// How often a table is read and a change tried, if another program changes the table in between.
const TRIES: usize = 3;

/// One table of iptables, as it was read a moment ago.
///
/// One program reads and another one changes, and other programs may change the table between the two. Then the change fails as a
/// whole; the table is read again and the difference is computed anew. But iptables adds a rule a second time without an error: a
/// caller that adds rules must check whether the table has them.
pub struct Ruleset {
    programs: Programs,
    table: &'static str,
    line_text: String,
    chain_text: String,
    shared_chains: &'static [&'static str],
    /// Chains that must not be missing from what the programs print.
    installed: Option<InstalledChains>,
    /// The table as the kernel had it before it was read.
    kernel_table: Option<KernelTable>,
    read: Table,
}

/// A table that is being read. If it is dropped, the read is given up and the program ends with the thread of the caller.
#[must_use = "only Opening::finish returns the table"]
pub struct Opening {
    ruleset: Ruleset,
    reading: Reading,
}

enum Reading {
    WholeTable(Saving),
    Chains(Listing),
}

impl Opening {
    /// Waits until the table is read.
    ///
    /// # Errors
    /// As [`Ruleset::open`].
    pub fn finish(self) -> Result<Ruleset> {
        let Self { mut ruleset, reading } = self;
        ruleset.read = match reading {
            Reading::WholeTable(saving) => {
                let saved = saving.finish(&ruleset.scope());
                ruleset.or_chains_in_scope(saved)?
            }
            Reading::Chains(listing) => match listing.finish(&ruleset.scope()) {
                Some(listed) => listed,
                None => return ruleset.read_whole(),
            },
        };
        Ok(ruleset)
    }
}

impl Ruleset {
    /// Reads a part of a table.
    ///
    /// # Errors
    /// [`Error::Missing`] if the programs are not installed, [`Error::Failed`] or [`Error::Process`] if they fail,
    /// [`Error::Incompatible`] if chains in scope have rules that iptables cannot express.
    pub fn open(programs: Programs, scope: &ReadScope) -> Result<Self> {
        Self::begin_open(programs, scope)?.finish()
    }

    /// Starts reading a part of a table, and does not wait.
    ///
    /// # Errors
    /// [`Error::Missing`] if the programs are not installed, [`Error::Process`] if they cannot be started.
    pub fn begin_open(programs: Programs, scope: &ReadScope) -> Result<Opening> {
        Self::new(programs, scope, None).begin_read()
    }

    /// Reads the table again, if rules of the shared chains were not printed: a program that lacks memory omits them and succeeds.
    /// Then a rule that is only added where it is missing would be added twice.
    ///
    /// # Errors
    /// [`Error::Hidden`] if rules are omitted each time.
    pub fn with_shared_chains(self) -> Result<Self> {
        if !self.programs.are_of_nf_tables() {
            return Ok(self);
        }
        let installed = InstalledChains::named(self.programs.version(), self.table, self.shared_chains);
        Self { installed: Some(installed), ..self }.with_installed_chains()
    }

    /// Reads a table of which it is known what chains are installed. None of them may be missing from what the programs print.
    ///
    /// # Errors
    /// As [`Ruleset::open`], and [`Error::Hidden`] if a chain is missing each time, but still installed.
    pub fn open_whole(programs: Programs, installed: InstalledChains, scope: &ReadScope) -> Result<Self> {
        Self::new(programs, scope, Some(installed)).begin_read()?.finish()?.with_installed_chains()
    }

    fn new(programs: Programs, scope: &ReadScope, installed: Option<InstalledChains>) -> Self {
        Self {
            programs,
            table: scope.table,
            line_text: scope.line_text.to_owned(),
            chain_text: scope.chain_text.to_owned(),
            shared_chains: scope.shared_chains,
            installed,
            kernel_table: None,
            read: Table::default(),
        }
    }

    fn scope(&self) -> ReadScope<'_> {
        ReadScope {
            table: self.table,
            line_text: &self.line_text,
            chain_text: &self.chain_text,
            shared_chains: self.shared_chains,
        }
    }

    fn begin_read(mut self) -> Result<Opening> {
        self.kernel_table = self.programs.kernel_table(self.table);
        let listed = self.kernel_table.as_ref().and_then(|table| table.worth_listing(&self.scope()));
        let reading = match listed {
            Some(listed) => Reading::Chains(self.programs.begin_list(self.table, listed)?),
            None => Reading::WholeTable(self.programs.begin_save(self.table)?),
        };
        Ok(Opening { ruleset: self, reading })
    }

    /// Reads the table again, since another program has changed it.
    ///
    /// # Errors
    /// As [`Ruleset::open`] and [`Ruleset::open_whole`].
    pub fn read_again(self) -> Result<Self> {
        self.read_whole()?.with_installed_chains()
    }

    fn read_whole(mut self) -> Result<Self> {
        self.kernel_table = self.programs.kernel_table(self.table);
        let saved = self.programs.begin_save(self.table)?.finish(&self.scope());
        self.read = self.or_chains_in_scope(saved)?;
        Ok(self)
    }

    /// The saved table, or the chains in scope alone if other chains have rules that iptables cannot express.
    fn or_chains_in_scope(&self, saved: Result<Table>) -> Result<Table> {
        match saved {
            Err(error @ Error::Incompatible { .. }) => self.read_chains_in_scope().ok_or(error),
            saved => saved,
        }
    }

    fn read_chains_in_scope(&self) -> Option<Table> {
        let listed = self.kernel_table.as_ref()?.chains_in_scope(&self.scope())?;
        self.programs.begin_list(self.table, listed).ok()?.finish(&self.scope())
    }

    /// Reads again as long as installed chains are missing from what was read. While a program reads, other programs may delete a
    /// chain and create it again, so that it is missing once; a chain that a program cannot print is missing each time.
    fn with_installed_chains(mut self) -> Result<Self> {
        let mut unseen = self.installed.clone();
        for left in (0..TRIES).rev() {
            let Some(installed) = unseen else { return Ok(self) };
            let Some(hidden) = installed.hidden_from(&self.read)? else { return Ok(self) };
            if left == 0 {
                return Err(Error::Hidden { table: self.table, chain: hidden.first() });
            }
            self = self.read_whole()?;
            unseen = Some(hidden);
        }
        Ok(self)
    }

    /// The table as it was read.
    pub fn table(&self) -> &Table {
        &self.read
    }

    /// Whether the chain has all of these rules, as the program compares them: one rule can be written in several ways.
    ///
    /// # Errors
    /// [`Error::Missing`] if the program is not installed, [`Error::Process`] or [`Error::Failed`] if it fails otherwise than by
    /// not finding a rule.
    pub fn has_all(&self, chain: &str, rules: &[IptablesRule]) -> Result<bool> {
        let mut checks = Changes::default();
        rules.iter().for_each(|rule| checks.check(chain, rule));
        match self.make(&checks) {
            Ok(()) => Ok(true),
            Err(error @ Error::Failed { .. }) if error.is_lasting() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Starts making changes that the caller has computed from [`Ruleset::table`], and does not wait; `None` if there are no
    /// changes. They are made or refused as a whole. They are refused too if another program has changed the table in between.
    ///
    /// # Errors
    /// [`Error::Missing`] if the program is not installed, [`Error::Process`] if it cannot be started.
    pub fn begin(&self, changes: &Changes) -> Result<Option<Changing>> {
        if changes.is_empty() {
            return Ok(None);
        }
        if let Some(kernel_table) = &self.kernel_table
            && kernel_table.remove(&self.read, changes)
        {
            return Ok(Some(Changing::MADE));
        }
        self.programs.begin(self.table, changes).map(Some)
    }

    fn make(&self, changes: &Changes) -> Result<()> {
        match self.begin(changes)? {
            Some(changing) => changing.finish(),
            None => Ok(()),
        }
    }

    /// Makes the changes that `decide` computes from the table. If another program has changed the table, it is read again and
    /// `decide` is called again.
    ///
    /// # Errors
    /// As [`Ruleset::begin`], [`Changing::finish`] and [`Ruleset::read_again`].
    pub fn change(mut self, mut decide: impl FnMut(&Table) -> Changes) -> Result<()> {
        for left in (0..TRIES).rev() {
            let changes = decide(&self.read);
            match self.make(&changes) {
                Ok(()) => break,
                Err(Error::Failed { .. } | Error::Unread { .. }) if left > 0 => self = self.read_again()?,
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
    fn removal_needs_no_restore_program() {
        let place = std::env::temp_dir().join(format!("cnikit-ruleset-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let programs = that_only_read(&place);
        let netns = make::anonymous().unwrap();
        let part = ReadScope { table: "nat", line_text: "", chain_text: "", shared_chains: &[] };
        let rule = |port: u16| IptablesRule::any().destination_port("tcp", port).jump("ACCEPT");
        let shown = netns.enter(|_| {
            let found = Programs::find(IpVersion::V4).unwrap();
            let mut changes = Changes::default();
            changes.new_chain("OWN");
            [1, 2, 1, 3].into_iter().for_each(|port| changes.append("OWN", &rule(port)));
            changes.new_chain("GOES");
            changes.append("GOES", &rule(4));
            Ruleset::open(found, &part).unwrap().change(|_| changes.clone()).unwrap();

            let mut removals = Changes::default();
            let mut addition = Changes::default();
            removals.delete("OWN", &rule(1));
            removals.delete("OWN", &rule(1));
            removals.delete_chain("GOES");
            addition.append("OWN", &rule(5));
            let ruleset = Ruleset::open(programs.clone(), &part).unwrap();
            assert!(ruleset.begin(&addition).unwrap().unwrap().finish().is_err(), "that needs one");
            ruleset.begin(&removals).unwrap().unwrap().finish().unwrap();
            assert!(
                ruleset.begin(&removals).unwrap().unwrap().finish().is_err(),
                "by now another program may have changed it"
            );
            let left = Ruleset::open(programs, &part).unwrap();
            (left.table().clone(), left.table().has_chain("GOES"))
        });
        std::fs::remove_dir_all(&place).unwrap();
        let (table, goes) = shown.unwrap();
        assert_eq!(table.rules("OWN").collect::<Vec<_>>(), [&rule(2), &rule(3)]);
        assert!(!goes);
    }
}
