//! The allocation of addresses for one ADD.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::cooling::{Released, seconds};
use crate::error::{Error, ErrorKind};
use crate::files::Files;
use crate::ledger::Ledger;
use crate::range_set::RangeSet;
use crate::record::Record;
use crate::request::{Allocation, AllocationRequest, allocation, failed_for};

/// How many addresses are tried one by one before all records are read at once.
const TRIES: usize = 1000;

/// Allocates one address of each set, and can release them again.
pub(crate) struct Allocator<'a> {
    pub(crate) ledger: Ledger<'a>,
    pub(crate) files: &'a Files,
    pub(crate) request: &'a AllocationRequest,
    /// The addresses that are known to be released.
    pub(crate) released: Released,
    /// The addresses that this call has allocated, in the order of the sets.
    pub(crate) made: Vec<IpAddr>,
}

impl Allocator<'_> {
    /// Allocates the requested address of each set, or any address if none is requested.
    pub(crate) fn allocate(&mut self, wanted: &[Option<IpAddr>]) -> Result<Vec<Allocation>, Error> {
        let owner = &self.request.owner;
        let held = [self.ledger.held_by(owner)?, self.ledger.held_by(&owner.without_ifname())?].concat();
        self.refuse_second(&held)?;
        for (n, (set, wanted)) in self.request.sets.iter().zip(wanted).enumerate() {
            let outcome = match wanted {
                Some(wanted) => self.reserve_exactly(*wanted, set),
                None => self.reserve_any(n, set, &held),
            };
            outcome.map_err(|refusal| failed_for(n, refusal))?;
        }
        for (n, address) in self.made.iter().enumerate() {
            self.files.set_last_reserved(n, *address)?;
        }
        let mut allocated = Vec::with_capacity(self.made.len());
        for (address, set) in self.made.iter().zip(&self.request.sets) {
            if let Some(one) = allocation(*address, set) {
                allocated.push(one);
            }
        }
        Ok(allocated)
    }

    /// Releases the addresses that this call has allocated. Those of an earlier call for the same owner are not touched.
    pub(crate) fn roll_back(&mut self, log: fn(&str)) {
        for address in self.made.split_off(0) {
            if let Err(refusal) = self.ledger.undo(address, &self.request.owner) {
                log(&format!("{address} could not be released: {refusal}"));
            }
        }
    }

    /// Returns an error if the attachment holds an address of a set already, unless that was allocated before this boot.
    fn refuse_second(&self, held: &[Record]) -> Result<(), Error> {
        for (n, set) in self.request.sets.iter().enumerate() {
            for record in held {
                if !record.earlier_boot && set.contains(record.address) {
                    return Err(failed_for(n, self.duplicate(record.address)));
                }
            }
        }
        Ok(())
    }

    fn duplicate(&self, address: IpAddr) -> Error {
        let container = &self.request.owner.container;
        let text = format!("{address} has been allocated to {container}, duplicate allocation is not allowed");
        Error::new(ErrorKind::HoldsAlready, text).hint(format!(
            "this attachment exists already: DEL it before you add it again (the reservation is {})",
            self.files.path_of(address).display()
        ))
    }

    /// Allocates the requested address, if it is free or its owner is of an earlier boot.
    fn reserve_exactly(&mut self, wanted: IpAddr, set: &RangeSet) -> Result<(), Error> {
        let owner = self.request.owner.number();
        if let Some(left) = self.released.cools_for(wanted, owner)
            && self.files.read(wanted)?.is_none()
        {
            let text = format!("requested IP address {wanted} was released by another attachment a short while ago");
            return Err(Error::new(ErrorKind::Exhausted, text)
                .hint(format!("try again in {} s, when its cooldown has passed", seconds(left))));
        }
        if self.create(wanted)? {
            return Ok(());
        }
        let records = self.ledger.all()?;
        if let Some(holder) = records.iter().find(|record| record.address == wanted && record.earlier_boot)
            && (holder.owner == owner || self.released.is_boot_over())
            && self.take_over(holder)?
        {
            return Ok(());
        }
        let text = format!("requested IP address {wanted} is not available in range set {set}");
        let path = self.files.path_of(wanted);
        Err(Error::new(ErrorKind::Exhausted, text).hint(format!(
            "{} names the container that holds it: delete that container, or request another address",
            path.display()
        )))
    }

    /// Allocates any address: the one that the attachment had before this boot; otherwise the next one that is free and not known
    /// to be released; otherwise the one that was released first, after its cooldown; otherwise one that another attachment had
    /// before this boot.
    fn reserve_any(&mut self, n: usize, set: &RangeSet, held: &[Record]) -> Result<(), Error> {
        let gateways = self.request.gateways();
        for record in held.iter().filter(|record| set.contains(record.address) && !gateways.contains(&record.address)) {
            if self.take_over(record)? {
                return Ok(());
            }
        }
        let last = self.files.last_reserved(n);
        let released = self.released.addresses();
        let is_candidate = |address: &IpAddr| !gateways.contains(address) && !released.contains(address);
        let round = || set.round(last).filter(is_candidate);
        if self.reserve_first(round().take(TRIES))? {
            return Ok(());
        }
        // Of a small set, all others have been tried, and no record has to be read.
        let is_small = set.size(&[]) <= TRIES as u128;
        if is_small && self.reserve_rested(set, &gateways)? {
            return Ok(());
        }
        let records = self.ledger.all()?;
        let taken: HashSet<IpAddr> = records.iter().map(|record| record.address).collect();
        if self.reserve_first(round().filter(|address| !taken.contains(address)))? {
            return Ok(());
        }
        if !is_small && self.reserve_rested(set, &gateways)? {
            return Ok(());
        }
        // The set is full, so it has no more addresses than there are records.
        let mut earlier: HashMap<IpAddr, &Record> = HashMap::new();
        for record in records.iter().filter(|record| record.earlier_boot) {
            earlier.insert(record.address, record);
        }
        let is_over = self.released.is_boot_over();
        for address in set.round(last).filter(|address| is_over && !gateways.contains(address)) {
            if let Some(record) = earlier.get(&address)
                && self.take_over(record)?
            {
                return Ok(());
            }
        }
        Err(self.exhausted(set, &gateways, &records))
    }

    /// Allocates the free address of the set that was released first, if its cooldown has passed.
    fn reserve_rested(&mut self, set: &RangeSet, gateways: &HashSet<IpAddr>) -> Result<bool, Error> {
        let mut rested = self.released.rested();
        rested.retain(|address| set.contains(*address) && !gateways.contains(address));
        self.reserve_first(rested.into_iter())
    }

    /// Allocates the first candidate that is free; `false` if none is.
    fn reserve_first(&mut self, candidates: impl Iterator<Item = IpAddr>) -> Result<bool, Error> {
        for address in candidates {
            if self.create(address)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn create(&mut self, address: IpAddr) -> Result<bool, Error> {
        let created = self.ledger.create(address, &self.request.owner)?;
        if created {
            self.made.push(address);
        }
        Ok(created)
    }

    fn take_over(&mut self, record: &Record) -> Result<bool, Error> {
        let taken = self.ledger.take_over(record, &self.request.owner)?;
        if taken {
            self.made.push(record.address);
        }
        Ok(taken)
    }

    fn exhausted(&self, set: &RangeSet, gateways: &HashSet<IpAddr>, records: &[Record]) -> Error {
        let taken = records.iter().filter(|record| set.contains(record.address)).count();
        let gateways: Vec<IpAddr> = gateways.iter().copied().collect();
        let size = set.size(&gateways);
        let path = self.files.directory.resolved();
        let text = format!(
            "no IP addresses available in range set: {set} ({taken} of {size} are reserved, one file each in {})",
            path.display()
        );
        if let Some((count, left)) = self.cooling_of(set, records) {
            let text = format!("{text}; {count} are not given again yet because they were just released");
            return Error::new(ErrorKind::Exhausted, text).hint(format!(
                "the next one can be given in {} s; use a larger range or a shorter cooldown",
                seconds(left)
            ));
        }
        Error::new(ErrorKind::Exhausted, text).hint(
            "delete containers that have ended (each file names its container), configure GC in the runtime, or use a larger range",
        )
    }

    /// How many free addresses of the set are in their cooldown, and how long the first of them still is; `None` if none is.
    fn cooling_of(&self, set: &RangeSet, records: &[Record]) -> Option<(usize, Duration)> {
        let reserved: HashSet<IpAddr> = records.iter().map(|record| record.address).collect();
        let mut cooling = self.released.cooling();
        cooling.retain(|(address, _)| set.contains(*address) && !reserved.contains(address));
        let first = cooling.iter().map(|(_, left)| *left).min()?;
        Some((cooling.len(), first))
    }
}
