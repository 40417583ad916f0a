//! Reservations in the files of host-local.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::Result;

/// The first and the last address of the only range.
const FIRST: u32 = 0x0a61_0002;
const LAST: u32 = 0x0a61_fffe;

/// The directory of the network, and the owner as the files name it.
pub(crate) struct Reservations {
    dir: PathBuf,
    owner: String,
}

impl Reservations {
    pub(crate) fn new(dir: PathBuf, container: &str) -> Reservations {
        Reservations { dir, owner: format!("{container}\r\n{}", crate::IFNAME) }
    }

    /// Reserves the next address after the last one that was reserved.
    pub(crate) fn take(&self) -> Result<Ipv4Addr> {
        let _lock = self.lock()?;
        let hint = self.dir.join("last_reserved_ip.0");
        let last = fs::read_to_string(&hint).ok().and_then(|text| text.parse::<Ipv4Addr>().ok());
        let mut next = last.map_or(FIRST, |last| u32::from(last) + 1);
        for _ in FIRST..=LAST {
            if next > LAST {
                next = FIRST;
            }
            let address = Ipv4Addr::from(next);
            match OpenOptions::new().write(true).create_new(true).open(self.dir.join(address.to_string())) {
                Ok(mut file) => {
                    file.write_all(self.owner.as_bytes())?;
                    fs::write(&hint, address.to_string())?;
                    return Ok(address);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => next += 1,
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no address is free"))
    }

    pub(crate) fn holds(&self, address: Ipv4Addr) -> Result<()> {
        let _lock = self.lock()?;
        let owner = fs::read_to_string(self.dir.join(address.to_string()))?;
        if owner == self.owner { Ok(()) } else { Err(io::Error::other("another owner has the address")) }
    }

    pub(crate) fn give_back(&self, address: Ipv4Addr) -> Result<()> {
        let _lock = self.lock()?;
        fs::remove_file(self.dir.join(address.to_string()))
    }

    /// The lock of the directory, which is made with the first one.
    fn lock(&self) -> Result<File> {
        let open = || OpenOptions::new().write(true).create(true).truncate(false).open(self.dir.join("lock"));
        let file = match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(&self.dir)?;
                open()?
            }
            opened => opened?,
        };
        file.lock()?;
        Ok(file)
    }
}
