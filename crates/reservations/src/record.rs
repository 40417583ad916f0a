//! One slot of the index and its encoding.

use std::net::{IpAddr, Ipv6Addr};

use cnikit_store::Facts;

use crate::owner::number;

/// The entry of one reserved address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The number of the owner in the file ([`Owner::number`](crate::Owner)). If the content cannot be read: the number of the
    /// file's name.
    pub(crate) owner: u64,
    /// The address, which is the file's name.
    pub(crate) address: IpAddr,
    /// The inode number of the file.
    pub(crate) inode: u64,
    /// When the file was last changed (`st_ctime`), in nanoseconds.
    pub(crate) changed: u64,
    /// Whether it is proven that the file is older than this boot.
    pub(crate) earlier_boot: bool,
    /// Whether the content cannot be read, or does not name an owner.
    pub(crate) unreadable: bool,
}

/// One slot of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Every search ends here.
    Empty,
    /// The record was removed. A search continues, because a record behind it may have been added before that.
    Removed,
    /// The slot has a record.
    Full(Record),
    /// The checksum is wrong: a write was interrupted.
    Torn,
}

/// Bytes of a slot: owner 8, address 16 (IPv4 as `::ffff:a.b.c.d`), inode 8, changed 8, flags 4, checksum 4. All numbers are
/// little-endian. An empty slot is all zeros.
pub(crate) const SIZE: usize = 48;

/// The flags of a slot.
const REMOVED: u32 = 1;
const FULL: u32 = 2;
const EARLIER: u32 = 4;
const UNREADABLE: u32 = 8;

impl Record {
    /// The record of a file with these facts, readable and of this boot.
    pub(crate) fn new(owner: u64, address: IpAddr, facts: Facts) -> Record {
        let Facts { inode, changed, .. } = facts;
        Record { owner, address, inode, changed, earlier_boot: false, unreadable: false }
    }

    /// Whether a file with these facts is the recorded one, and has not been changed since.
    pub(crate) fn is_of(&self, facts: Facts) -> bool {
        facts.regular && self.inode == facts.inode && self.changed == facts.changed
    }

    fn flags(&self) -> u32 {
        let mut flags = FULL;
        if self.earlier_boot {
            flags |= EARLIER;
        }
        if self.unreadable {
            flags |= UNREADABLE;
        }
        flags
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
                record.flags()
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

/// The first `N` bytes of a slice, filled up with zeros if it is shorter.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let length = bytes.len().min(N);
    let mut array = [0; N];
    array[..length].copy_from_slice(&bytes[..length]);
    array
}

/// The checksum of bytes in the index, by which an interrupted write is detected.
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
