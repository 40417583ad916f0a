//! Rules in one table of iptables: read at once, changed as a whole, in either variant of the programs.

use std::rc::Rc;

use cnikit_iptables::{
    Chains, Changes, Changing, Error as Refused, InstalledChains, IpVersion, Opening as Reading, Programs, ReadScope,
    Ruleset, Table,
};
use cnikit_nftables::Nftables;
use cnikit_plan::ReleaseContext;
use cnikit_resources::lock_netns::{self, NetnsLock};
use cnikit_skel::{Error, Errors, Journal, Result, Undo, log};

use crate::backend::{RuleBackend, shared_nftables};

/// What the name of every chain of ours and of the upstream plugins has, and so every line about one.
pub(crate) const OURS: &str = "CNI-";
/// How often a change is tried again after another program has changed the table.
const TRIES: usize = 3;

/// What iptables returned, or its error.
pub(crate) type Read<T> = std::result::Result<T, Refused>;

/// Tables that programs are reading for one ADD, one per version of IP, or the error for which they are not.
pub(crate) struct Opening {
    backend: RuleBackend,
    lock: Option<NetnsLock>,
    begun: Read<Vec<(IpVersion, Reading)>>,
}

/// Tables that have been read for one ADD.
pub(crate) struct Opened {
    read: Vec<(IpVersion, Ruleset)>,
    /// Held until the changes are made, if the backend locks.
    _lock: Option<NetnsLock>,
}

impl Opening {
    /// Waits until the tables are read.
    pub(crate) fn finish(self) -> Result<Opened> {
        let backend = self.backend;
        self.finish_if_usable()?.map_err(|error| backend.explained(error))
    }

    /// Waits until the tables are read, unless iptables cannot be used on this host: `Ok(Err(why))`.
    pub(crate) fn finish_if_usable(self) -> Result<Read<Opened>> {
        let read = self.backend.unless_lasting(self.begun.and_then(finish_all))?;
        Ok(read.map(|read| Opened { read, _lock: self.lock }))
    }
}

fn finish_all(begun: Vec<(IpVersion, Reading)>) -> Read<Vec<(IpVersion, Ruleset)>> {
    let mut read = Vec::new();
    for (version, reading) in begun {
        read.push((version, reading.finish()?.with_shared_chains()?));
    }
    Ok(read)
}

/// What one attachment has and wants in the table of one version of IP.
pub(crate) trait TableStep: 'static {
    /// What the attachment had before, for the roll-back: it may be a running container's.
    type Before: 'static;

    /// Refuses what must not or cannot be made in the table as it is.
    fn preflight(&self, _table: &Table) -> Result<()> {
        Ok(())
    }

    /// What the attachment has, and the changes after which it has what it wants.
    fn decide(&self, table: &Table) -> (Self::Before, Changes);

    /// The changes after which it has what it had before.
    fn put_back(&self, table: &Table, before: &Self::Before) -> Changes;
}

/// A change of one version of IP that is under way.
struct Pending<S> {
    version: IpVersion,
    step: Rc<S>,
    undo: Undo,
    changing: Option<Changing>,
}

/// A removal that is under way in all tables that have something of it.
pub(crate) struct Clearing {
    backend: RuleBackend,
    begun: Vec<Changing>,
    lock: Option<NetnsLock>,
    errors: Errors,
}

