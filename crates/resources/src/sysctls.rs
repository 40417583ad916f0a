//! Settings below `net/` of the container's namespace.

mod allow_list;

use std::fmt;
use std::path::PathBuf;

use cnikit_netns::sysctl::{Tree, same};
use cnikit_netns::{Inside, Netns};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Errors, Journal, Result};

use crate::saved_settings::{self, Lent};
pub use allow_list::{LIST, available};

/// Kernel settings of the container's namespace, set in this order. See sysctl(8).
#[derive(Clone, Debug)]
#[doc(alias = "sysctl")]
pub struct Sysctls {
    /// In the order in which they are set.
    pub settings: Vec<Sysctl>,
    /// Where the values from before are kept, to be given back; absent: DEL leaves the settings as they are.
    pub kept_in: Option<PathBuf>,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// The key as somebody wrote it: what the list of those that are allowed speaks of.
    pub written: String,
    /// The key as a path, `net/ipv4/conf/eth0/arp_notify`.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// The kind that these are of.
pub const KIND: Kind = Kind {
    name: "sysctls",
    release: |context| saved_settings::release(context, give_back),
    sweep: |context| saved_settings::sweep(context, give_back),
    outlives_link: true,
};

/// Below these stand links by their names, each with settings.
const BY_LINK: [&str; 2] = ["conf", "neigh"];
/// What stands for the name of the container's interface.
const IFNAME: &str = "IFNAME";

impl Sysctl {
    /// Parses a setting as configurations have it: with dots or slashes, the first `IFNAME` standing for the name of the
    /// interface.
    ///
    /// The part between `conf` or `neigh` and the last word is the name of a link, whatever dots it has.
    ///
    /// # Errors
    /// A key that does not begin with `net.`, and a key or value with a line end or a zero byte.
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

    /// All are allowed and there, and what they were can be kept.
    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        allow_list::check(self.settings.iter().map(|one| one.written.as_str()))?;
        let found = self.values(&context.netns)?;
        if let Some((Sysctl { key, .. }, _)) =
            self.settings.iter().zip(&found).find(|(_, found)| **found == Current::Absent)
        {
            return Err(Error::config(format!("there is no sysctl {key} in {}", context.sandbox))
                .hint("correct `sysctl`; some settings are there only on other kernels, or with a module loaded"));
        }
        let changes = self.settings.iter().zip(&found).any(|(one, found)| found.would_change(&one.value));
        self.kept_in.as_ref().filter(|_| changes).map_or(Ok(()), |dir| saved_settings::available(dir))
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let found = self.values(&context.netns)?.into_iter().zip(&self.settings);
        let mut was = Vec::new();
        let mut changes = false;
        for (found, Sysctl { key, value, .. }) in found {
            changes |= found.would_change(value);
            if let Current::Is(old) = found {
                was.push((key.clone(), old)); // one that is right already too: another may change it
            }
        }
        if let Some(dir) = self.kept_in.as_ref().filter(|_| changes) {
            saved_settings::record(context, dir, journal, &Lent { sysctls: was.clone(), ..Lent::default() })?;
        }
        let was = Was { netns: context.netns.clone(), was };
        let _ = journal.undo(&was, Was::put_back);
        context.netns.enter(|inside| {
            let tree = Tree::open(inside)?;
            self.settings.iter().try_for_each(|one| tree.set(&one.key, &one.value))
        })??;
        Ok(Made::nothing())
    }

    /// By what they mean: the kernel writes a value in its own way.
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
        let read = |inside: &Inside| {
            let tree = Tree::open(inside)?;
            let one = |one: &Sysctl| match tree.read(&one.key) {
                Err(error) if error.is_absent() => Ok(Current::Absent),
                read => Ok(read?.map_or(Current::Unreadable, Current::Is)),
            };
            self.settings.iter().map(one).collect::<Result<_, cnikit_netns::Error>>()
        };
        Ok(netns.enter(read)??)
    }
}

/// What a setting is.
#[derive(PartialEq)]
enum Current {
    /// The namespace has none of that name.
    Absent,
    /// Nobody can read it.
    Unreadable,
    Is(String),
}

