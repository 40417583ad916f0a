//! The limit of the rate at which the container's interface receives.

use std::fmt;

use cnikit_plan::{ApplyContext, Drifts, Kind, Made, ReleaseContext, Resource};
use cnikit_skel::{Journal, Result};

use crate::shaper::{CountedTraffic, RateLimit, host_end, root};

/// A limit of the rate at which the container's interface receives: a shaper at the root of the host end.
#[derive(Clone, Debug)]
pub struct IngressLimit {
    /// The container's interface.
    pub ifname: String,
    /// The limit; `None` lifts that of an earlier ADD.
    pub limit: Option<RateLimit>,
    /// What counts.
    pub counted: CountedTraffic,
}

/// DEL removes the shaper from the host end, which another plugin may leave where it is. For GC there is nothing to do: the shaper
/// goes with the host end.
pub const KIND: Kind = Kind { name: "ingress limit", release, sweep: |_| Ok(()), outlives_link: true };

impl Resource for IngressLimit {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        if self.limit.is_none() {
            return Ok(());
        }
        root::preflight(context.host()?, &host_end::of(context, &self.ifname)?)
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        if let Some(limit) = &self.limit {
            let link = host_end::of(context, &self.ifname)?;
            root::ensure(context.host()?, &link, limit, self.counted.of_ingress(), journal)?;
        } else if let Some(link) = host_end::to_lift(context, &self.ifname)? {
            root::lift(context.host()?, &link, journal)?;
        }
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(limit) = &self.limit else { return Ok(()) };
        let link = host_end::of(context, &self.ifname)?;
        root::verify(context.host()?, &link, limit, self.counted.of_ingress(), drifts)
    }
}

impl fmt::Display for IngressLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limit {
            Some(limit) => write!(f, "limit of traffic to {}: {limit}{}", self.ifname, self.counted),
            None => write!(f, "no limit of traffic to {}", self.ifname),
        }
    }
}

fn release(context: &ReleaseContext) -> Result<()> {
    let host = context.host()?;
    host_end::to_release(context)?.iter().try_for_each(|link| root::remove(host, link))
}
