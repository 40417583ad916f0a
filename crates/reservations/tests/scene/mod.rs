//! A store in a directory of its own, with helpers to call and inspect it.
#![expect(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cnikit_reservations::{Allocation, AllocationRequest, Boot, Error, Owner, RangeConfig, RangeSet, Store};
use tempfile::TempDir;

pub(crate) const BOOT: &str = "11111111-1111-1111-1111-111111111111";
pub(crate) const NEXT_BOOT: &str = "22222222-2222-2222-2222-222222222222";
pub(crate) const MACHINE: &str = "0123456789abcdef0123456789abcdef";

pub(crate) struct Scene {
    pub(crate) place: TempDir,
    pub(crate) store: Store,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let store = store_in(place.path().to_owned());
        Scene { place, store }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.place.path().join("net")
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.place.path().join(".idx/net")
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.dir()).unwrap();
        fs::write(self.dir().join(name), content).unwrap();
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.dir().join(name).exists()
    }

    /// The names of all files except those that are never removed, sorted.
    pub(crate) fn reserved(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir()).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "lock" && !name.starts_with("last_")).collect();
        names.sort();
        names
    }

    pub(crate) fn add(&self, container: &str, sets: &[RangeSet]) -> Result<String, Error> {
        self.want(container, sets, &[])
    }

    pub(crate) fn want(&self, container: &str, sets: &[RangeSet], wanted: &[&str]) -> Result<String, Error> {
        self.store.acquire(&request(container, sets, wanted)).map(|given| texts(&given))
    }

    pub(crate) fn del(&self, container: &str) -> usize {
        self.store.release(&Owner::new(container, "eth0")).unwrap().len()
    }

    pub(crate) fn reboot(&mut self, boot: &str, machine: Option<&str>) {
        self.store.boot = Boot::new(boot, machine);
    }
}

pub(crate) fn store_in(data_dir: PathBuf) -> Store {
    let boot = Boot::new(BOOT, Some(MACHINE));
    Store { data_dir, network: "net".into(), boot, cooling: None, timeout: Duration::from_secs(20), log: |_| {} }
}

/// A request without a cooldown, for these addresses or any.
pub(crate) fn request(container: &str, sets: &[RangeSet], wanted: &[&str]) -> AllocationRequest {
    AllocationRequest {
        owner: Owner::new(container, "eth0"),
        sets: sets.to_vec(),
        wanted: wanted.iter().map(|ip| ip.parse().unwrap()).collect(),
        cooldown: Duration::ZERO,
    }
}

pub(crate) fn texts(given: &[Allocation]) -> String {
    let texts: Vec<String> = given.iter().map(|one| one.address.to_string()).collect();
    texts.join(" ")
}

pub(crate) fn set(subnet: &str) -> RangeSet {
    part(subnet, "", "")
}

pub(crate) fn part(subnet: &str, start: &str, end: &str) -> RangeSet {
    let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
    let written = RangeConfig { subnet: subnet.parse().ok(), start: ip(start), end: ip(end), gateway: None };
    RangeSet::try_from(&[written][..]).unwrap()
}
