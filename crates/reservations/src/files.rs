//! The files of one network's directory. Names and contents are those of upstream's host-local.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_store::{Directory, Error as StoreError, Facts, Lock};

use crate::error::{Error, ErrorKind};
use crate::owner::{Content, Owner};

/// The file that every process locks before it changes anything.
const LOCK: &str = "lock";
/// The largest file that is read, in bytes. A container's id comes in an environment variable, which has at most 128 KiB.
const LONGEST: usize = 256 << 10;

/// How often to try again if another program removes the directory while this one waits for its lock.
const TRIES: usize = 100;

/// The directory of one network, locked.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) directory: Directory,
    _lock: Lock,
}

impl Files {
    /// Opens and locks the directory, which is created if it does not exist.
    pub(crate) fn make(path: &Path, timeout: Duration) -> Result<Files, Error> {
        for _ in 0..TRIES {
            if let Some(files) = Files::locked(Directory::make(path, 0o755)?, timeout)? {
                return Ok(files);
            }
        }
        Err(vanishing(path))
    }

    /// Opens and locks the directory; `None` if it does not exist.
    pub(crate) fn find(path: &Path, timeout: Duration) -> Result<Option<Files>, Error> {
        for _ in 0..TRIES {
            let directory = match Directory::open(path) {
                Err(error) if error.is_absent() => return Ok(None),
                opened => opened?,
            };
            if let Some(files) = Files::locked(directory, timeout)? {
                return Ok(Some(files));
            }
        }
        Err(vanishing(path))
    }

    /// Locks the directory; `None` if another program removed it while this one waited for the lock.
    fn locked(directory: Directory, timeout: Duration) -> Result<Option<Files>, Error> {
        let lock = match directory.lock(LOCK, 0o600, timeout) {
            Err(_) if !directory.is_current()? => return Ok(None),
            Err(error) if error.is_deadline() => return Err(busy(&directory, timeout)),
            Err(error) if error.is_garbage() => {
                let hint = "find out which program writes in this directory, and remove what is not a regular file";
                return Err(Error::from(error).hint(hint));
            }
            lock => lock?,
        };
        Ok(directory.is_current()?.then_some(Files { directory, _lock: lock }))
    }

    /// The addresses that have a file.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, StoreError> {
        addresses(&self.directory)
    }

    /// The content of an address's file; `None` if it does not exist.
    pub(crate) fn read(&self, address: IpAddr) -> Result<Option<(Content, Facts)>, StoreError> {
        read(&self.directory, address)
    }

    /// Reserves an address; `None` if it is reserved already.
    pub(crate) fn create(&self, address: IpAddr, owner: &Owner) -> Result<Option<Facts>, StoreError> {
        self.directory.create(&address.to_string(), owner.content().as_bytes(), 0o600)
    }

    /// Gives a reserved address to another owner.
    pub(crate) fn renew(&self, address: IpAddr, owner: &Owner) -> Result<Option<Facts>, StoreError> {
        self.directory.renew(&address.to_string(), owner.content().as_bytes(), 0o600)
    }

    /// Removes what killed calls of [`Files::create`] and [`Files::renew`] left.
    pub(crate) fn discard_uncreated(&self) -> Result<(), StoreError> {
        self.directory.discard_uncreated()
    }

    /// Frees an address.
    pub(crate) fn remove(&self, address: IpAddr) -> Result<bool, StoreError> {
        self.directory.remove(&address.to_string())
    }

    /// The last address that the n-th set of ranges allocated; `None` if the file is missing or invalid.
    pub(crate) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let (bytes, _) = self.directory.read(&last_reserved_file(set), LONGEST).ok()??;
        str::from_utf8(&bytes).ok()?.trim().parse().ok()
    }

    /// Records the last address that the n-th set of ranges allocated. Anything that is not a regular file is replaced.
    pub(crate) fn set_last_reserved(&self, set: usize, address: IpAddr) -> Result<(), StoreError> {
        let name = last_reserved_file(set);
        let content = address.to_string();
        match self.directory.rewrite(&name, content.as_bytes(), 0o600) {
            Err(error) if error.is_garbage() => {
                self.directory.remove(&name)?;
                self.directory.rewrite(&name, content.as_bytes(), 0o600)
            }
            written => written,
        }
    }

    /// The path of an address's file, for messages.
    pub(crate) fn path_of(&self, address: IpAddr) -> PathBuf {
        self.directory.resolved().join(address.to_string())
    }
}

/// The addresses that have a file in a directory.
pub(crate) fn addresses(directory: &Directory) -> Result<Vec<IpAddr>, StoreError> {
    let names = directory.list()?;
    Ok(names.iter().filter_map(|name| address_named(name.to_str()?)).collect())
}

/// The content of an address's file in a directory; `None` if it does not exist.
pub(crate) fn read(directory: &Directory, address: IpAddr) -> Result<Option<(Content, Facts)>, StoreError> {
    match directory.read(&address.to_string(), LONGEST)? {
        Some((bytes, facts)) => Ok(Some((Content::parse(&bytes), facts))),
        None => Ok(None),
    }
}

fn busy(directory: &Directory, timeout: Duration) -> Error {
    let seconds = timeout.as_secs();
    let path = directory.resolved().join(LOCK);
    Error::new(ErrorKind::Busy, format!("another process held the lock {} for {seconds} seconds", path.display()))
        .hint(format!("`fuser -v {}` shows the process; try again when it has ended", path.display()))
}

fn vanishing(path: &Path) -> Error {
    let text = format!("{} was replaced again and again while this call waited for its lock", path.display());
    Error::new(ErrorKind::Busy, text).hint("find out which program removes it")
}

fn last_reserved_file(set: usize) -> String {
    format!("last_reserved_ip.{set}")
}

/// The address in the name of a file. Only the canonical form is accepted, so that no address has two files.
fn address_named(name: &str) -> Option<IpAddr> {
    let address: IpAddr = name.parse().ok()?;
    (address.to_canonical() == address && address.to_string() == name).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_name_of_an_address_is_one() {
        assert_eq!(address_named("10.1.2.3"), "10.1.2.3".parse().ok());
        assert_eq!(address_named("2001:db8::1"), "2001:db8::1".parse().ok());
        for other in
            ["lock", "last_reserved_ip.0", "2001:DB8::1", "2001:db8:0::1", "::ffff:10.1.2.3", "10.1.2.3.bak", "10.1.2"]
        {
            assert_eq!(address_named(other), None, "{other}");
        }
    }
}
