//! A look at everything, while nobody does anything.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{AttachmentState, Node, Slot, Verb, describe};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{addresses, attachments};
use crate::parallel;

/// So many containers are looked at together.
const AT_ONCE: usize = 8;

impl Node {
    /// Whoever runs, runs: CHECK passes, its addresses are in its namespace and reserved for it alone. Then all are
    /// deleted, and the host is as it was before anybody came.
    pub(super) fn audit(&self) {
        self.tally.lock().unwrap().audits += 1;
        self.each(|node, slot| {
            if matches!(slot.state, AttachmentState::Unknown) {
                node.delete(slot);
            }
        });
        let live: Vec<String> = self.present().map(|(id, _)| id).collect();
        let more = [("cni.dev/valid-attachments", attachments(&live)), ("cniVersion", Value::from("1.1.0"))];
        let said = self.call(&self.workload.by[0], Verb::Gc, "", "", &more, None);
        if said.exit != 0 {
            self.report(format!("GC while nobody comes or goes: {}", describe(&said)));
        }
        self.reservations();
        self.each(Node::check_running);
        self.each(Node::delete);
        self.nothing_is_left();
    }

    /// One thing with every container, several at once.
    fn each(&self, work: impl Fn(&Node, &mut Slot) + Sync) {
        parallel::for_each(AT_ONCE, &self.slots, || (), |(), slot| work(self, &mut slot.lock().unwrap()));
    }

    fn present(&self) -> impl Iterator<Item = (String, Value)> {
        self.slots.iter().filter_map(|slot| {
            let slot = slot.lock().unwrap();
            if let AttachmentState::Present(result) = &slot.state {
                Some((slot.id.clone(), result.clone()))
            } else {
                None
            }
        })
    }

    /// Each address of whoever lives has its file, which names him, and no other address has one.
    fn reservations(&self) {
        let by = &self.workload.by[0];
        let Some(dir) = by.reservations() else { return };
        let wanted: BTreeMap<String, String> = self
            .present()
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
            self.report(format!(
                "reserved, but not had: {:?}; had, but not reserved: {:?}",
                only(&found, &wanted),
                only(&wanted, &found)
            ));
        }
    }

    fn check_running(&self, slot: &mut Slot) {
        let AttachmentState::Present(result) = &slot.state else { return };
        let by = &self.workload.by[0];
        let more = [("prevResult", result.clone())];
        let said = self.call(by, Verb::Check, &slot.id, &slot.container.path(), &more, None);
        if said.exit != 0 {
            self.report(format!("CHECK of {}, in the audit: {}", slot.id, describe(&said)));
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
            self.report(format!("{} was given {wanted:?}, and has {seen:?}", slot.id));
        }
    }

    /// It is deleted, if it may have an attachment, and its namespace is empty.
    fn delete(&self, slot: &mut Slot) {
        let more = match std::mem::replace(&mut slot.state, AttachmentState::Absent) {
            AttachmentState::Present(result) => vec![("prevResult", result)],
            AttachmentState::Unknown => Vec::new(),
            AttachmentState::Absent => return self.is_empty(slot),
        };
        self.release_addresses(&slot.id);
        let said = self.call(&self.workload.by[0], Verb::Del, &slot.id, &slot.container.path(), &more, None);
        if said.exit != 0 {
            self.report(format!("DEL of {}, in the audit: {}", slot.id, describe(&said)));
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
                self.report(format!("not given back in the namespace of {}: came {came:?}, went {went:?}", slot.id));
            }
            return;
        }
        let links = slot.container.try_sh("ip -o link").1;
        if links.lines().count() > 1 {
            self.report(format!("left in the namespace of {}: {links}", slot.id));
        }
    }

    /// What is on the host, once the kernel has cleared away what goes with its namespace.
    fn nothing_is_left(&self) {
        if let Some(left) = HostSnapshot::leftovers(&self.host, &self.base, self.workload.but) {
            self.report(format!("on the host, when all are gone: {left}"));
        }
    }
}
