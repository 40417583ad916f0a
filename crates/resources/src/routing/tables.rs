//! Which routing tables and which priorities of rules are free.

use std::collections::HashSet;

use cnikit_netlink::{Family, Netlink, RoutingRule};
use cnikit_skel::{Error, Result, code};

/// The tables default, main and local.
#[doc(alias = "RT_TABLE_LOCAL")]
const OF_KERNEL: std::ops::RangeInclusive<u32> = 253..=255;
/// The priority of the kernel's rule for the main table.
const MAIN_PRIORITY: u32 = 32766;
/// How many tables without rules are read at most. Programs in the container can fill any number of them.
const MOST_READ: u32 = 1000;

/// The routing rules of the container, in the order in which they are tried.
pub(crate) struct Rules {
    pub(crate) all: Vec<RoutingRule>,
}

impl Rules {
    pub(crate) fn read(container: &Netlink) -> Result<Rules> {
        Ok(Rules { all: container.rules()? })
    }

    /// Whether exactly this rule exists.
    pub(crate) fn has(&self, rule: &RoutingRule) -> bool {
        self.all.contains(rule)
    }

    /// The priority that the kernel would choose: one less than the lowest. If there is none below, the highest free one.
    pub(crate) fn free_priority(&self, family: Family) -> u32 {
        let taken: HashSet<u32> = self
            .all
            .iter()
            .filter(|rule| rule.family == family && rule.priority > 0)
            .map(|rule| rule.priority)
            .collect();
        let lowest = taken.iter().min().copied().unwrap_or(MAIN_PRIORITY);
        if lowest > 1 {
            return lowest - 1;
        }
        (1..MAIN_PRIORITY).rev().find(|priority| !taken.contains(priority)).unwrap_or(1)
    }
}

/// The tables that nothing uses: no rule, no VRF and no route of either family.
pub(crate) struct FreeTables<'a> {
    container: &'a Netlink,
    taken: HashSet<u32>,
    next: u32,
    read: u32,
}

impl<'a> FreeTables<'a> {
    /// The free tables from `first` up.
    pub(crate) fn from(first: u32, container: &'a Netlink, rules: &Rules) -> Result<FreeTables<'a>> {
        let mut taken: HashSet<u32> = rules.all.iter().map(|rule| rule.table).collect();
        // The kernel makes that rule with the first VRF.
        if rules.all.iter().any(|rule| rule.is_of_vrfs) {
            taken.extend(container.links_of_kind("vrf")?.iter().filter_map(|vrf| vrf.vrf_table));
        }
        Ok(FreeTables { container, taken, next: first, read: 0 })
    }

    /// The next free table. The caller holds the lock of the namespace.
    pub(crate) fn take(&mut self) -> Result<u32> {
        while self.read < MOST_READ {
            let table = self.next;
            self.next = table.checked_add(1).unwrap_or(1);
            if OF_KERNEL.contains(&table) || table == 0 || self.taken.contains(&table) {
                continue;
            }
            self.read += 1;
            if self.container.any_route_of(table)?.is_none() {
                return Ok(table);
            }
        }
        let text = format!("no free routing table: the {MOST_READ} below {} that no rule names have routes", self.next);
        Err(Error::new(code::CONFLICT, text).hint("remove routes from the container, or configure `table`"))
    }
}

#[cfg(test)]
mod tests {
    use cnikit_netns::make;

    use super::*;

    fn rules(priorities: &[u32]) -> Rules {
        let rule = |priority: &u32| RoutingRule::from_source("10.0.0.1/32".parse().unwrap(), 100, *priority, 0);
        Rules { all: priorities.iter().map(rule).collect() }
    }

    #[test]
    fn a_priority_is_one_below_the_lowest_and_never_one_that_is_taken() {
        for (taken, expected) in [
            (&[0, 32766, 32767][..], 32765),
            (&[0, 32765, 32766], 32764),
            (&[0, 1000, 32766], 999),
            (&[0, 1, 32765, 32766], 32764),
            (&[], 32765),
        ] {
            assert_eq!(rules(taken).free_priority(Family::V4), expected, "{taken:?}");
        }
        assert_eq!(rules(&[5]).free_priority(Family::V6), 32765, "each family has its own");
    }

    #[test]
    fn a_free_table_is_named_by_no_rule_and_is_none_of_the_kernels() {
        let netns = make::anonymous().unwrap();
        let container = Netlink::inside(&netns).unwrap();
        let mut named = rules(&[5]);
        named.all[0].table = 252;
        for (first, expected) in [(251, [251, 256]), (u32::MAX, [u32::MAX, 1])] {
            let mut tables = FreeTables::from(first, &container, &named).unwrap();
            assert_eq!([tables.take().unwrap(), tables.take().unwrap()], expected);
        }
    }
}
