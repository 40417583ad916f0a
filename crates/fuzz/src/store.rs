//! Fuzz target: host-local's directory and its index, with any files in them.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use cnikit_reservations::{AllocationRequest, Boot, Owner, RangeConfig, RangeSet, Store};
use tempfile::TempDir;

/// The configured range: it has the addresses 10.0.0.1 to 10.0.0.6, of which the first is the gateway.
const SUBNET: &str = "10.0.0.0/29";
const MACHINE: &str = "0123456789abcdef0123456789abcdef";

/// A model of the store: what its replies imply.
struct StoreModel {
    dir: TempDir,
    /// The owner of each address that was reserved since the last boot.
    owners: BTreeMap<IpAddr, Owner>,
    /// The number of the current boot.
    boot: u32,
}

/// Runs random steps: calls of the store, writes of programs that ignore the lock, and power cuts.
pub(crate) fn run(data: &[u8]) {
    let dir = TempDir::new().expect("there is a temporary directory");
    let mut model = StoreModel { dir, owners: BTreeMap::new(), boot: 1 };
    let mut bytes = Unstructured::new(data);
    for _ in 0..32 {
        if bytes.is_empty() || model.step(&mut bytes).is_err() {
            return;
        }
    }
}

impl StoreModel {
    fn store(&self) -> Store {
        Store {
            data_dir: self.dir.path().to_owned(),
            network: "net".into(),
            boot: Boot::new(&format!("{:032x}", self.boot), Some(MACHINE)),
            cooling: None,
            timeout: Duration::from_secs(1),
            log: |_| {},
        }
    }

    fn network(&self) -> PathBuf {
        let path = self.dir.path().join("net");
        fs::create_dir_all(&path).expect("it can be made");
        path
    }

    fn index(&self) -> PathBuf {
        self.dir.path().join(".idx/net")
    }

    fn step(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        match bytes.int_in_range(0..=8)? {
            0..=2 => self.acquire(owner(bytes)?),
            3 => self.release(&owner(bytes)?),
            4 => self.confirm(&owner(bytes)?),
            5 => self.sweep(&owner(bytes)?),
            6 => self.write_foreign_file(bytes)?,
            7 => self.damage_index(bytes)?,
            _ => self.power_cut(bytes)?,
        }
        Ok(())
    }

    fn acquire(&mut self, owner: Owner) {
        let range = RangeConfig { subnet: SUBNET.parse().ok(), ..RangeConfig::default() };
        let sets = vec![RangeSet::try_from(&[range][..]).expect("the range is one")];
        let before = self.files();
        let given = self.store().acquire(&AllocationRequest {
            owner: owner.clone(),
            sets,
            wanted: Vec::new(),
            cooldown: Duration::ZERO,
        });
        let Ok(given) = given else {
            assert_eq!(durable(&before), durable(&self.files()), "a refusal leaves all as it was");
            return;
        };
        assert_eq!(given.len(), 1);
        let address = given[0].address.ip();
        assert_eq!(self.owners.insert(address, owner.clone()), None, "{address} was held already");
        let content = format!("{}\r\n{}", owner.container, owner.ifname.unwrap_or_default());
        assert_eq!(self.files().get(&address.to_string()), Some(&content.into_bytes()));
    }

    fn release(&mut self, owner: &Owner) {
        let before = self.files();
        let freed = self.store().release(owner).expect("a release succeeds");
        self.owners.retain(|_, holder| holder != owner);
        assert_eq!(self.reservations().find(|(_, content)| *content == text(owner)), None, "{owner} released all");
        self.assert_only_removed(&before, &freed);
    }

    fn confirm(&self, owner: &Owner) {
        let held: Vec<IpAddr> = self.owners.iter().filter(|(_, holder)| *holder == owner).map(|(ip, _)| *ip).collect();
        let confirmed = self.store().confirm(owner, &held);
        assert!(confirmed.is_ok() || held.is_empty(), "{held:?} of {owner}: {confirmed:?}");
    }

    fn sweep(&mut self, valid: &Owner) {
        let before = self.files();
        let freed = self.store().sweep(std::slice::from_ref(valid)).expect("a sweep succeeds");
        assert!(freed.iter().all(|address| self.owners.get(address) != Some(valid)), "{valid} stays: {freed:?}");
        self.owners.retain(|_, holder| holder == valid);
        self.assert_only_removed(&before, &freed);
        let named = |content: &[u8]| content.starts_with(b"c") && content.ends_with(b"\r\neth0");
        let stale = self.reservations().find(|(_, content)| named(content) && *content != text(valid));
        assert_eq!(stale, None, "what is not valid is gone");
    }

