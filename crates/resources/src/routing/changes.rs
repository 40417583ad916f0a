//! Changes of rules and routes in the container, and their reverse.

use std::fmt;

use cnikit_netlink::{Batch, Error, Netlink, Result, RouteCopy, RoutingRule};
use nix::errno::Errno;

use crate::saved_settings;

/// Rules and routes to be added and removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoutingChanges {
    pub(crate) add_rules: Vec<RoutingRule>,
    pub(crate) delete_rules: Vec<RoutingRule>,
    pub(crate) add_routes: Vec<RouteCopy>,
    pub(crate) delete_routes: Vec<RouteCopy>,
}

impl RoutingChanges {
    /// Makes all changes. What is added comes first, so that packets have a route at any moment. A route that exists already, and a
    /// rule or a route that is gone already, are not errors.
    pub(crate) fn apply(&self, netlink: &Netlink) -> Result<()> {
        let mut additions = Batches::new(netlink);
        additions.add_routes(&self.add_routes);
        for rule in &self.add_rules {
            additions.push(|batch| batch.add_rule(rule));
        }
        additions.send()?;
        let mut deletions = Batches::new(netlink);
        for rule in &self.delete_rules {
            deletions.push(|batch| batch.delete_rule(rule));
        }
        for route in &self.delete_routes {
            deletions.push(|batch| batch.delete_copy(route));
        }
        deletions.send()
    }

    /// As [`RoutingChanges::apply`], for DEL: a route that the kernel refuses as the interface is now is only logged.
    pub(crate) fn give_back(&self, netlink: &Netlink) -> Result<()> {
        match self.apply(netlink) {
            Err(error) if ROUTE_REFUSED.contains(&Errno::from_raw(error.errno)) => {
                saved_settings::warn_not_restored(error);
                Ok(())
            }
            applied => applied,
        }
    }

    /// The changes that undo these.
    pub(crate) fn reversed(&self) -> RoutingChanges {
        RoutingChanges {
            add_rules: self.delete_rules.clone(),
            delete_rules: self.add_rules.clone(),
            add_routes: self.delete_routes.clone(),
            delete_routes: self.add_routes.clone(),
        }
    }
}

impl fmt::Display for RoutingChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.add_rules.len() + self.delete_rules.len();
        let routes = self.add_routes.len() + self.delete_routes.len();
        write!(f, "changes of {rules} routing rules and {routes} routes")
    }
}

/// Errors by which the kernel refuses a route for as long as the interface is as it is: it is down, or its address is gone.
const ROUTE_REFUSED: [Errno; 5] =
    [Errno::EINVAL, Errno::ENETDOWN, Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::ENODEV];

/// So many changes go in one message at most: the kernel acknowledges each, and the socket has to take the acknowledgements.
const MOST_AT_ONCE: usize = 100;

/// Changes that are sent in messages of [`MOST_AT_ONCE`]. A refusal does not stop those that come after it.
pub(crate) struct Batches<'a> {
    netlink: &'a Netlink,
    batch: Batch,
    pending: usize,
    refused: Option<Error>,
}

impl<'a> Batches<'a> {
    pub(crate) fn new(netlink: &'a Netlink) -> Batches<'a> {
        Batches { netlink, batch: Batch::new(), pending: 0, refused: None }
    }

    fn push(&mut self, add: impl FnOnce(&mut Batch)) {
        add(&mut self.batch);
        self.pending += 1;
        if self.pending == MOST_AT_ONCE {
            self.flush();
        }
    }

    /// Adds routes, so that they have the order in which the kernel listed them. It puts each IPv4 route in front of those to the
    /// same destination with the same priority, and each IPv6 route behind them. Routes that gateways may be reached by come
    /// first.
    pub(crate) fn add_routes(&mut self, routes: &[RouteCopy]) {
        let (ipv4, ipv6): (Vec<&RouteCopy>, Vec<&RouteCopy>) =
            routes.iter().partition(|route| route.route().dst.is_ipv4());
        for needs_gateway in [false, true] {
            for route in ipv4.iter().rev().chain(&ipv6) {
                if route.needs_gateway() == needs_gateway {
                    self.push(|batch| batch.add_copy_beside(route));
                }
            }
        }
    }

    fn flush(&mut self) {
        self.pending = 0;
        if let Err(error) = self.netlink.send(std::mem::take(&mut self.batch))
            && self.refused.is_none()
        {
            self.refused = Some(error);
        }
    }

    /// Sends the rest. The error is that of the first refusal.
    pub(crate) fn send(mut self) -> Result<()> {
        self.flush();
        match self.refused {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
