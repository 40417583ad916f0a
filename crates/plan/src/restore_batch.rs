//! Many attachments restored at once.

use std::ops::Range;

use cnikit_netfilter::iptables::{Changes, IpVersion, Table};
use cnikit_netfilter::{BatchOutcome, Nftables, OwnerFilter, OwnersBatch, Rules, TableLayout};
use cnikit_skel::{Errors, Journal, Result, each_by_itself, log};

use crate::context::ApplyContext;
use crate::engine::restore_one;
use crate::list::Plan;
use crate::resource::Resource;

/// What many attachments want of the packet filter, gathered to be made at once.
#[derive(Default)]
pub struct RestoreBatch {
    nftables: OwnersBatch,
    tables: Vec<Tables>,
    wishes: Vec<Wish>,
}

/// Where the outcome of a wish comes from.
enum Wish {
    Nftables(usize),
    /// Which table, and which of its changes.
    Iptables(usize, usize),
}

/// What is wanted of one table of iptables.
struct Tables {
    what: &'static str,
    version: IpVersion,
    make: MakeAll,
    all: Vec<Wanted>,
}

/// What one attachment wants of a table of iptables.
pub struct Wanted {
    /// What has to change in the table as it stands; none where it is as it is wanted.
    pub changes: Decide,
    /// What it must not share with anybody who is made with it.
    pub sole: Vec<String>,
}

/// Looks at a table and says what has to change.
pub type Decide = Box<dyn Fn(&Table) -> Result<Changes>>;

/// Makes what many want of a table, and says what became of each.
pub type MakeAll = fn(IpVersion, &[Wanted]) -> Vec<BatchOutcome>;

impl RestoreBatch {
    /// What one owner wants of a frame of nftables; see [`OwnersBatch::add`].
    pub fn add_rules(
        &mut self,
        frame: TableLayout,
        whose: impl Into<OwnerFilter>,
        rules: impl Into<Rules>,
        sole: Option<&str>,
    ) -> Result<()> {
        self.nftables.add(frame, whose, rules, sole)?;
        self.wishes.push(Wish::Nftables(self.nftables.wishes() - 1));
        Ok(())
    }

    /// What one attachment wants of a table of iptables. `what` are its rules, of which each sort has its own way to be made.
    pub fn add_changes(&mut self, what: &'static str, version: IpVersion, make: MakeAll, wanted: Wanted) {
        let of = |tables: &Tables| (tables.what, tables.version) == (what, version);
        let table = self.tables.iter().position(of).unwrap_or(self.tables.len());
        if table == self.tables.len() {
            self.tables.push(Tables { what, version, make, all: Vec::new() });
        }
        let all = &mut self.tables[table].all;
        all.push(wanted);
        self.wishes.push(Wish::Iptables(table, all.len() - 1));
    }

    /// What became of each wish.
    fn make(self) -> Vec<BatchOutcome> {
        let rules = self.nftables.wishes();
        let ruled = log::step(format_args!("restore {rules} at once with nftables"), || {
            Ok(if rules > 0 { Nftables::here()?.make(self.nftables) } else { Vec::new() })
        });
        let ruled = ruled.unwrap_or_else(|_| vec![BatchOutcome::Left; rules]);
        let of_table = |Tables { what, version, make, all }: &Tables| {
            let step = format_args!("restore {what} of {} at once with {version}", all.len());
            log::step(step, || Ok(make(*version, all))).unwrap_or_default()
        };
        let changed: Vec<Vec<BatchOutcome>> = self.tables.iter().map(of_table).collect();
        let outcome = |wish| match wish {
            Wish::Nftables(place) => ruled[place],
            Wish::Iptables(table, place) => changed[table][place],
        };
        self.wishes.into_iter().map(outcome).collect()
    }
}

/// The plans of one attachment and where they act, or why there are none.
pub type RestorePlan = Result<(Vec<Plan>, ApplyContext)>;

/// By resource: where its outcomes stand; none if it is restored by itself.
type Gathered = Vec<Option<Range<usize>>>;

/// As [`restore`](crate::restore) for many attachments, each with its plans: what became of each, in their order.
///
/// What can be made at once is; whatever that leaves is restored by itself, so that one attachment's misfortune keeps no
/// other down, and is said of the one.
pub fn restore_all(all: Vec<RestorePlan>) -> Vec<Result<()>> {
    let mut batch = RestoreBatch::default();
    let gathered: Vec<Gathered> = all.iter().map(|planned| gather(planned, &mut batch)).collect();
    let outcomes = batch.make();
    let one = |(planned, gathered): (RestorePlan, Gathered)| {
        let (plans, context) = planned?;
        each_by_itself(|journal| {
            let outcomes = gathered.into_iter().map(|places| places.map(|places| &outcomes[places]));
            let rest = resources(&plans).zip(outcomes);
            rest.map(|(resource, outcomes)| finish_one(resource, outcomes, &context, journal))
                .collect::<Errors>()
                .finish()
        })
    };
    all.into_iter().zip(gathered).map(one).collect()
}

fn resources(plans: &[Plan]) -> impl Iterator<Item = &dyn Resource> {
    plans.iter().flat_map(Plan::iter)
}

fn gather(planned: &RestorePlan, batch: &mut RestoreBatch) -> Gathered {
    let Ok((plans, context)) = planned else { return Vec::new() };
    let one = |resource: &dyn Resource| {
        let before = batch.wishes.len();
        // What cannot be gathered says by itself why.
        let joins = resource.enqueue(context, batch).unwrap_or_default();
        joins.then_some(before..batch.wishes.len())
    };
    resources(plans).map(one).collect()
}

/// What is left to do for a resource.
fn finish_one(
    resource: &dyn Resource,
    outcomes: Option<&[BatchOutcome]>,
    context: &ApplyContext,
    journal: &mut Journal,
) -> Result<()> {
    match outcomes {
        Some(all) if !all.contains(&BatchOutcome::Left) => {
            let left = resource.finish_batch(context, all.contains(&BatchOutcome::Made), journal);
            left.map_err(|error| error.context(resource))
        }
        _ => restore_one(resource, context, journal),
    }
}
