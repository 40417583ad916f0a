//! Leases on the disk: one file each, which is there before the lease is reported, and until it is given back.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;

use cnikit_dhcp::v4::{ClientOptions, Lease};
use cnikit_dhcp::v6::{Client6Settings, Lease6};
use cnikit_netlink::{Link, Mac};
use cnikit_store::{Directory, Error};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::protocol::{LeaseFamily, LeaseOwner};
use crate::uplink::Uplink;

/// The default directory of the records.
pub const RECORDS: &str = "/var/lib/cni/dhcp";
/// The version of the format that is written, and the only one that is read.
const FORMAT: u64 = 1;
/// The largest file that is read, in bytes.
const LIMIT: usize = 1 << 20;
pub(crate) const MODE: u32 = 0o600;
pub(crate) const DIRECTORY_MODE: u32 = 0o700;
/// The families of leases.
const FAMILIES: [LeaseFamily; 2] = [LeaseFamily::V4, LeaseFamily::V6];

/// A lease with what is needed to go on with it after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u64,
    pub(crate) owner: LeaseOwner,
    pub(crate) place: Place,
    /// The link of the host below the interface.
    #[serde(default)]
    pub(crate) uplink: Option<Uplink>,
    pub(crate) options: ClientOptions,
    pub(crate) mtu: bool,
    /// The MTU that the interface had, if a lease has lowered it.
    #[serde(default)]
    pub(crate) lowered_mtu: Option<LoweredMtu>,
    pub(crate) priority: Option<u32>,
    /// The last lease. Its times are those of the boot's clock.
    pub(crate) lease: Lease,
}

/// A change of the interface's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoweredMtu {
    /// The MTU before the first change.
    pub(crate) from: u32,
    /// The MTU that was set last.
    pub(crate) to: u32,
}

/// The same of IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record6 {
    pub(crate) version: u64,
    pub(crate) owner: LeaseOwner,
    pub(crate) place: Place,
    /// The link of the host below the interface.
    pub(crate) uplink: Option<Uplink>,
    /// Who the client is to servers: it has to be the same after a restart.
    pub(crate) settings: Client6Settings,
    /// The last lease. Its times are those of the boot's clock.
    pub(crate) lease: Lease6,
}

/// A record of either family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredRecord {
    V4(Record),
    V6(Record6),
}

/// What is written to a file.
pub(crate) trait Recorded: Serialize {
    const FAMILY: LeaseFamily;

    fn owner(&self) -> &LeaseOwner;
}

/// Where the interface is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The path of the namespace.
    pub(crate) netns: String,
    /// The namespace's cookie, and the boot in which it exists.
    pub(crate) cookie: u64,
    pub(crate) boot: String,
    /// The interface.
    pub(crate) link: String,
    pub(crate) index: u32,
    pub(crate) mac: Mac,
}

impl Place {
    /// Whether both are the same interface. Its name, its hardware address and the path of its namespace may differ.
    pub(crate) fn is_same(&self, other: &Place) -> bool {
        (self.cookie, self.index) == (other.cookie, other.index) && self.boot == other.boot
    }

    /// Takes over the name and the hardware address that the interface has now. Returns whether the latter is another one.
    pub(crate) fn adopt(&mut self, link: &Link) -> bool {
        self.link.clone_from(&link.name);
        match link.mac {
            Some(mac) if mac != self.mac && !mac.is_zero() => {
                self.mac = mac;
                true
            }
            _ => false,
        }
    }
}

/// The content of the directory.
#[derive(Debug)]
pub(crate) struct StoredLeases {
    /// Every record, with whether its lease is to be given back.
    pub(crate) records: Vec<(StoredRecord, bool)>,
    /// For each file that cannot be used, why.
    pub(crate) unusable: Vec<String>,
}

/// The directory of the records.
#[derive(Debug)]
pub struct LeaseRecords {
    directory: Directory,
}

impl LeaseRecords {
    /// Opens the directory, and makes it if it does not exist.
    ///
    /// # Errors
    /// It cannot be opened or made.
    pub fn open(path: &Path) -> Result<LeaseRecords, Error> {
        let directory = Directory::make_durably(path, DIRECTORY_MODE)?;
        directory.discard_unfinished()?;
        Ok(LeaseRecords { directory })
    }