impl Current {
    /// Whether there is something to keep before this value is set.
    fn would_change(&self, value: &str) -> bool {
        matches!(self, Current::Is(old) if !same(old, value))
    }
}

impl fmt::Display for Sysctls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.settings.iter().map(|one| format!("{} = {}", one.key, one.value)).collect();
        write!(f, "in the container {}", each.join(", "))?;
        self.kept_in.iter().try_for_each(|dir| write!(f, "; what they were is kept in {}", dir.display()))
    }
}

/// Settings as this ADD found them.
#[derive(Clone)]
struct Was {
    netns: Netns,
    was: Vec<(String, String)>,
}

impl Was {
    fn put_back(&self) -> Result<()> {
        put(&self.netns, &self.was)
    }
}

impl fmt::Display for Was {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.was.iter().map(|(key, _)| key.as_str()).collect();
        write!(f, "{}", keys.join(", "))
    }
}

fn give_back(lent: &mut Lent, _ifname: &str, netns: Option<&Netns>) -> Result<()> {
    let before = std::mem::take(&mut lent.sysctls);
    netns.filter(|_| !before.is_empty()).map_or(Ok(()), |netns| put(netns, &before))
}

/// What was changed last goes back first, for one setting may change another; one that is gone needs nothing,
/// and one whose old value the kernel refuses by now stays.
fn put(netns: &Netns, settings: &[(String, String)]) -> Result<()> {
    let work = |inside: &Inside| {
        let tree = Tree::open(inside)?;
        let one = |(key, value): &(String, String)| match tree.set(key, value) {
            Err(error) if error.errno().is_some_and(saved_settings::is_verdict) => {
                saved_settings::give_up(error);
                Ok(())
            }
            Err(error) if !error.is_absent() => Err(error.into()),
            _ => Ok(()),
        };
        settings.iter().rev().map(one).collect::<Errors>().finish()
    };
    netns.enter(work)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_the_reference_reads_it_and_dots_in_a_links_name_are_its_own() {
        let key = |written: &str, ifname: &str| Sysctl::read(written, "1", ifname).map(|one| one.key);
        for (written, ifname, path) in [
            ("net.ipv4.ip_forward", "eth0", "net/ipv4/ip_forward"),
            ("net/ipv4/ip_forward", "eth0", "net/ipv4/ip_forward"),
            ("net.ipv4/conf.all/arp_notify", "eth0", "net/ipv4/conf/all/arp_notify"),
            ("net.ipv4.conf.IFNAME.arp_notify", "eth0.7", "net/ipv4/conf/eth0.7/arp_notify"),
            ("net/ipv4/conf/eth0.7/arp_notify", "eth0", "net/ipv4/conf/eth0.7/arp_notify"),
            ("net.ipv4.conf.eth0.7.arp_notify", "eth0", "net/ipv4/conf/eth0.7/arp_notify"),
            ("net.ipv6.neigh.a.b.c.gc_stale_time", "eth0", "net/ipv6/neigh/a.b.c/gc_stale_time"),
            ("net.ipv4.conf.IFNAME.IFNAME", "eth0", "net/ipv4/conf/eth0/IFNAME"),
            ("net..core.somaxconn", "eth0", "net/core/somaxconn"),
            ("net/../kernel/hostname", "eth0", "net/kernel/hostname"),
            ("net.ipv4.conf.../../../../kernel.hostname", "eth0", "net/ipv4/conf/kernel/hostname"),
        ] {
            assert_eq!(key(written, ifname), Ok(path.to_owned()), "{written}");
        }
        for written in ["kernel.domainname", "../net.core.somaxconn", "", "net", "net.", "netx.core", "IFNAME.a"] {
            match key(written, "net") {
                // All dots part words: what leads upwards is nothing, and stays below.
                Ok(path) => assert!(path.starts_with("net/") && !path.contains(".."), "{written}: {path}"),
                Err(refused) => assert!(refused.starts_with("invalid net sysctl key: "), "{refused}"),
            }
        }
        assert!(key("net.core.a\0b", "eth0").is_err() && Sysctl::read("net.core.a", "1\n2", "eth0").is_err());
    }
}
