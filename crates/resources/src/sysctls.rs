//! Sysctls below `net/` in the container's network namespace.

mod allow_list;

use std::fmt;
use std::path::PathBuf;

use cnikit_netns::sysctl::{Tree, same};
use cnikit_netns::{Inside, Netns};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Errors, Journal, Result};

use crate::saved_settings::{self, SavedSettings};
pub use allow_list::{LIST, available};

/// Sysctls of the container's network namespace. See sysctl(8).
#[derive(Clone, Debug)]
#[doc(alias = "sysctl")]
pub struct Sysctls {
    /// In the order in which they are set.
    pub settings: Vec<Sysctl>,
    /// The directory in which the values from before are stored, so that DEL restores them; see [`saved_settings::data_dir`].
    /// Absent: DEL leaves the settings as they are.
    pub data_dir: Option<PathBuf>,
}

/// One sysctl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// The key as it is written in the configuration. The list of allowed sysctls is matched against it.
    pub written: String,
    /// The key as a path, `net/ipv4/conf/eth0/arp_notify`.
    pub key: String,
    /// The value.
    pub value: String,
}

/// The kind of [`Sysctls`].
pub const KIND: Kind = Kind {
    name: "sysctls",
    release: |context| saved_settings::release(context, restore_values),
    sweep: |context| saved_settings::sweep(context, restore_values),
    outlives_link: true,
};

/// Directories that have one directory per link, by its name.
const BY_LINK: [&str; 2] = ["conf", "neigh"];
/// The placeholder for the name of the container's interface.
const IFNAME: &str = "IFNAME";

impl Sysctl {
    /// Parses a key with dots or slashes. The first `IFNAME` is replaced by the name of the interface.
    ///
    /// The part between `conf` or `neigh` and the last word is the name of a link, which may have dots.
    ///
    /// # Errors
    /// The key does not begin with `net.`, or the key or the value has a line end or a zero byte.
    pub fn read(written: &str, value: &str, ifname: &str) -> Result<Sysctl, String> {
        let parts: Vec<&str> = written.split(['.', '/']).filter(|part| !part.is_empty()).collect();
        let parts: Vec<String> = match &parts[..] {
            [net, family, by_link, name @ .., last] if BY_LINK.contains(by_link) && !name.is_empty() => {
                [*net, *family, *by_link, &name.join("."), *last].map(str::to_owned).to_vec()
            }
            parts => parts.iter().copied().map(str::to_owned).collect(),
        };
        let key = parts.join("/").replacen(IFNAME, ifname, 1);
        if parts.len() < 2 || parts[0] != "net" {
            return Err(format!("invalid net sysctl key: {key:?}: the container's own settings begin with `net.`"));
        }
        if [&key, value].iter().any(|text| text.contains(['\0', '\n'])) {
            return Err(format!("sysctl {key:?} or its value has a line end or a zero byte in it"));
        }
        Ok(Sysctl { written: written.to_owned(), key, value: value.to_owned() })
    }
}

impl Resource for Sysctls {
    fn kind(&self) -> Kind {
        KIND
    }

    /// Checks that all sysctls are allowed and exist, and that the values from before could be stored.
    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        allow_list::check(self.settings.iter().map(|one| one.written.as_str()))?;
        let mut changes = false;
        for (Sysctl { key, value, .. }, found) in self.settings.iter().zip(self.values(&context.netns)?) {
            if found == Current::Absent {
                return Err(Error::config(format!("there is no sysctl {key} in {}", context.sandbox))
                    .hint("correct `sysctl`; some settings exist only on other kernels, or if a module is loaded"));
            }
            changes |= found.would_change(value);
        }
        match &self.data_dir {
            Some(dir) if changes => saved_settings::available(dir),
            _ => Ok(()),
        }
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let found = self.values(&context.netns)?.into_iter().zip(&self.settings);
        let mut was = Vec::new();
        let mut changes = false;
        for (found, Sysctl { key, value, .. }) in found {
            changes |= found.would_change(value);
            if let Current::Is(old) = found {
                was.push((key.clone(), old)); // one that has the value already too, because another sysctl may change it
            }
        }
        if changes && let Some(dir) = &self.data_dir {
            let before = SavedSettings { sysctls: was.clone(), ..SavedSettings::default() };
            saved_settings::record(context, dir, journal, &before)?;
        }
        let old = OldValues { netns: context.netns.clone(), values: was };
        let _ = journal.undo(&old, OldValues::put_back);
        context.netns.enter(|inside| {
            let tree = Tree::open(inside)?;
            self.settings.iter().try_for_each(|one| tree.set(&one.key, &one.value))
        })??;
        Ok(Made::nothing())
    }

    /// Compares the values by their meaning, because the kernel formats a value in its own way.
    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        for (found, Sysctl { key, value, .. }) in self.values(&context.netns)?.iter().zip(&self.settings) {
            match found {
                Current::Absent => drifts.compare(key, value.as_str(), "none"),
                Current::Is(found) if !same(found, value) => drifts.compare(key, value.as_str(), found),
                Current::Is(_) | Current::Unreadable => {}
            }
        }
        Ok(())
    }
}

impl Sysctls {
    fn values(&self, netns: &Netns) -> Result<Vec<Current>> {
        Ok(netns.enter(|inside| self.read_all(inside))??)
    }