    /// Notes that the owner's leases are to be given back as soon as a daemon runs. Without a lease nothing is noted.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn note_release(&self, owner: &LeaseOwner) -> Result<(), Error> {
        for family in FAMILIES {
            let [record, note] = names(owner, family);
            if self.directory.facts(&record)?.is_some() {
                self.directory.replace_durably(&note, b"", MODE)?;
            }
        }
        Ok(())
    }

    /// Notes the same for the leases of this network whose owners are not among the valid ones (container and interface).
    ///
    /// # Errors
    /// The records cannot be read, or a note cannot be written.
    pub fn note_garbage(&self, network: &str, valid: &[(String, String)]) -> Result<(), Error> {
        for (record, _) in self.read_all()?.records {
            if record.owner().is_garbage(network, valid) {
                self.note_release(record.owner())?;
            }
        }
        Ok(())
    }

    /// Writes the record; a power cut after this does not take it back.
    pub(crate) fn write<R: Recorded>(&self, record: &R) -> Result<(), Error> {
        let text = serde_json::to_vec(record).unwrap_or_default();
        let [name, note] = names(record.owner(), R::FAMILY);
        // A note that is still there is about a lease before this one.
        self.directory.remove(&note)?;
        self.directory.replace_durably(&name, &text, MODE)
    }

    /// Removes the record and a note about it.
    pub(crate) fn remove(&self, owner: &LeaseOwner, family: LeaseFamily) -> Result<(), Error> {
        for name in names(owner, family) {
            self.directory.remove(&name)?;
        }
        Ok(())
    }

    /// All records.
    pub(crate) fn read_all(&self) -> Result<StoredLeases, Error> {
        let mut records = Vec::new();
        let mut unusable = Vec::new();
        for file in self.directory.list()? {
            let Some(file) = file.to_str() else { continue };
            let Some(family) = FAMILIES.into_iter().find(|family| file.ends_with(ends(*family)[0])) else { continue };
            match self.read(file, family) {
                Ok(Some(record)) => {
                    let [_, note] = names(record.owner(), family);
                    let is_released = self.directory.facts(&note)?.is_some();
                    records.push((record, is_released));
                }
                Ok(None) => {}
                Err(why) => unusable.push(format!("{file} is not used: {why}")),
            }
        }
        Ok(StoredLeases { records, unusable })
    }

    fn read(&self, file: &str, family: LeaseFamily) -> Result<Option<StoredRecord>, String> {
        let Some((content, _)) = self.directory.read(file, LIMIT).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let whole: serde_json::Value = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
        let version = whole.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(FORMAT) {
            return Err(format!("it has version {version:?}, and this release reads version {FORMAT}"));
        }
        let record = match family {
            LeaseFamily::V4 => serde_json::from_value(whole).map(StoredRecord::V4),
            LeaseFamily::V6 => serde_json::from_value(whole).map(StoredRecord::V6),
        };
        record.map(Some).map_err(|error| error.to_string())
    }
}

impl StoredRecord {
    pub(crate) fn owner(&self) -> &LeaseOwner {
        match self {
            StoredRecord::V4(record) => &record.owner,
            StoredRecord::V6(record) => &record.owner,
        }
    }

    pub(crate) fn place(&self) -> &Place {
        match self {
            StoredRecord::V4(record) => &record.place,
            StoredRecord::V6(record) => &record.place,
        }
    }

    pub(crate) fn place_mut(&mut self) -> &mut Place {
        match self {
            StoredRecord::V4(record) => &mut record.place,
            StoredRecord::V6(record) => &mut record.place,
        }
    }

    /// The addresses of the lease.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        match self {
            StoredRecord::V4(record) => vec![record.lease.address.into()],
            StoredRecord::V6(record) => record.lease.addresses.iter().map(|one| one.address.into()).collect(),
        }
    }

    pub(crate) fn family(&self) -> LeaseFamily {
        match self {
            StoredRecord::V4(_) => LeaseFamily::V4,
            StoredRecord::V6(_) => LeaseFamily::V6,
        }
    }
}

impl Recorded for Record {
    const FAMILY: LeaseFamily = LeaseFamily::V4;

    fn owner(&self) -> &LeaseOwner {
        &self.owner
    }
}

impl Recorded for Record6 {
    const FAMILY: LeaseFamily = LeaseFamily::V6;

    fn owner(&self) -> &LeaseOwner {
        &self.owner
    }
}

impl Record {
    pub(crate) const FORMAT: u64 = FORMAT;
}

impl Record6 {
    pub(crate) const FORMAT: u64 = FORMAT;
}

/// The ends of the names of a record and of a note that its lease is to be given back. Earlier releases read `.json` only.
fn ends(family: LeaseFamily) -> [&'static str; 2] {
    match family {
        LeaseFamily::V4 => [".json", ".released"],
        LeaseFamily::V6 => [".v6", ".v6-released"],
    }
}

