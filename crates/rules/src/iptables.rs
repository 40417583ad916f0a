//! Rules in one table of iptables: read at once, changed as a whole, in either variant of the programs.

use std::rc::Rc;

use cnikit_iptables::{
    Chains, Changes, Changing, Error as IptablesError, InstalledChains, IpVersion, Opening as TableOpening, Programs,
    ReadScope, Result as IptablesResult, Ruleset, Table,
};
use cnikit_nftables::Nftables;
use cnikit_plan::ReleaseContext;
use cnikit_resources::lock_netns::{self, NetnsLock};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result, Undo, log};

use crate::backend::{Backend, Comparison, Loopback, RuleBackend};
use crate::nftables::shared_nftables;

/// The text that the names of all chains of ours and of the upstream plugins contain, and so every line about such a chain.
pub(crate) const CNI_CHAIN: &str = "CNI-";
/// How often a change is tried again after another program has changed the table.
const TRIES: usize = 3;

/// Tables that programs are reading for one ADD, one per version of IP, or the error that prevents it.
pub(crate) struct Opening {
    backend: RuleBackend,
    lock: Option<NetnsLock>,
    begun: IptablesResult<Vec<(IpVersion, TableOpening)>>,
}

/// Tables that have been read for one ADD.
pub(crate) struct Opened {
    read: Vec<(IpVersion, Ruleset)>,
    /// Held until the changes are made, if the backend locks.
    _lock: Option<NetnsLock>,
}

impl Opening {
    /// Waits until the tables are read.
    ///
    /// # Errors
    /// Those of the programs.
    pub(crate) fn finish(self) -> Result<Opened> {
        let backend = self.backend;
        self.finish_if_usable()?.map_err(|error| backend.explained(error))
    }

    /// Waits until the tables are read. Returns `Ok(Err(why))` if iptables cannot be used on this host.
    ///
    /// # Errors
    /// A failure that may not happen again.
    pub(crate) fn finish_if_usable(self) -> Result<IptablesResult<Opened>> {
        let read = self.backend.unless_lasting(self.begun.and_then(finish_all))?;
        Ok(read.map(|read| Opened { read, _lock: self.lock }))
    }
}

