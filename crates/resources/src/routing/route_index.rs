//! Comparison of routes.

use std::collections::BTreeMap;

use cnikit_netlink::{KernelRoute, RouteCopy};

/// The metric that the kernel gives an IPv6 route that has none.
#[doc(alias = "IP6_RT_PRIO_USER")]
const IPV6_METRIC: u32 = 1024;

/// Routes that are found by what they are for the kernel: one of two may be wanted, and lack what the kernel fills in.
///
/// Nearly always these are a handful, which are compared sooner than the first of them is hashed.
pub(crate) struct RouteIndex<'a>(BTreeMap<KernelRoute, &'a RouteCopy>);

impl<'a> RouteIndex<'a> {
    pub(crate) fn of(copies: impl IntoIterator<Item = &'a RouteCopy>) -> RouteIndex<'a> {
        RouteIndex(copies.into_iter().map(|copy| (key(copy.route()), copy)).collect())
    }

    pub(crate) fn find(&self, wanted: &RouteCopy) -> Option<&'a RouteCopy> {
        self.0.get(&key(wanted.route())).copied()
    }

    pub(crate) fn has(&self, wanted: &RouteCopy) -> bool {
        self.find(wanted).is_some()
    }
}

fn key(route: &KernelRoute) -> KernelRoute {
    let scope = if route.dst.is_ipv4() { route.scope } else { None };
    KernelRoute { priority: Some(metric(route)), scope, dead: false, ..route.clone() }
}

/// The metric of a route, as the kernel has it.
pub(crate) fn metric(route: &KernelRoute) -> u32 {
    match route.priority {
        None | Some(0) if route.dst.is_ipv6() => IPV6_METRIC,
        priority => priority.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, change: impl FnOnce(&mut KernelRoute)) -> RouteCopy {
        let mut route = KernelRoute { index: Some(2), ..KernelRoute::to(dst.parse().unwrap()) };
        change(&mut route);
        RouteCopy::new(&route).unwrap()
    }

    #[test]
    fn only_an_ipv6_route_without_a_metric_gets_one_of_the_kernel() {
        for (dst, priority, is) in [
            ("10.0.0.0/8", None, 0),
            ("10.0.0.0/8", Some(0), 0),
            ("10.0.0.0/8", Some(7), 7),
            ("fd00::/8", None, 1024),
            ("fd00::/8", Some(0), 1024),
            ("fd00::/8", Some(7), 7),
        ] {
            let route = KernelRoute { priority, ..KernelRoute::to(dst.parse().unwrap()) };
            assert_eq!(metric(&route), is, "{dst} {priority:?}");
        }
    }

    #[test]
    fn a_route_is_found_by_what_it_is_for_the_kernel() {
        let routes = [
            route("fd00::/8", |route| route.priority = Some(1024)),
            route("10.0.0.0/8", |route| route.scope = Some(253)),
        ];
        let index = RouteIndex::of(&routes);
        assert_eq!(index.find(&route("fd00::/8", |_| ())), Some(&routes[0]));
        assert_eq!(index.find(&route("fd00::/8", |route| route.scope = Some(253))), Some(&routes[0]));
        assert!(index.has(&route("10.0.0.0/8", |route| (route.scope, route.priority) = (Some(253), Some(0)))));
        assert!(!index.has(&route("10.0.0.0/8", |route| route.scope = Some(0))), "the scope of an IPv4 route counts");
        assert!(!index.has(&route("fd00::/8", |route| route.priority = Some(7))));
        assert!(!index.has(&route("fd00::/8", |route| route.index = Some(3))));
    }
}