/// The names of an owner's record, and of the note about it.
fn names(owner: &LeaseOwner, family: LeaseFamily) -> [String; 2] {
    let name = name(owner);
    ends(family).map(|end| format!("{name}{end}"))
}

/// The name of an owner's files, without their end.
fn name(owner: &LeaseOwner) -> String {
    let mut name = String::new();
    for byte in &Sha256::digest(owner.id())[..16] {
        let _ = write!(name, "{byte:02x}"); // writing to a text does not fail
    }
    name
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use cnikit_dhcp::v4::{LeaseTimes, Parameters, client_id};
    use cnikit_dhcp::v6::Lease6Address;

    pub(crate) fn record(container: &str) -> Record {
        let owner = LeaseOwner { container: container.into(), network: "n".into(), ifname: "eth0".into() };
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let times = LeaseTimes { renewal: Duration::MAX, rebinding: Duration::MAX, expiry: None };
        let (netns, boot, link) = ("/run/netns/x".into(), "b".into(), "eth0".into());
        Record {
            version: FORMAT,
            options: ClientOptions::new(client_id(&owner.id())),
            owner,
            place: Place { netns, cookie: u64::MAX, boot, link, index: 2, mac },
            uplink: None,
            mtu: true,
            lowered_mtu: None,
            priority: None,
            lease: Lease {
                address: Ipv4Addr::new(10, 0, 0, 5),
                server: Ipv4Addr::new(10, 0, 0, 1),
                server_mac: mac,
                since: Duration::from_millis(1_234_567),
                times,
                parameters: Parameters { dns: vec![Ipv4Addr::new(10, 0, 0, 53)], ..Parameters::default() },
            },
        }
    }

    fn record6(container: &str) -> Record6 {
        let Record { owner, place, .. } = record(container);
        let one = Lease6Address {
            address: "fd00::5".parse().unwrap(),
            preferred: Duration::from_secs(7),
            valid: Duration::MAX,
        };
        Record6 {
            version: FORMAT,
            settings: Client6Settings::of(&owner.id()),
            owner,
            place,
            uplink: None,
            lease: Lease6 {
                server: vec![0, 1, 255],
                addresses: vec![one],
                since: Duration::from_millis(1_234_567),
                renewal: Duration::MAX,
                rebinding: Duration::MAX,
                dns: Vec::new(),
                search: vec!["example.com".to_owned()],
            },
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = LeaseRecords::open(dir.path()).unwrap();
        let [one, two] = ["one", "two"].map(record);
        records.write(&one).unwrap();
        records.write(&two).unwrap();
        let three = record6("three");
        records.write(&three).unwrap();
        records.note_release(&two.owner).unwrap();
        records.note_release(&record("none").owner).unwrap();
        let StoredLeases { records: mut found, unusable } = records.read_all().unwrap();
        found.sort_by_key(|(record, _)| record.owner().clone());
        let of_v4 = |record: &Record| StoredRecord::V4(record.clone());
        assert_eq!(found, [(of_v4(&one), false), (StoredRecord::V6(three), false), (of_v4(&two), true)]);
        assert!(unusable.is_empty());
        records.note_garbage("n", &[]).unwrap();
        assert!(records.read_all().unwrap().records.iter().all(|(_, is_released)| *is_released));
        for (record, _) in found {
            records.remove(record.owner(), record.family()).unwrap();
            records.remove(record.owner(), record.family()).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A DEL that was killed has left a note, and the container was made anew.
    #[test]
    fn a_note_about_a_lease_before_is_not_about_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let records = LeaseRecords::open(dir.path()).unwrap();
        let one = record("one");
        records.write(&one).unwrap();
        records.note_release(&one.owner).unwrap();
        records.write(&one).unwrap();
        assert_eq!(records.read_all().unwrap().records, [(StoredRecord::V4(one), false)]);
    }

    #[test]
    fn what_cannot_be_read_is_named_and_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let records = LeaseRecords::open(dir.path()).unwrap();
        records.write(&record("one")).unwrap();
        std::fs::write(dir.path().join("a.json"), "{").unwrap();
        std::fs::write(dir.path().join("b.json"), r#"{"version":2}"#).unwrap();
        std::fs::create_dir(dir.path().join("c.json")).unwrap();
        std::fs::write(dir.path().join("notes"), "").unwrap();
        let StoredLeases { records: found, unusable } = records.read_all().unwrap();
        assert_eq!((found.len(), unusable.len()), (1, 3), "{unusable:?}");
    }
}
