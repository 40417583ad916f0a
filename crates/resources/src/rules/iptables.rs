//! iptables in a step of an ADD, a DEL or a GC: read at once, changed as a whole, in whichever half something stands.

use cnikit_netfilter::Nftables;
use cnikit_netfilter::iptables::{
    Chains, Changes, Changing, Error as Refused, InstalledChains, IpVersion, Opening as Reading, Programs, ReadScope,
    Ruleset, Table,
};
use cnikit_plan::ReleaseContext;
use cnikit_skel::{Error, Errors, Result, log};

use crate::rules::lock_netns::{self, NetnsLock};

/// What the name of every chain of ours holds, and of the reference's, and so every line about one.
pub(crate) const OURS: &str = "CNI-";

/// What iptables told, in its own words if it did not.
pub(crate) type Read<T> = std::result::Result<T, Refused>;

/// What an ADD reads first: one table a version of IP that it has addresses of.
pub(crate) type Opened = Vec<(IpVersion, Ruleset)>;

/// Rules of one sort, and the table of iptables that they stand in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleTable {
    /// The table.
    pub(crate) table: &'static str,
    /// What the rules are, to people.
    pub(crate) what: &'static str,
    /// Chains that all attachments share, in which what each adds only where it is missing must not be overlooked.
    pub(crate) shared: &'static [&'static str],
    /// What a person may do instead of mending iptables.
    pub(crate) otherwise: &'static str,
}

/// The same while programs are reading it, or why they are not.
pub(crate) struct Opening {
    place: RuleTable,
    begun: Read<Vec<(IpVersion, Reading)>>,
}

impl Opening {
    /// What stands.
    pub(crate) fn finish(self) -> Result<Opened> {
        let place = self.place;
        self.finish_if_usable()?.map_err(|error| place.explained(error))
    }

    /// What stands, unless iptables cannot be used here: `Ok(Err(why))`.
    pub(crate) fn finish_if_usable(self) -> Result<Read<Opened>> {
        let finished = |(version, reading): (IpVersion, Reading)| Ok((version, reading.finish()?.with_rules_beside()?));
        self.place.unless_lasting(self.begun.and_then(|begun| begun.into_iter().map(finished).collect()))
    }
}

/// What an ADD reads first where others that change rules have to be kept away until it has changed its own.
pub(crate) struct OpeningAlone {
    alone: NetnsLock,
    reading: Opening,
}

/// What stands, and nobody else of us changes.
pub(crate) struct OpenedAlone {
    pub(crate) read: Opened,
    /// Held until the changes are made.
    pub(crate) alone: NetnsLock,
}

impl OpeningAlone {
    /// What stands.
    pub(crate) fn finish(self) -> Result<OpenedAlone> {
        Ok(OpenedAlone { read: self.reading.finish()?, alone: self.alone })
    }

    /// What stands, unless iptables cannot be used here: `Ok(Err(why))`.
    pub(crate) fn finish_if_usable(self) -> Result<Read<OpenedAlone>> {
        let read = self.reading.finish_if_usable()?;
        Ok(read.map(|read| OpenedAlone { read, alone: self.alone }))
    }
}

impl RuleTable {
    /// Has read what stands, of all these versions at once; of lines only those that hold `mention`.
    pub(crate) fn begin_open(self, versions: impl Iterator<Item = IpVersion>, mention: &str) -> Opening {
        let begun = |version| Ok((version, Ruleset::begin_open(Programs::find(version)?, &self.part(mention))?));
        Opening { place: self, begun: versions.map(begun).collect() }
    }

    /// As [`RuleTable::begin_open`], with others kept away from now on.
    pub(crate) fn begin_open_alone(
        self,
        versions: impl Iterator<Item = IpVersion>,
        mention: &str,
    ) -> Result<OpeningAlone> {
        let alone = self.alone()?;
        Ok(OpeningAlone { alone, reading: self.begin_open(versions, mention) })
    }

