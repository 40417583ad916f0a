//! One line of the index.

use std::net::{IpAddr, Ipv6Addr};

use cnikit_store::Facts;

use crate::owner::number;

/// What the index remembers of one address's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number of the owner that the file names; of the file's name if its content cannot be read.
    pub(crate) owner: u64,
    /// The address, which is the file's name.
    pub(crate) address: IpAddr,
    /// Which file it was, in which state.
    pub(crate) inode: u64,
    /// Which file it was, in which state.
    pub(crate) changed: u64,
    /// Proven: it was there before this boot.
    pub(crate) earlier_boot: bool,
    /// The content names no owner.
    pub(crate) unreadable: bool,
}

/// One slot of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Never used: a search ends here.
    Empty,
    /// Was used: a search goes on.
    Removed,
    /// In use.
    Full(Record),
    /// Its checksum is wrong.
    Torn,
}

/// Bytes of a slot: owner 8, address 16, inode 8, changed 8, flags 4, checksum 4.
pub(crate) const SIZE: usize = 48;

const REMOVED: u32 = 1;
const FULL: u32 = 2;
const EARLIER: u32 = 4;
const UNREADABLE: u32 = 8;

impl Record {
    pub(crate) fn new(owner: u64, address: IpAddr, facts: Facts) -> Record {
        let Facts { inode, changed, .. } = facts;
        Record { owner, address, inode, changed, earlier_boot: false, unreadable: false }
    }

    /// Is the file still the one that this was noted of, untouched?
    pub(crate) fn is_of(&self, facts: Facts) -> bool {
        facts.regular && (self.inode, self.changed) == (facts.inode, facts.changed)
    }
}

impl Slot {
    pub(crate) fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let flags = match self {
            Slot::Empty | Slot::Torn => return bytes,
            Slot::Removed => REMOVED,
            Slot::Full(record) => {
                bytes[..8].copy_from_slice(&record.owner.to_le_bytes());
                bytes[8..24].copy_from_slice(&as_v6(record.address).octets());
                bytes[24..32].copy_from_slice(&record.inode.to_le_bytes());
                bytes[32..40].copy_from_slice(&record.changed.to_le_bytes());
                let mark = |flag, set| if set { flag } else { 0 };
                FULL | mark(EARLIER, record.earlier_boot) | mark(UNREADABLE, record.unreadable)
            }
        };
        bytes[40..44].copy_from_slice(&flags.to_le_bytes());
        let sum = checksum(&bytes[..44]);
        bytes[44..].copy_from_slice(&sum);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Slot {
        if bytes.iter().all(|byte| *byte == 0) {
            return Slot::Empty;
        }
        if bytes.len() != SIZE || checksum(&bytes[..44]) != bytes[44..] {
            return Slot::Torn;
        }
        let flags = u32::from_le_bytes(array(&bytes[40..44]));
        if flags & FULL == 0 {
            return Slot::Removed;
        }
        Slot::Full(Record {
            owner: u64::from_le_bytes(array(&bytes[..8])),
            address: IpAddr::from(Ipv6Addr::from(array::<16>(&bytes[8..24]))).to_canonical(),
            inode: u64::from_le_bytes(array(&bytes[24..32])),
            changed: u64::from_le_bytes(array(&bytes[32..40])),
            earlier_boot: flags & EARLIER != 0,
            unreadable: flags & UNREADABLE != 0,
        })
    }
}

/// The first bytes of a slice, zeros where it is shorter.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    array
}

/// Tells a torn write from a whole one.
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 4] {
    array(&number(bytes).to_le_bytes())
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(address: &str) -> Record {
        let facts = Facts { inode: 7, changed: 9, size: 1, regular: true };
        Record { earlier_boot: true, ..Record::new(5, address.parse().unwrap(), facts) }
    }

    #[test]
    fn a_slot_comes_back_from_its_bytes() {
        for slot in [Slot::Empty, Slot::Removed, Slot::Full(record("10.1.2.3")), Slot::Full(record("2001:db8::1"))] {
            assert_eq!(Slot::parse(&slot.to_bytes()), slot);
        }
    }

    #[test]
    fn a_slot_with_any_bit_turned_is_torn() {
        let bytes = Slot::Full(record("10.1.2.3")).to_bytes();
        for bit in 0..SIZE * 8 {
            let mut torn = bytes;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::parse(&torn), Slot::Torn, "bit {bit}");
        }
    }
}
