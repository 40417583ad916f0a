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
