//! The request of an ADD.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::error::Error;
use crate::owner::Owner;
use crate::range_set::RangeSet;

/// A request for one address of each set, for one attachment.
#[derive(Clone, Debug)]
pub struct AllocationRequest {
    /// The attachment that gets the addresses.
    pub owner: Owner,
    /// The sets of ranges; not empty.
    pub sets: Vec<RangeSet>,
    /// Requested addresses, in order; each must be in a set of its own.
    pub wanted: Vec<IpAddr>,
    /// How long a released address is not given to another attachment. Only addresses that are in the store's
    /// [`cooling`](crate::Store::cooling) file are known to be released.
    pub cooldown: Duration,
}

/// One allocated address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The address with the prefix length of its subnet.
    pub address: IpNetwork,
    /// The gateway of its range.
    pub gateway: IpAddr,
}

impl AllocationRequest {
    /// Assigns the requested addresses to the sets, before any file is read.
    ///
    /// # Errors
    /// A requested address is a gateway, no set contains it, or its set already has another requested address (all `Value`).
    pub fn assign(&self) -> Result<Vec<Option<IpAddr>>, Error> {
        let mut seen = HashSet::new();
        let mut pending: Vec<IpAddr> = self.wanted.iter().map(IpAddr::to_canonical).collect();
        pending.retain(|wanted| seen.insert(*wanted));
        let mut assigned = Vec::with_capacity(self.sets.len());
        for set in &self.sets {
            let found = pending.iter().position(|wanted| set.contains(*wanted));
            assigned.push(found.map(|at| pending.remove(at)));
        }
        for (n, (set, wanted)) in self.sets.iter().zip(&assigned).enumerate() {
            self.refuse_gateway(*wanted, set).map_err(|refusal| failed_for(n, refusal))?;
        }
        if pending.is_empty() { Ok(assigned) } else { Err(self.left_over(&pending)) }
    }

    /// The addresses that would be allocated if none were reserved, one per set; reads no file.
    ///
    /// # Errors
    /// As [`AllocationRequest::assign`].
    pub fn example(&self) -> Result<Vec<Allocation>, Error> {
        let gateways = self.gateways();
        let mut example = Vec::new();
        for (set, wanted) in self.sets.iter().zip(self.assign()?) {
            if let Some(address) = wanted.or_else(|| set.round(None).find(|ip| !gateways.contains(ip)))
                && let Some(one) = allocation(address, set)
            {
                example.push(one);
            }
        }
        Ok(example)
    }

    /// The gateways of all sets. None of them is ever allocated, not even from another range.
    pub(crate) fn gateways(&self) -> HashSet<IpAddr> {
        self.sets.iter().flat_map(RangeSet::gateways).collect()
    }

    fn refuse_gateway(&self, wanted: Option<IpAddr>, set: &RangeSet) -> Result<(), Error> {
        match wanted {
            Some(wanted) if self.gateways().contains(&wanted) => {
                Err(Error::value(format!("requested ip {wanted} is subnet's gateway"))
                    .hint(format!("request another address of {set}, or configure another `gateway`")))
            }
            _ => Ok(()),
        }
    }

    fn left_over(&self, pending: &[IpAddr]) -> Error {
        let addresses: Vec<String> = pending.iter().map(ToString::to_string).collect();
        let sets: Vec<String> = self.sets.iter().map(ToString::to_string).collect();
        Error::value(format!("failed to allocate all requested IPs: {}", addresses.join(" ")))
            .hint(format!("a container gets one address of each range set: request at most one of {}", sets.join("; ")))
    }
}

/// Adds the set to the error of an allocation.
pub(crate) fn failed_for(set: usize, refusal: Error) -> Error {
    refusal.within(format_args!("failed to allocate for range {set}"))
}

/// An address of a set with the prefix and the gateway of its range; `None` if no range contains it.
pub(crate) fn allocation(address: IpAddr, set: &RangeSet) -> Option<Allocation> {
    let range = set.range_of(address)?;
    let address = IpNetwork::new(address, range.subnet().prefix()).ok()?;
    Some(Allocation { address, gateway: range.gateway() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::RangeConfig;

    fn set(subnet: &str) -> RangeSet {
        RangeSet::try_from(&[RangeConfig { subnet: subnet.parse().ok(), ..RangeConfig::default() }][..]).unwrap()
    }

    fn request(wanted: &[&str]) -> AllocationRequest {
        let wanted = wanted.iter().map(|ip| ip.parse().unwrap()).collect();
        let sets = vec![set("10.1.0.0/24"), set("2001:db8::/64"), set("10.2.0.0/24")];
        AllocationRequest { owner: Owner::new("c", "eth0"), sets, wanted, cooldown: Duration::ZERO }
    }

    fn assigned(wanted: &[&str]) -> Result<String, Error> {
        let assigned = request(wanted).assign()?;
        let texts: Vec<String> = assigned.iter().map(|ip| ip.map_or("-".into(), |ip| ip.to_string())).collect();
        Ok(texts.join(" "))
    }

    #[test]
    fn each_set_takes_the_first_wanted_address_that_it_contains() {
        assert_eq!(assigned(&[]).unwrap(), "- - -");
        assert_eq!(assigned(&["10.2.0.9", "10.1.0.9"]).unwrap(), "10.1.0.9 - 10.2.0.9");
        assert_eq!(assigned(&["10.1.0.9", "::ffff:10.1.0.9", "2001:db8::9"]).unwrap(), "10.1.0.9 2001:db8::9 -");
    }

    #[test]
    fn an_example_has_the_wanted_addresses_and_the_first_of_the_other_sets() {
        let example = request(&["10.2.0.9"]).example().unwrap();
        let texts: Vec<String> = example.iter().map(|one| format!("{} {}", one.address, one.gateway)).collect();
        assert_eq!(texts, ["10.1.0.2/24 10.1.0.1", "2001:db8::2/64 2001:db8::1", "10.2.0.9/24 10.2.0.1"]);
        assert!(request(&["192.0.2.1"]).example().is_err());
    }

    /// A comparison of each address with each other took minutes.
    #[test]
    fn half_a_million_wanted_addresses_are_compared_in_seconds() {
        let many: Vec<IpAddr> = (0..500_000).map(|n| std::net::Ipv4Addr::from(0x0a01_0000 + n).into()).collect();
        let request = AllocationRequest {
            owner: Owner::new("c", "eth0"),
            sets: vec![set("10.2.0.0/24")],
            wanted: many,
            cooldown: Duration::ZERO,
        };
        let began = std::time::Instant::now();
        assert!(request.assign().is_err());
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn a_wanted_address_outside_all_sets_is_refused_before_any_change() {
        let refused = |wanted: &[&str]| assigned(wanted).unwrap_err().text;
        assert_eq!(
            refused(&["10.1.0.8", "10.1.0.9", "192.0.2.1"]),
            "failed to allocate all requested IPs: 10.1.0.9 192.0.2.1"
        );
        assert_eq!(refused(&["10.2.0.1"]), "failed to allocate for range 2: requested ip 10.2.0.1 is subnet's gateway");
    }
}