fn finish_all(begun: Vec<(IpVersion, TableOpening)>) -> IptablesResult<Vec<(IpVersion, Ruleset)>> {
    let mut read = Vec::new();
    for (version, opening) in begun {
        read.push((version, opening.finish()?.with_shared_chains()?));
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

    /// Whether a table with the chains of this kind has rules of the attachment.
    fn is_installed(&self, _table: &Table) -> bool {
        true
    }

    /// What of the guard of the host's loopback belongs to the rules in the table; `None` if they do not decide that.
    fn loopback(&self, _table: &Table) -> Option<Loopback> {
        None
    }

    /// The differences between the table and what the attachment wants, each a sentence. `place` names the table.
    ///
    /// # Errors
    /// Those of the programs.
    fn differences(&self, ruleset: &Ruleset, place: &str) -> IptablesResult<Vec<String>>;

    /// The same for a table without chains of this kind.
    fn differences_without_chains(&self, place: &str) -> Vec<String>;
}

/// A change of the table of one version of IP that a program is making.
struct Pending<S> {
    version: IpVersion,
    step: Rc<S>,
    undo: Undo,
    changing: Option<Changing>,
}

/// Removals that programs are making, in all tables that have rules to remove.
pub(crate) struct Clearing {
    backend: RuleBackend,
    begun: Vec<Changing>,
    lock: Option<NetnsLock>,
    errors: Errors,
}

impl RuleBackend {
    /// Starts reading the tables of these versions, of lines only those that contain `line_text`. If the backend locks, other
    /// processes of ours are locked out from now on.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub(crate) fn open(self, versions: impl Iterator<Item = IpVersion>, line_text: &str) -> Result<Opening> {
        let lock = if self.locks { Some(self.lock()?) } else { None };
        Ok(self.open_under(lock, versions, line_text))
    }

    /// As [`RuleBackend::open`], with a lock that is held already.
    pub(crate) fn open_under(
        self,
        lock: Option<NetnsLock>,
        versions: impl Iterator<Item = IpVersion>,
        line_text: &str,
    ) -> Opening {
        let begin = |version| Ok((version, Ruleset::begin_open(Programs::find(version)?, &self.scope(line_text))?));
        Opening { backend: self, lock, begun: versions.map(begin).collect() }
    }

    /// Makes what the steps want, one per version of IP. All steps are validated before the first is made, their programs run at
    /// the same time, and each step is undone if the ADD fails. If another program changes a table meanwhile, the step is validated
    /// and made again.
    ///
    /// # Errors
    /// Those of [`TableStep::preflight`] and of the programs.
    pub(crate) fn apply<S: TableStep>(
        self,
        opened: Opened,
        step: impl Fn(IpVersion) -> S,
        line_text: &str,
        tag: &AttachmentId,
        journal: &mut Journal,
    ) -> Result<()> {
        let Opened { read, _lock } = opened;
        let undo_name = self.undo_name(tag);
        let mut steps = Vec::new();
        for (version, ruleset) in read {
            let step = Rc::new(step(version));
            step.preflight(ruleset.table())?;
            steps.push((version, step, ruleset));
        }
        let mut pending = Vec::new();
        let mut outcome = Ok(());
        for (version, step, ruleset) in steps {
            match self.begin(version, step, &ruleset, line_text, &undo_name, journal) {
                Ok(begun) => pending.push(begun),
                Err(error) => {
                    outcome = Err(self.explained(error));
                    break;
                }
            }
        }
        // All programs are waited for under the lock, even if one fails.
        for one in pending {
            let done = self.finish(one, line_text, &undo_name, journal);
            outcome = outcome.and(done);
        }
        outcome
    }

    /// Records how to undo the change of one version, and starts it.
    fn begin<S: TableStep>(
        self,
        version: IpVersion,
        step: Rc<S>,
        ruleset: &Ruleset,
        line_text: &str,
        undo_name: &str,
        journal: &mut Journal,
    ) -> IptablesResult<Pending<S>> {
        let (before, changes) = step.decide(ruleset.table());
        let undone = Rc::clone(&step);
        let line_text = line_text.to_owned();
        let put_back = move |_: &String| self.change(version, &line_text, |table| undone.put_back(table, &before));
        let undo = journal.undo(&undo_name.to_owned(), put_back);
        let changing = ruleset.begin(&changes)?;
        Ok(Pending { version, step, undo, changing })
    }

    fn finish<S: TableStep>(
        self,
        pending: Pending<S>,
        line_text: &str,
        undo_name: &str,
        journal: &mut Journal,
    ) -> Result<()> {
        let Pending { version, step, undo, changing } = pending;
        match wait(changing) {
            Ok(()) => Ok(()),
            Err(error) if is_overtaken(&error) => {
                journal.strike(undo);
                self.try_again(version, &step, line_text, undo_name, journal)
            }
            Err(error) => Err(self.explained(error)),
        }
    }

    fn try_again<S: TableStep>(
        self,
        version: IpVersion,
        step: &Rc<S>,
        line_text: &str,
        undo_name: &str,
        journal: &mut Journal,
    ) -> Result<()> {
        let mut read = self.read(version, line_text);
        for left in (0..TRIES).rev() {
            let ruleset = read.map_err(|error| self.explained(error))?;
            step.preflight(ruleset.table())?;
            let begun = self.begin(version, Rc::clone(step), &ruleset, line_text, undo_name, journal);
            let Pending { undo, changing, .. } = begun.map_err(|error| self.explained(error))?;
            match wait(changing) {
                Ok(()) => return Ok(()),
                Err(error) if is_overtaken(&error) && left > 0 => journal.strike(undo),
                Err(error) => return Err(self.explained(error)),
            }
            read = ruleset.read_again();
        }
        Ok(())
    }

    /// Reads the table of one version with the programs that the administrator chose.
    pub(crate) fn read(self, version: IpVersion, line_text: &str) -> IptablesResult<Ruleset> {
        Ruleset::open(Programs::find(version)?, &self.scope(line_text))
    }

    /// Reads the table of one version under a lock that is held already; `None` if iptables cannot be used on this host.
    ///
    /// # Errors
    /// A failure that may not happen again.
    pub(crate) fn read_if_usable(self, version: IpVersion, line_text: &str) -> Result<Option<Ruleset>> {
        let opening = self.open_under(None, std::iter::once(version), line_text);
        let Ok(opened) = opening.finish_if_usable()? else { return Ok(None) };
        Ok(opened.read.into_iter().next().map(|(_, ruleset)| ruleset))
    }

    /// Changes the table of one version, with other processes of ours locked out.
    fn change(self, version: IpVersion, line_text: &str, change: impl FnMut(&Table) -> Changes) -> Result<()> {
        let _lock = self.lock()?;
        self.read(version, line_text).and_then(|ruleset| ruleset.change(change)).map_err(|error| self.explained(error))
    }

    /// Compares what the steps want with the tables that have such chains, in either variant of the programs. If a program omits
    /// rules that the kernel has, that is an error and not a difference.
    ///
    /// # Errors
    /// Those of the programs.
    pub(crate) fn compare_installed<S: TableStep>(
        self,
        versions: impl Iterator<Item = IpVersion>,
        step: impl Fn(IpVersion) -> S,
        chains: Chains,
    ) -> Result<Comparison> {
        let nftables = Nftables::if_any().map_err(|error| self.explained(error.into()))?;
        let mut compared = Comparison::default();
        for version in versions {
            let rulesets = self.installed(nftables.as_ref(), version, chains);
            self.compare_version(&step(version), version, rulesets, &mut compared)
                .map_err(|error| self.explained(error))?;
        }
        Ok(compared)
    }

    fn compare_version(
        self,
        step: &impl TableStep,
        version: IpVersion,
        rulesets: IptablesResult<Vec<Ruleset>>,
        compared: &mut Comparison,
    ) -> IptablesResult<()> {
        let place = format!("table {} of {version}", self.table);
        let mut fewest: Option<Vec<String>> = None;
        for ruleset in &rulesets? {
            compared.any |= step.is_installed(ruleset.table());
            if let Some(loopback) = step.loopback(ruleset.table()) {
                compared.loopback = loopback;
            }
            let differences = step.differences(ruleset, &place)?;
            // Where both variants have rules, those with fewer differences are the ones that ADD wrote last.
            if fewest.as_ref().is_none_or(|fewest| differences.len() < fewest.len()) {
                fewest = Some(differences);
            }
        }
        match fewest {
            Some(differences) => compared.drifts.extend(differences),
            None => compared.drifts.extend(step.differences_without_chains(&place)),
        }
        Ok(())
    }

    /// The tables that have such chains, in either variant of the programs. Programs that are missing are an error only if the
    /// other variant has no such chains.
    pub(crate) fn installed(
        self,
        nftables: Option<&Nftables>,
        version: IpVersion,
        chains: Chains,
    ) -> IptablesResult<Vec<Ruleset>> {
        let mut rulesets = Vec::new();
        let mut missing = None;
        for (programs, installed) in Programs::reaching(nftables, version, self.table, chains)? {
            match Ruleset::open_whole(programs, installed, &self.scope(chains.line_text())) {
                Ok(ruleset) if chains.any_of(ruleset.table()) => rulesets.push(ruleset),
                Ok(_) => {}
                Err(error @ IptablesError::Missing { .. }) => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        match missing {
            Some(error) if rulesets.is_empty() => Err(error),
            _ => Ok(rulesets),
        }
    }

    /// Reads the tables that have such chains, in either variant and of both versions, and passes each to `change`. Returns the
    /// lock that was taken for that. If there are no such chains, no lock is taken and no program is started.
    pub(crate) fn for_each_table(
        self,
        nftables: Option<&Nftables>,
        chains: Chains,
        mut change: impl FnMut(Ruleset) -> IptablesResult<()>,
    ) -> (Option<NetnsLock>, Errors) {
        let mut lock = None;
        let mut errors = Errors::default();
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

    /// Reads a table with these programs, and passes it to `change` if it can be read.
    fn change_installed(
        self,
        programs: Programs,
        installed: InstalledChains,
        chains: Chains,
        change: &mut impl FnMut(Ruleset) -> IptablesResult<()>,
    ) -> IptablesResult<()> {
        let chains_are_its_own = matches!(chains, Chains::Named(_));
        match Ruleset::open_whole(programs, installed, &self.scope(chains.line_text())) {
            Ok(ruleset) => change(ruleset),
            Err(error @ IptablesError::Incompatible { .. }) if chains_are_its_own => Err(error),
            // Without the programs the rules cannot be removed. If the programs cannot read chains that attachments share, it is
            // not known whether there are rules of this attachment. A DEL that fails for ever would not help.
            Err(error @ (IptablesError::Missing { .. } | IptablesError::Incompatible { .. })) => {
                log::warn(format_args!("{} may stay behind: {error}", self.what));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Starts removing from all tables that have such chains the rules that `clearing` returns, and does not wait.
    pub(crate) fn begin_clear(
        self,
        nftables: Option<&Nftables>,
        chains: Chains,
        mut clearing: impl FnMut(&Table) -> Result<Changes>,
    ) -> Clearing {
        let mut begun = Vec::new();
        let mut unknown = Errors::default();
        let begin = |ruleset: Ruleset| {
            let changes = or_none(clearing(ruleset.table()), &mut unknown);
            begun.push(ruleset.begin(&changes)?);
            Ok(())
        };
        let (lock, mut errors) = self.for_each_table(nftables, chains, begin);
        errors.note(unknown.finish());
        Clearing { backend: self, begun: begun.into_iter().flatten().collect(), lock, errors }
    }

    /// Removes the rules that `clearing` returns, and waits for each table.
    ///
    /// # Errors
    /// Those of `clearing`, of the lock and of the programs.
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

    /// Removes the rules that `clearing` returns from the tables that have this chain. `then` is called when that is done.
    ///
    /// The programs are started and not waited for: the removal of a link takes as long as they do. If other processes wait for
    /// the lock, they would wait for that removal too, so then the programs are waited for here.
    ///
    /// # Errors
    /// Those of `clearing`, of the lock and of the programs.
    pub(crate) fn release(
        self,
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
        let clear_again = move |context: &ReleaseContext| {
            let nftables = shared_nftables(context.shared())?;
            self.clear(nftables.as_deref(), Chains::Named(&chain), |table| clearing(context, table))
        };
        let finish = move |context: &ReleaseContext| {
            let done = begun.finish(|| clear_again(context));
            then();
            done
        };
        if is_contended {
            errors.note(finish(context));
        } else {
            context.defer(self.kind, finish);
        }
        errors.finish()
    }

    fn scope(self, line_text: &str) -> ReadScope<'_> {
        // A caller that reads every line does so because of other programs' rules in the shared chains, not in chains of theirs.
        let chain_text = if line_text.is_empty() { CNI_CHAIN } else { line_text };
        ReadScope { table: self.table, line_text, chain_text, shared_chains: self.shared }
    }

    /// Locks out other processes of ours that change rules in this namespace. Two attachments that share a chain would each find
    /// the other's rules, remove their own, and leave the chain to the other.
    ///
    /// # Errors
    /// The lock cannot be taken in time.
    pub(crate) fn lock(self) -> Result<NetnsLock> {
        lock_netns::own(&format!("remove {}", self.what))
    }

    /// Whether iptables can be used: `Ok(Err(why))` if not. IPv6 may not be wanted, so only IPv4 is tried.
    ///
    /// # Errors
    /// A failure that may not happen again.
    pub(crate) fn usable(self) -> Result<IptablesResult<()>> {
        self.unless_lasting(self.read(IpVersion::V4, CNI_CHAIN).map(drop))
    }

    fn unless_lasting<T>(self, tried: IptablesResult<T>) -> Result<IptablesResult<T>> {
        match tried {
            Err(error) if !error.is_lasting() => Err(self.explained(error)),
            tried => Ok(tried),
        }
    }

    /// The error with a hint.
    pub(crate) fn explained(self, error: IptablesError) -> Error {
        let RuleBackend { table, what, iptables_needs, .. } = self;
        let instead = self.or_choose(Backend::Nftables);
        let hint = match &error {
            IptablesError::Missing { .. } => Some(format!("install the package iptables, {instead}")),
            error if error.lacks_feature() => {
                let table_module = format!("for iptables-legacy iptable_{table}");
                Some(format!(
                    "{what} of iptables need a kernel with {iptables_needs}, and {table_module}: load these modules, {instead}"
                ))
            }
            IptablesError::Failed { .. } | IptablesError::Process(_) => {
                Some(format!("run `iptables -t {table} -S` on the node, {instead}"))
            }
            IptablesError::Incompatible { .. } => Some(format!(
                "another program wrote into table {table} with nft: configure it to use a table of its own, {instead}"
            )),
            IptablesError::Hidden { .. } | IptablesError::Unread { .. } => Some("try again".to_owned()),
            _ => None,
        };
        match hint {
            Some(hint) => Error::from(error).hint(hint),
            None => Error::from(error),
        }
    }
}

impl Clearing {
    /// Waits until all is removed. `again` removes what is left if another program changed a table in between.
    ///
    /// # Errors
    /// Those of the programs, of `again`, and of [`RuleBackend::begin_clear`].
    pub(crate) fn finish(self, again: impl FnOnce() -> Result<()>) -> Result<()> {
        let Clearing { backend, begun, lock, mut errors } = self;
        let ended: Vec<IptablesResult<()>> = begun.into_iter().map(Changing::finish).collect();
        drop(lock);
        let done = match ended.into_iter().collect::<IptablesResult<()>>() {
            Ok(()) => Ok(()),
            Err(error) if is_overtaken(&error) => again(),
            Err(error) => Err(backend.explained(error)),
        };
        errors.note(done);
        errors.finish()
    }
}

fn wait(changing: Option<Changing>) -> IptablesResult<()> {
    match changing {
        Some(changing) => changing.finish(),
        None => Ok(()),
    }
}

/// Whether another program may have changed the table after it was read.
fn is_overtaken(error: &IptablesError) -> bool {
    matches!(error, IptablesError::Failed { .. } | IptablesError::Unread { .. })
}

/// The changes, or no changes if they could not be computed; the error is collected in `unknown`.
fn or_none(changes: Result<Changes>, unknown: &mut Errors) -> Changes {
    changes.unwrap_or_else(|error| {
        unknown.note(Err(error));
        Changes::default()
    })
}
