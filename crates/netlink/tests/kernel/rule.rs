//! Routing policy rules.

use cnikit_netlink::{Family, RoutingRule};

use crate::scene::{inside, ip};

#[test]
fn rules_of_both_families_are_listed_in_their_order() {
    let (netns, netlink) = inside();
    ip(&netns, "rule add from 10.0.0.2 lookup 100 priority 7 protocol 203");
    ip(&netns, "-6 rule add from fd00::2 lookup 101 priority 8 protocol 203");
    let rules = netlink.rules().unwrap();
    for (family, source, table, priority) in [(Family::V4, "10.0.0.2/32", 100, 7), (Family::V6, "fd00::2/128", 101, 8)]
    {
        let of_family: Vec<&RoutingRule> = rules.iter().filter(|rule| rule.family == family).collect();
        let priorities: Vec<u32> = of_family.iter().map(|rule| rule.priority).collect();
        assert!(priorities.is_sorted() && priorities.contains(&0) && priorities.contains(&32766), "{priorities:?}");
        let wanted = RoutingRule::from_source(source.parse().unwrap(), table, priority, 203);
        assert_eq!(of_family.iter().filter(|rule| ***rule == wanted).count(), 1, "{of_family:?}");
    }
}