    fn read_all(&self, inside: &Inside) -> Result<Vec<Current>, cnikit_netns::Error> {
        let tree = Tree::open(inside)?;
        let mut values = Vec::with_capacity(self.settings.len());
        for Sysctl { key, .. } in &self.settings {
            values.push(match tree.read(key) {
                Ok(Some(value)) => Current::Is(value),
                Ok(None) => Current::Unreadable,
                Err(error) if error.is_absent() => Current::Absent,
                Err(error) => return Err(error),
            });
        }
        Ok(values)
    }
}

/// The current value of a sysctl.
#[derive(PartialEq)]
enum Current {
    /// There is no sysctl of this name in the namespace.
    Absent,
    /// It can only be written.
    Unreadable,
    Is(String),
}

impl Current {
    /// Whether setting `value` replaces another one.
    fn would_change(&self, value: &str) -> bool {
        matches!(self, Current::Is(old) if !same(old, value))
    }
}

impl fmt::Display for Sysctls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.settings.iter().map(|one| format!("{} = {}", one.key, one.value)).collect();
        write!(f, "in the container {}", each.join(", "))?;
        match &self.data_dir {
            Some(dir) => write!(f, "; the old values are stored in {}", dir.display()),
            None => Ok(()),
        }
    }
}

/// The values that this ADD replaced, for the journal.
#[derive(Clone)]
struct OldValues {
    netns: Netns,
    values: Vec<(String, String)>,
}

impl OldValues {
    fn put_back(&self) -> Result<()> {
        put(&self.netns, &self.values)
    }
}

impl fmt::Display for OldValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.values.iter().map(|(key, _)| key.as_str()).collect();
        write!(f, "{}", keys.join(", "))
    }
}

fn restore_values(saved: &mut SavedSettings, _ifname: &str, netns: Option<&Netns>) -> Result<()> {
    let before = std::mem::take(&mut saved.sysctls);
    match netns {
        Some(netns) if !before.is_empty() => put(netns, &before),
        _ => Ok(()),
    }
}

/// Sets the sysctls in reverse order, because one may change another. A sysctl that no longer exists is skipped, and so is a value
/// that the kernel refuses by now.
fn put(netns: &Netns, settings: &[(String, String)]) -> Result<()> {
    netns.enter(|inside| put_all(inside, settings))?
}

fn put_all(inside: &Inside, settings: &[(String, String)]) -> Result<()> {
    let tree = Tree::open(inside)?;
    let mut errors = Errors::default();
    for (key, value) in settings.iter().rev() {
        match tree.set(key, value) {
            Err(error) if error.errno().is_some_and(saved_settings::is_value_refused) => {
                saved_settings::warn_not_restored(error);
            }
            Err(error) if !error.is_absent() => {
                errors.note(Err(error));
            }
            _ => {}
        }
    }
    errors.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_parsed_as_upstream_does_and_a_links_name_may_have_dots() {
        let key = |written: &str, ifname: &str| Sysctl::read(written, "1", ifname).map(|one| one.key);
        for (written, ifname, path) in [
            ("net.ipv4.ip_forward", "eth0", "net/ipv4/ip_forward"),
            ("net/ipv4/ip_forward", "eth0", "net/ipv4/ip_forward"),
            ("net.ipv4/conf.all/arp_notify", "eth0", "net/ipv4/conf/all/arp_notify"),
            ("net.ipv4.conf.IFNAME.arp_notify", "eth0.7", "net/ipv4/conf/eth0.7/arp_notify"),
            ("net/ipv4/conf/eth0.7/arp_notify", "eth0", "net/ipv4/conf/eth0.7/arp_notify"),
            ("net.ipv4.conf.eth0.7.arp_notify", "eth0", "net/ipv4/conf/eth0.7/arp_notify"),
            ("net.ipv6.neigh.a.b.c.gc_stale_time", "eth0", "net/ipv6/neigh/a.b.c/gc_stale_time"),
            ("net.ipv4.conf.IFNAME", "eth0", "net/ipv4/conf/eth0"),
            ("net.netfilter.nf_log.2", "eth0", "net/netfilter/nf_log/2"),
            ("net.ipv4.other.a.b.c", "eth0", "net/ipv4/other/a/b/c"),
            ("net.nf_conntrack_max", "eth0", "net/nf_conntrack_max"),
            ("net.ipv4.conf.IFNAME.IFNAME", "eth0", "net/ipv4/conf/eth0/IFNAME"),
            ("net..core.somaxconn", "eth0", "net/core/somaxconn"),
            ("net/../kernel/hostname", "eth0", "net/kernel/hostname"),
            ("net.ipv4.conf.../../../../kernel.hostname", "eth0", "net/ipv4/conf/kernel/hostname"),
        ] {
            assert_eq!(key(written, ifname), Ok(path.to_owned()), "{written}");
        }
        for written in ["kernel.domainname", "../net.core.somaxconn", "", "net", "net.", "netx.core", "IFNAME.a"] {
            match key(written, "net") {
                // Every dot is a separator, so `..` is dropped and cannot lead upwards.
                Ok(path) => assert!(path.starts_with("net/") && !path.contains(".."), "{written}: {path}"),
                Err(refused) => assert!(refused.starts_with("invalid net sysctl key: "), "{refused}"),
            }
        }
        assert!(key("net.core.a\0b", "eth0").is_err() && Sysctl::read("net.core.a", "1\n2", "eth0").is_err());
    }
}
