//! One ADD under way.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use crate::error::{Error, ErrorKind};
use crate::files::Files;
use crate::ledger::Ledger;
use crate::range_set::RangeSet;
use crate::record::Record;
use crate::request::{Allocation, AllocationRequest, allocation, failed_for};

/// So many taken addresses are tried one by one before all records are fetched at once.
const TRIES: usize = 1000;

/// Takes an address of each set, and remembers what it took until all is done.
pub(crate) struct Taker<'a> {
    pub(crate) ledger: Ledger<'a>,
    pub(crate) files: &'a Files,
    pub(crate) request: &'a AllocationRequest,
    /// What this call took so far, in the order of the sets.
    pub(crate) made: Vec<IpAddr>,
}

impl Taker<'_> {
    /// Takes the wanted address of each set, or any.
    pub(crate) fn take(&mut self, wanted: &[Option<IpAddr>]) -> Result<Vec<Allocation>, Error> {
        let owner = &self.request.owner;
        let held = [self.ledger.held_by(owner)?, self.ledger.held_by(&owner.bare())?].concat();
        self.refuse_second(&held)?;
        for (n, (set, wanted)) in self.request.sets.iter().zip(wanted).enumerate() {
            let taken = match wanted {
                Some(wanted) => self.exactly(*wanted, set),
                None => self.any(n, set, &held),
            };
            taken.map_err(|refusal| failed_for(n, refusal))?;
        }
        for (n, address) in self.made.iter().enumerate() {
            self.files.set_last_reserved(n, *address)?;
        }
        let allocated = self.made.iter().zip(&self.request.sets).filter_map(|(address, set)| allocation(*address, set));
        Ok(allocated.collect())
    }

    /// Removes what this call made, by name: what an earlier call of the same owner made stays.
    pub(crate) fn put_back(&mut self, log: fn(&str)) {
        for address in self.made.split_off(0) {
            if let Err(refusal) = self.ledger.undo(address, &self.request.owner) {
                log(&format!("{address} could not be freed again: {refusal}"));
            }
        }
    }

    /// An attachment that holds an address of a set already is refused whatever it asks for, unless that was before this
    /// boot.
    fn refuse_second(&self, held: &[Record]) -> Result<(), Error> {
        let of_now = held.iter().filter(|record| !record.earlier_boot).map(|record| record.address);
        let found = self.request.sets.iter().enumerate().find_map(|(n, set)| {
            let address = of_now.clone().find(|address| set.contains(*address))?;
            Some((n, address))
        });
        let Some((n, address)) = found else { return Ok(()) };
        let container = &self.request.owner.container;
        let text = format!("{address} has been allocated to {container}, duplicate allocation is not allowed");
        let refusal = Error::new(ErrorKind::HoldsAlready, text).hint(format!(
            "this attachment exists already: DEL it before it is added again (the reservation is {})",
            self.files.path_of(address).display()
        ));
        Err(failed_for(n, refusal))
    }

    /// The wanted address: it is free, or its holder is of an earlier boot.
    fn exactly(&mut self, wanted: IpAddr, set: &RangeSet) -> Result<(), Error> {
        if self.create(wanted)? {
            return Ok(());
        }
        let records = self.ledger.all()?;
        let holder = records.iter().find(|record| record.address == wanted && record.earlier_boot);
        if holder.map_or(Ok(false), |holder| self.take_over(holder))? {
            return Ok(());
        }
        let text = format!("requested IP address {wanted} is not available in range set {set}");
        let path = self.files.path_of(wanted);
        Err(Error::new(ErrorKind::Exhausted, text)
            .hint(format!("{} says which container holds it: delete that, or request another", path.display())))
    }

    /// Any address: the one that the attachment had before this boot, the next free one, or one that another had then.
    fn any(&mut self, n: usize, set: &RangeSet, held: &[Record]) -> Result<(), Error> {
        let gateways = self.request.gateways();
        for record in held.iter().filter(|record| set.contains(record.address) && !gateways.contains(&record.address)) {
            if self.take_over(record)? {
                return Ok(());
            }
        }
        let last = self.files.last_reserved(n);
        let round = || set.round(last).filter(|address| !gateways.contains(address));
        if self.first(round().take(TRIES))? {
            return Ok(());
        }
        let records = self.ledger.all()?;
        let taken: HashSet<IpAddr> = records.iter().map(|record| record.address).collect();
        if self.first(round().filter(|address| !taken.contains(address)))? {
            return Ok(());
        }
        // The set is full, so going round it takes no longer than reading all records did.
        let left = records.iter().filter(|record| record.earlier_boot).map(|record| (record.address, record)).collect();
        if self.left_over(round(), &left)? { Ok(()) } else { Err(self.exhausted(set, &gateways, &records)) }
    }

    fn first(&mut self, mut candidates: impl Iterator<Item = IpAddr>) -> Result<bool, Error> {
        candidates
            .find_map(|address| self.create(address).map(|created| created.then_some(true)).transpose())
            .unwrap_or(Ok(false))
    }

    fn left_over(
        &mut self,
        mut candidates: impl Iterator<Item = IpAddr>,
        left: &HashMap<IpAddr, &Record>,
    ) -> Result<bool, Error> {
        let mut take = |record| self.take_over(record).map(|taken| taken.then_some(true)).transpose();
        candidates.find_map(|address| left.get(&address).and_then(|record| take(record))).unwrap_or(Ok(false))
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
            "no IP addresses available in range set: {set} ({taken} of {size} are taken; a file each in {})",
            path.display()
        );
        Error::new(ErrorKind::Exhausted, text).hint(
            "delete containers that are gone (each file names its container), have the runtime call GC, or give a larger range",
        )
    }
}