    /// Writes or removes a file of the directory, as a program does that ignores lock and index.
    fn write_foreign_file(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        const NAMES: [&str; 12] = [
            "10.0.0.2",
            "10.0.0.3",
            "10.0.0.4",
            "10.0.0.5",
            "10.0.0.6",
            "10.0.0.7",
            "2001:db8::1",
            "2001:DB8::1",
            "last_reserved_ip.0",
            "last_reserved_ip.1",
            "notes",
            "10.0.0.2.bak",
        ];
        let name = *bytes.choose(&NAMES)?;
        if name.parse().is_ok_and(|address: IpAddr| self.owners.contains_key(&address)) {
            return Ok(()); // no other program removes a reservation
        }
        let path = self.network().join(name);
        // The file is replaced and not overwritten: the index could not detect a change in place.
        let _ = fs::remove_file(&path); // it may not be there
        let content: Vec<u8> = match bytes.int_in_range(0..=3)? {
            0 => return Ok(()),
            1 => text(&owner(bytes)?),
            2 => vec![0; bytes.int_in_range(0..=8)?],
            _ => bytes.arbitrary()?,
        };
        fs::write(path, content).expect("it can be written");
        Ok(())
    }

    /// Truncates the index, or flips a bit of it.
    fn damage_index(&self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let Ok(mut content) = fs::read(self.index()) else { return Ok(()) };
        let at = usize::from(bytes.arbitrary::<u16>()?) % content.len().max(1);
        if bytes.arbitrary()? {
            content.truncate(at);
        } else if let Some(byte) = content.get_mut(at) {
            *byte ^= 1 << bytes.int_in_range(0..=7)?;
        }
        fs::write(self.index(), content).expect("it can be written");
        Ok(())
    }

    /// Simulates a power cut: no container is left, and each file may be lost or empty, and a part of the index zero.
    fn power_cut(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        self.boot += 1;
        self.owners.clear();
        for name in self.files().into_keys() {
            match bytes.int_in_range(0..=7)? {
                0 => fs::remove_file(self.network().join(name)).expect("it is there"),
                1 => fs::write(self.network().join(name), "").expect("it can be written"),
                _ => {}
            }
        }
        let Ok(mut content) = fs::read(self.index()) else { return Ok(()) };
        let from = usize::from(bytes.arbitrary::<u16>()?).min(content.len());
        let until = from.saturating_add(bytes.arbitrary::<u8>()?.into()).min(content.len());
        content[from..until].fill(0);
        fs::write(self.index(), content).expect("it can be written");
        Ok(())
    }

    /// The files of the directory, except the lock.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.network()).expect("it can be listed").flatten();
        let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
        let files = named.filter(|(name, _)| name != "lock");
        files.map(|(name, path)| (name, fs::read(path).expect("it can be read"))).collect()
    }

    /// The files that are named after an address in its canonical form.
    fn reservations(&self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let is_address = |name: &str| name.parse::<IpAddr>().is_ok_and(|address| address.to_string() == name);
        self.files().into_iter().filter(move |(name, _)| is_address(name))
    }

    /// Asserts that the freed addresses are gone, and that nothing else changed.
    fn assert_only_removed(&self, before: &BTreeMap<String, Vec<u8>>, freed: &[IpAddr]) {
        let mut wanted = durable(before);
        for address in freed {
            assert!(wanted.remove(&address.to_string()).is_some(), "{address} was there");
        }
        assert_eq!(durable(&self.files()), wanted);
    }
}

fn owner(bytes: &mut Unstructured<'_>) -> Result<Owner> {
    Ok(Owner::new(format!("c{}", bytes.int_in_range(0..=7)?), "eth0"))
}

fn text(owner: &Owner) -> Vec<u8> {
    format!("{}\r\n{}", owner.container, owner.ifname.as_deref().unwrap_or_default()).into_bytes()
}

/// The files that must not change without a release: all except files emptied by a power cut, and `last_reserved_ip`.
fn durable(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let emptied = |content: &Vec<u8>| content.iter().all(|byte| *byte == 0);
    let durable = files.iter().filter(|(name, content)| !emptied(content) && !name.starts_with("last_reserved_ip"));
    durable.map(|(name, content)| (name.clone(), content.clone())).collect()
}