    /// Reads by the programs that the administrator chose.
    pub(crate) fn read(self, version: IpVersion, mention: &str) -> Read<Ruleset> {
        Programs::find(version).and_then(|programs| Ruleset::open(programs, &self.part(mention)))
    }

    /// Changes what stands of one version, with others kept away.
    pub(crate) fn change_alone(
        self,
        version: IpVersion,
        mention: &str,
        change: impl FnMut(&Table) -> Changes,
    ) -> Result<()> {
        let _alone = self.alone()?;
        self.read(version, mention).and_then(|ruleset| ruleset.change(change)).map_err(|error| self.explained(error))
    }

    /// The tables that have such chains, in either half. A half whose programs are missing is of no matter where the other one
    /// has them.
    pub(crate) fn standing(self, nftables: Option<&Nftables>, version: IpVersion, meant: Chains) -> Read<Vec<Ruleset>> {
        let (mut rulesets, mut missing) = (Vec::new(), None);
        for (programs, traces) in Programs::reaching(nftables, version, self.table, meant)? {
            match Ruleset::open_whole(programs, traces, &self.part(meant.mention())) {
                Ok(ruleset) if meant.any_of(ruleset.table()) => rulesets.push(ruleset),
                Ok(_) => {}
                Err(error @ Refused::Missing { .. }) => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        match missing {
            Some(error) if rulesets.is_empty() => Err(error),
            _ => Ok(rulesets),
        }
    }

    /// Reads whatever stands in either half of iptables, of both versions, and hands it over to be changed; with it the lock
    /// that was taken, if anything stands. Where nothing does, no program is started.
    pub(crate) fn everywhere(
        self,
        nftables: Option<&Nftables>,
        meant: Chains,
        mut change: impl FnMut(Ruleset) -> Read<()>,
    ) -> (Option<NetnsLock>, Errors) {
        let (mut lock, mut errors) = (None, Errors::default());
        for version in IpVersion::ALL {
            let reached =
                Programs::reaching(nftables, version, self.table, meant).map_err(|error| self.explained(error));
            let found = reached.unwrap_or_else(|error| {
                errors.note(Err(error));
                Vec::new()
            });
            if !found.is_empty() && lock.is_none() {
                match self.alone() {
                    Ok(alone) => lock = Some(alone),
                    Err(error) => {
                        errors.note(Err(error));
                        break;
                    }
                }
            }
            for (programs, traces) in found {
                let done = self.within(programs, traces, meant, &mut change);
                errors.note(done.map_err(|error| self.explained(error)));
            }
        }
        (lock, errors)
    }

    /// Removes from whatever table has this chain what `clearing` says of it; `then` is done once that is gone.
    ///
    /// The programs are started and not waited for: the removal of a link takes as long as they do. Where others wait for
    /// the lock, they would wait for that removal too, so there the programs come to their end first.
    pub(crate) fn release(
        self,
        kind: &'static str,
        context: &ReleaseContext,
        chain: String,
        clearing: impl Fn(&ReleaseContext, &Table) -> Result<Changes> + 'static,
        then: impl FnOnce() + 'static,
    ) -> Result<()> {
        let (mut begun, mut unknown) = (Vec::new(), Errors::default());
        let begin = |ruleset: Ruleset| {
            let changes = told(clearing(context, ruleset.table()), &mut unknown);
            begun.extend(ruleset.begin(&changes)?);
            Ok(())
        };
        let (alone, mut errors) = self.everywhere(context.nftables()?, Chains::Named(&chain), begin);
        if !begun.is_empty() {
            let contended = alone.as_ref().is_some_and(NetnsLock::waited);
            let finish = move |context: &ReleaseContext| {
                let ended: Vec<Read<()>> = begun.into_iter().map(Changing::finish).collect();
                drop(alone);
                let ended = match ended.into_iter().collect() {
                    // Somebody else may have changed what was read before it could be changed.
                    Err(Refused::Failed { .. } | Refused::Unread { .. }) => {
                        self.release_at_once(context, &chain, clearing)
                    }
                    ended => ended.map_err(|error| self.explained(error)),
                };
                then();
                ended
            };
            if contended {
                errors.note(finish(context));
            } else {
                context.defer(kind, finish);
            }
        }
        Errors::from_iter([unknown.finish(), errors.finish()]).finish()
    }

    fn release_at_once(
        self,
        context: &ReleaseContext,
        chain: &str,
        clearing: impl Fn(&ReleaseContext, &Table) -> Result<Changes>,
    ) -> Result<()> {
        let mut unknown = Errors::default();
        let change = |ruleset: Ruleset| ruleset.change(|table| told(clearing(context, table), &mut unknown));
        let (_alone, errors) = self.everywhere(context.nftables()?, Chains::Named(chain), change);
        Errors::from_iter([unknown.finish(), errors.finish()]).finish()
    }

    /// Changes what stands in one half, if it can be read.
    fn within(
        self,
        programs: Programs,
        traces: InstalledChains,
        meant: Chains,
        mut change: impl FnMut(Ruleset) -> Read<()>,
    ) -> Read<()> {
        let chains_are_its_own = matches!(meant, Chains::Named(_));
        match Ruleset::open_whole(programs, traces, &self.part(meant.mention())) {
            Ok(ruleset) => change(ruleset),
            Err(error @ Refused::Incompatible { .. }) if chains_are_its_own => Err(error),
            // Nobody can remove them without the programs; in chains of many nothing says that there are any where these cannot
            // read. A DEL that fails for ever would help nobody.
            Err(error @ (Refused::Missing { .. } | Refused::Incompatible { .. })) => {
                log::warn(format_args!("{} may stay behind: {error}", self.what));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn part(self, mention: &str) -> ReadScope<'_> {
        // Who looks at every line, since what others do in shared chains matters too, does so in no chains of others.
        let named = if mention.is_empty() { OURS } else { mention };
        ReadScope { table: self.table, mention, named, beside: self.shared }
    }

    /// Keeps others that remove rules here away: of two attachments that share a chain, each would find the other's rules,
    /// remove its own, and leave the chain to the other.
    pub(crate) fn alone(self) -> Result<NetnsLock> {
        lock_netns::own(&format!("remove {}", self.what))
    }

    /// Whether the programs are there and work. IPv6 may not be wanted.
    pub(crate) fn available(self) -> Result<()> {
        self.usable()?.map_err(|error| self.explained(error))
    }

    /// Whether they could be chosen: `Ok(Err(why))` if not.
    pub(crate) fn usable(self) -> Result<Read<()>> {
        self.unless_lasting(self.read(IpVersion::V4, OURS).map(drop))
    }

    fn unless_lasting<T>(self, tried: Read<T>) -> Result<Read<T>> {
        match tried {
            Err(mishap) if !mishap.is_lasting() => Err(self.explained(mishap)),
            told => Ok(told),
        }
    }

    /// With what to do about it.
    pub(crate) fn explained(self, error: Refused) -> Error {
        let RuleTable { table, otherwise, .. } = self;
        let hint = match &error {
            Refused::Missing { .. } => Some(format!("install the package iptables, {otherwise}")),
            Refused::Failed { .. } | Refused::Process(_) => {
                Some(format!("see on the node what `iptables -t {table} -S` says, {otherwise}"))
            }
            Refused::Incompatible { .. } => {
                Some(format!("have whoever wrote into table {table} with nft use a table of its own, {otherwise}"))
            }
            Refused::Hidden { .. } | Refused::Unread { .. } => Some("try again".to_owned()),
            Refused::Netlink(_) => None,
        };
        let told = Error::from(error);
        hint.into_iter().fold(told, Error::hint)
    }
}

/// The changes; none where it cannot be told what they are.
fn told(changes: Result<Changes>, unknown: &mut Errors) -> Changes {
    changes.unwrap_or_else(|error| {
        unknown.note(Err(error));
        Changes::default()
    })
}
