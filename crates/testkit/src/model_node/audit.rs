//! A look at everything, while nobody does anything.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Life, Node, Slot, Verb, told};
use crate::crowd;
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{addresses, attachments};

/// So many containers are looked at together.
const AT_ONCE: usize = 8;

impl Node {
    /// Whoever runs, runs: CHECK passes, its addresses are in its namespace and reserved for it alone. Then all are
    /// deleted, and the host is as it was before anybody came.
    pub(super) fn audit(&self) {
        self.tally.lock().unwrap().audits += 1;
        self.each(|node, slot| {
            if matches!(slot.life, Life::Unknown) {
                node.goes(slot);
            }
        });
        let live: Vec<String> = self.lives().map(|(id, _)| id).collect();
        let more = [("cni.dev/valid-attachments", attachments(&live)), ("cniVersion", Value::from("1.1.0"))];
        let said = self.call(&self.crowd.by[0], Verb::Gc, "", "", &more, None);
        if said.exit != 0 {
            self.find(format!("GC while nobody comes or goes: {}", told(&said)));
        }
        self.reservations();
        self.each(Node::runs);
        self.each(Node::goes);
        self.nothing_is_left();
    }

    /// One thing with every container, several at once.
    fn each(&self, work: impl Fn(&Node, &mut Slot) + Sync) {
        crowd::each(AT_ONCE, &self.slots, || (), |(), slot| work(self, &mut slot.lock().unwrap()));
    }

    fn lives(&self) -> impl Iterator<Item = (String, Value)> {
        self.slots.iter().filter_map(|slot| {
            let slot = slot.lock().unwrap();
            if let Life::With(result) = &slot.life { Some((slot.id.clone(), result.clone())) } else { None }
        })
    }

    /// Each address of whoever lives has its file, which names him, and no other address has one.
    fn reservations(&self) {
        let by = &self.crowd.by[0];
        let Some(dir) = by.reservations() else { return };
        let wanted: BTreeMap<String, String> = self
            .lives()
            .flat_map(|(id, result)| addresses(&result).map(|ip| (ip.to_owned(), id.clone())).collect::<Vec<_>>())
            .collect();
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.parse::<std::net::IpAddr>().ok()?;
            let text = std::fs::read_to_string(entry.path()).ok()?;
            Some((name, text.lines().next().unwrap_or_default().trim().to_owned()))
        });
        let found: BTreeMap<String, String> = named.collect();
        if found != wanted {
            let only = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
                a.iter()
                    .filter(|(ip, id)| b.get(*ip) != Some(id))
                    .map(|(ip, id)| format!("{ip} of {id}"))
                    .collect::<Vec<_>>()
            };
            self.find(format!(
                "reserved, but not had: {:?}; had, but not reserved: {:?}",
                only(&found, &wanted),
                only(&wanted, &found)
            ));
        }
    }

    fn runs(&self, slot: &mut Slot) {
        let Life::With(result) = &slot.life else { return };
        let by = &self.crowd.by[0];
        let more = [("prevResult", result.clone())];
        let said = self.call(by, Verb::Check, &slot.id, &slot.container.path(), &more, None);
        if said.exit != 0 {
            self.find(format!("CHECK of {}, in the audit: {}", slot.id, told(&said)));
        }
        if result["interfaces"].is_null() {
            return; // an IPAM plugin's own
        }
        let seen = slot.container.try_sh("ip -o address show dev eth0 scope global").1;
        let mut seen: Vec<&str> = seen.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
        let ips = result["ips"].as_array().into_iter().flatten();
        let mut wanted: Vec<&str> = ips.filter_map(|ip| ip["address"].as_str()).collect();
        seen.sort_unstable();
        wanted.sort_unstable();
        if seen != wanted {
            self.find(format!("{} was given {wanted:?}, and has {seen:?}", slot.id));
        }
    }

    /// It is deleted, if it may have an attachment, and its namespace is empty.
    fn goes(&self, slot: &mut Slot) {
        let more = match std::mem::replace(&mut slot.life, Life::Without) {
            Life::With(result) => vec![("prevResult", result)],
            Life::Unknown => Vec::new(),
            Life::Without => return self.is_empty(slot),
        };
        self.disown(&slot.id);
        let said = self.call(&self.crowd.by[0], Verb::Del, &slot.id, &slot.container.path(), &more, None);
        if said.exit != 0 {
            self.find(format!("DEL of {}, in the audit: {}", slot.id, told(&said)));
        }
        self.is_empty(slot);
    }

    /// Or what others made in it is as it was.
    fn is_empty(&self, slot: &Slot) {
        if let Some(before) = &slot.inside {
            let after = HostSnapshot::inside(&slot.container);
            let came = after.added_since(before, &[]);
            let went = before.added_since(&after, &[]);
            if !(came.is_empty() && went.is_empty()) {
                self.find(format!("not given back in the namespace of {}: came {came:?}, went {went:?}", slot.id));
            }
            return;
        }
        let links = slot.container.try_sh("ip -o link").1;
        if links.lines().count() > 1 {
            self.find(format!("left in the namespace of {}: {links}", slot.id));
        }
    }

    /// What is on the host, once the kernel has cleared away what goes with its namespace.
    fn nothing_is_left(&self) {
        if let Some(left) = HostSnapshot::settled(&self.host, &self.base, self.crowd.but) {
            self.find(format!("on the host, when all are gone: {left}"));
        }
    }
}