impl RuleBackend {
    /// Starts reading the tables of all these versions; of lines only those that contain `mention`. Where the backend locks, other
    /// processes of ours are kept away from now on.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub(crate) fn open(self, versions: impl Iterator<Item = IpVersion>, mention: &str) -> Result<Opening> {
        let lock = if self.locks { Some(self.lock()?) } else { None };
        Ok(self.open_under(lock, versions, mention))
    }

    /// As [`RuleBackend::open`] with a lock that is held already.
    pub(crate) fn open_under(
        self,
        lock: Option<NetnsLock>,
        versions: impl Iterator<Item = IpVersion>,
        mention: &str,
    ) -> Opening {
        let begin = |version| Ok((version, Ruleset::begin_open(Programs::find(version)?, &self.scope(mention))?));
        Opening { backend: self, lock, begun: versions.map(begin).collect() }
    }

    /// Makes what the steps want, one per version of IP. All are validated before the first is made, their programs run at once,
    /// and each is undone if the ADD fails. A step that another program came between is read, validated and made again.
    ///
    /// # Errors
    /// Those of [`TableStep::preflight`] and of the programs.
    pub(crate) fn apply<S: TableStep>(
        self,
        opened: Opened,
        step: impl Fn(IpVersion) -> S,
        mention: &str,
        (what, journal): (&String, &mut Journal),
    ) -> Result<()> {
        let Opened { read, _lock } = opened;
        let mut steps = Vec::new();
        for (version, ruleset) in read {
            let step = Rc::new(step(version));
            step.preflight(ruleset.table())?;
            steps.push((version, step, ruleset));
        }
        let mut pending = Vec::new();
        let mut outcome = Ok(());
        for (version, step, ruleset) in steps {
            match self.begin(version, step, &ruleset, mention, (what, journal)) {
                Ok(begun) => pending.push(begun),
                Err(error) => {
                    outcome = Err(self.explained(error));
                    break;
                }
            }
        }
        // All come to their end under the lock, whichever fails.
        for one in pending {
            let done = self.finish(one, mention, (what, journal));
            outcome = outcome.and(done);
        }
        outcome
    }

    /// Starts the change of one version, and notes before how to undo it.
    fn begin<S: TableStep>(
        self,
        version: IpVersion,
        step: Rc<S>,
        ruleset: &Ruleset,
        mention: &str,
        (what, journal): (&String, &mut Journal),
    ) -> Read<Pending<S>> {
        let (before, changes) = step.decide(ruleset.table());
        let (undone, mention) = (Rc::clone(&step), mention.to_owned());
        let undo = journal.undo(what, move |_| self.change(version, &mention, |table| undone.put_back(table, &before)));
        let changing = ruleset.begin(&changes)?;
        Ok(Pending { version, step, undo, changing })
    }

    fn finish<S: TableStep>(
        self,
        pending: Pending<S>,
        mention: &str,
        (what, journal): (&String, &mut Journal),
    ) -> Result<()> {
        let Pending { version, step, undo, changing } = pending;
        match wait(changing) {
            Err(error) if is_overtaken(&error) => {
                journal.strike(undo);
                self.try_again(version, &step, mention, (what, journal))
            }
            done => done.map_err(|error| self.explained(error)),
        }
    }

    fn try_again<S: TableStep>(
        self,
        version: IpVersion,
        step: &Rc<S>,
        mention: &str,
        (what, journal): (&String, &mut Journal),
    ) -> Result<()> {
        let mut read = self.read(version, mention);
        for left in (0..TRIES).rev() {
            let ruleset = read.map_err(|error| self.explained(error))?;
            step.preflight(ruleset.table())?;
            let begun = self.begin(version, Rc::clone(step), &ruleset, mention, (what, journal));
            let Pending { undo, changing, .. } = begun.map_err(|error| self.explained(error))?;
            match wait(changing) {
                Err(error) if is_overtaken(&error) && left > 0 => journal.strike(undo),
                done => return done.map_err(|error| self.explained(error)),
            }
            read = ruleset.read_again();
        }
        Ok(())
    }

    /// Reads by the programs that the administrator chose.
    pub(crate) fn read(self, version: IpVersion, mention: &str) -> Read<Ruleset> {
        Programs::find(version).and_then(|programs| Ruleset::open(programs, &self.scope(mention)))
    }

    /// Reads one table under a lock that is held already; `None` if iptables cannot be used on this host.
    ///
    /// # Errors
    /// A failure that may be over the next time.
    pub(crate) fn read_if_usable(self, version: IpVersion, mention: &str) -> Result<Option<Ruleset>> {
        let opened = self.open_under(None, std::iter::once(version), mention).finish_if_usable()?;
        Ok(opened.ok().and_then(|opened| opened.read.into_iter().next()).map(|(_, ruleset)| ruleset))
    }

    /// Changes the table of one version, with other processes of ours kept away.
    fn change(self, version: IpVersion, mention: &str, change: impl FnMut(&Table) -> Changes) -> Result<()> {
        let _lock = self.lock()?;
        self.read(version, mention).and_then(|ruleset| ruleset.change(change)).map_err(|error| self.explained(error))
    }

    /// The tables that have such chains, in either variant of the programs. Programs that are missing are an error only if the
    /// other variant has no such chains.
    pub(crate) fn installed(
        self,
        nftables: Option<&Nftables>,
        version: IpVersion,
        chains: Chains,
    ) -> Read<Vec<Ruleset>> {
        let mut rulesets = Vec::new();
        let mut missing = None;
        for (programs, installed) in Programs::reaching(nftables, version, self.table, chains)? {
            match Ruleset::open_whole(programs, installed, &self.scope(chains.line_text())) {
                Ok(ruleset) if chains.any_of(ruleset.table()) => rulesets.push(ruleset),
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

    /// Reads what there is in either variant, of both versions, and hands each table to `change`; with the lock that was taken, if
    /// there is anything. Where there is nothing, no program is started.
    pub(crate) fn for_each_table(
        self,
        nftables: Option<&Nftables>,
        chains: Chains,
        mut change: impl FnMut(Ruleset) -> Read<()>,
    ) -> (Option<NetnsLock>, Errors) {
        let (mut lock, mut errors) = (None, Errors::default());
        for version in IpVersion::ALL {
            let reaching = match Programs::reaching(nftables, version, self.table, chains) {
                Ok(reaching) => reaching,
                Err(error) => {
                    errors.note(Err(self.explained(error)));
                    continue;
                }
            };
            if !reaching.is_empty() && lock.is_none() {
                match self.lock() {
                    Ok(taken) => lock = Some(taken),
                    Err(error) => {
                        errors.note(Err(error));
                        break;
                    }
                }
            }
            for (programs, installed) in reaching {
                let done = self.change_installed(programs, installed, chains, &mut change);
                errors.note(done.map_err(|error| self.explained(error)));
            }
        }
        (lock, errors)
    }

    /// Reads what there is by these programs, and hands it to `change`, if it can be read.
    fn change_installed(
        self,
        programs: Programs,
        installed: InstalledChains,
        chains: Chains,
        change: &mut impl FnMut(Ruleset) -> Read<()>,
    ) -> Read<()> {
        let chains_are_its_own = matches!(chains, Chains::Named(_));
        match Ruleset::open_whole(programs, installed, &self.scope(chains.line_text())) {
            Ok(ruleset) => change(ruleset),
            Err(error @ Refused::Incompatible { .. }) if chains_are_its_own => Err(error),
            // Without the programs nothing can remove the rules. Where chains are shared, nothing tells that there are any if the
            // programs cannot read them. A DEL that fails for ever would help nobody.
            Err(error @ (Refused::Missing { .. } | Refused::Incompatible { .. })) => {
                log::warn(format_args!("{} may stay behind: {error}", self.what));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Starts removing from all tables that have such chains what `clearing` says, and does not wait.
    pub(crate) fn begin_clear(
        self,
        nftables: Option<&Nftables>,
        chains: Chains,
        mut clearing: impl FnMut(&Table) -> Result<Changes>,
    ) -> Clearing {
        let mut begun = Vec::new();
        let mut unknown = Errors::default();
        let (lock, mut errors) = self.for_each_table(nftables, chains, |ruleset| {
            let changes = or_none(clearing(ruleset.table()), &mut unknown);
            begun.extend(ruleset.begin(&changes)?);
            Ok(())
        });
        errors.note(unknown.finish());
        Clearing { backend: self, begun, lock, errors }
    }

    /// Removes what `clearing` says, each table until it is done.
    pub(crate) fn clear(
        self,
        nftables: Option<&Nftables>,
        chains: Chains,
        mut clearing: impl FnMut(&Table) -> Result<Changes>,
    ) -> Result<()> {
        let mut unknown = Errors::default();
        let change = |ruleset: Ruleset| ruleset.change(|table| or_none(clearing(table), &mut unknown));
        let (_lock, mut errors) = self.for_each_table(nftables, chains, change);
        errors.note(unknown.finish());
        errors.finish()
    }

    /// Removes what `clearing` says from the tables that have this chain; `then` is called once that is done.
    ///
    /// The programs are started and not waited for: the removal of a link takes as long as they do. Where other processes wait for
    /// the lock, they would wait for that removal too, so there the programs come to their end first.
    pub(crate) fn release(
        self,
        kind: &'static str,
        context: &ReleaseContext,
        chain: String,
        clearing: impl Fn(&ReleaseContext, &Table) -> Result<Changes> + 'static,
        then: impl FnOnce() + 'static,
    ) -> Result<()> {
        let nftables = shared_nftables(context.shared())?;
        let clear = |table: &Table| clearing(context, table);
        let mut begun = self.begin_clear(nftables.as_deref(), Chains::Named(&chain), clear);
        let mut errors = std::mem::take(&mut begun.errors);
        if begun.begun.is_empty() {
            return errors.finish();
        }
        let is_contended = begun.lock.as_ref().is_some_and(NetnsLock::waited);
        let finish = move |context: &ReleaseContext| {
            let done = begun.finish(|| {
                let nftables = shared_nftables(context.shared())?;
                self.clear(nftables.as_deref(), Chains::Named(&chain), |table| clearing(context, table))
            });
            then();
            done
        };
        if is_contended {
            errors.note(finish(context));
        } else {
            context.defer(kind, finish);
        }
        errors.finish()
    }

    fn scope(self, mention: &str) -> ReadScope<'_> {
        // A caller that reads every line, since rules of other programs in shared chains matter too, does so in no chain of theirs.
        let named = if mention.is_empty() { OURS } else { mention };
        ReadScope { table: self.table, line_text: mention, chain_text: named, shared_chains: self.shared }
    }

    /// Keeps other processes of ours away that change rules here: of two attachments that share a chain, each would find the
    /// other's rules, remove its own, and leave the chain to the other.
    ///
    /// # Errors
    /// The lock cannot be taken in time.
    pub(crate) fn lock(self) -> Result<NetnsLock> {
        lock_netns::own(&format!("remove {}", self.what))
    }

    /// Whether iptables can be used: `Ok(Err(why))` if not. IPv6 may not be wanted, so only IPv4 is tried.
    pub(crate) fn usable(self) -> Result<Read<()>> {
        self.unless_lasting(self.read(IpVersion::V4, OURS).map(drop))
    }

    fn unless_lasting<T>(self, tried: Read<T>) -> Result<Read<T>> {
        match tried {
            Err(error) if !error.is_lasting() => Err(self.explained(error)),
            tried => Ok(tried),
        }
    }

    /// The error with a hint.
    pub(crate) fn explained(self, error: Refused) -> Error {
        let RuleBackend { table, instead, .. } = self;
        let hint = match &error {
            Refused::Missing { .. } => Some(format!("install the package iptables, {instead}")),
            Refused::Failed { .. } | Refused::Process(_) => {
                Some(format!("see on the node what `iptables -t {table} -S` says, {instead}"))
            }
            Refused::Incompatible { .. } => {
                Some(format!("have whoever wrote into table {table} with nft use a table of its own, {instead}"))
            }
            Refused::Hidden { .. } | Refused::Unread { .. } => Some("try again".to_owned()),
            Refused::Netlink(_) => None,
        };
        match hint {
            Some(hint) => Error::from(error).hint(hint),
            None => Error::from(error),
        }
    }
}

impl Clearing {
    /// Waits until all is removed. `again` removes what is left if another program changed a table in between.
    pub(crate) fn finish(self, again: impl FnOnce() -> Result<()>) -> Result<()> {
        let Clearing { backend, begun, lock, mut errors } = self;
        let ended: Vec<Read<()>> = begun.into_iter().map(Changing::finish).collect();
        drop(lock);
        match ended.into_iter().collect::<Read<()>>() {
            Err(error) if is_overtaken(&error) => errors.note(again()),
            done => errors.note(done.map_err(|error| backend.explained(error))),
        };
        errors.finish()
    }
}

fn wait(changing: Option<Changing>) -> Read<()> {
    match changing {
        Some(changing) => changing.finish(),
        None => Ok(()),
    }
}

/// Whether another program may have changed the table after it was read.
fn is_overtaken(error: &Refused) -> bool {
    matches!(error, Refused::Failed { .. } | Refused::Unread { .. })
}

/// The changes; none if they are not known, which is noted.
fn or_none(changes: Result<Changes>, unknown: &mut Errors) -> Changes {
    changes.unwrap_or_else(|error| {
        unknown.note(Err(error));
        Changes::default()
    })
}
