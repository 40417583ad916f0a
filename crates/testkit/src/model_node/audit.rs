//! Audits: checks of the whole host while no worker runs.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{AttachmentState, Node, Slot, Verb, describe};
use crate::env::snapshot::HostSnapshot;
use crate::env::subject::{addresses, attachments};
use crate::parallel;

/// The number of containers that are checked at the same time.
const AT_ONCE: usize = 8;

impl Node {
    /// Checks each attachment: CHECK passes, and its addresses are in its namespace and reserved for it alone. Then deletes all of
    /// them, and checks that the host is as it was at the beginning.
    pub(super) fn audit(&self) {
        self.tally.lock().unwrap().audits += 1;
        self.each(Node::delete_if_unknown);
        let live: Vec<String> = self.present().into_iter().map(|(id, _)| id).collect();
        let more = [("cni.dev/valid-attachments", attachments(&live)), ("cniVersion", Value::from("1.1.0"))];
        let output = self.call(&self.workload.by[0], Verb::Gc, "", "", &more, None);
        if output.exit != 0 {
            self.report(format!("GC in the audit: {}", describe(&output)));
        }
        self.reservations();
        self.each(Node::check_running);
        self.each(Node::delete);
        self.nothing_is_left();
    }

    fn delete_if_unknown(&self, slot: &mut Slot) {
        if matches!(slot.state, AttachmentState::Unknown) {
            self.delete(slot);
        }
    }

    /// Calls `work` for every container, several at once.
    fn each(&self, work: impl Fn(&Node, &mut Slot) + Sync) {
        parallel::for_each(AT_ONCE, &self.slots, || (), |(), slot| work(self, &mut slot.lock().unwrap()));
    }

    /// The existing attachments: container ID and result.
    fn present(&self) -> Vec<(String, Value)> {
        let mut present = Vec::new();
        for slot in &self.slots {
            let slot = slot.lock().unwrap();
            if let AttachmentState::Present(result) = &slot.state {
                present.push((slot.id.clone(), result.clone()));
            }
        }
        present
    }

    /// Checks that each address has a reservation with the ID of its container, and that there are no other reservations.
    fn reservations(&self) {
        let by = &self.workload.by[0];
        let Some(dir) = by.reservations() else { return };
        let mut wanted = BTreeMap::new();
        for (id, result) in self.present() {
            wanted.extend(addresses(&result).map(|ip| (ip.to_owned(), id.clone())));
        }
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let found: BTreeMap<String, String> = entries.filter_map(|entry| reservation(&entry.path())).collect();
        if found != wanted {
            self.report(format!(
                "reserved, but not had: {:?}; had, but not reserved: {:?}",
                only_in(&found, &wanted),
                only_in(&wanted, &found)
            ));
        }
    }

    fn check_running(&self, slot: &mut Slot) {
        let AttachmentState::Present(result) = &slot.state else { return };
        let by = &self.workload.by[0];
        let more = [("prevResult", result.clone())];
        let output = self.call(by, Verb::Check, &slot.id, &slot.container.path(), &more, None);
        if output.exit != 0 {
            self.report(format!("CHECK of {}, in the audit: {}", slot.id, describe(&output)));
        }
        if result["interfaces"].is_null() {
            return; // the result of an IPAM plugin, which makes no interface
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

    /// Deletes the attachment if there may be one, and checks that the namespace is empty.
    fn delete(&self, slot: &mut Slot) {
        let more = match std::mem::replace(&mut slot.state, AttachmentState::Absent) {
            AttachmentState::Present(result) => vec![("prevResult", result)],
            AttachmentState::Unknown => Vec::new(),
            AttachmentState::Absent => return self.is_empty(slot),
        };
        self.release_addresses(&slot.id);
        let output = self.call(&self.workload.by[0], Verb::Del, &slot.id, &slot.container.path(), &more, None);
        if output.exit != 0 {
            self.report(format!("DEL of {}, in the audit: {}", slot.id, describe(&output)));
        }
        self.is_empty(slot);
    }

    /// Checks that the namespace is empty, or after a chained plugin as before it.
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
        let links = slot.container.links();
        if !links.is_empty() {
            self.report(format!("left in the namespace of {}: {}", slot.id, links.join(" ")));
        }
    }

    /// Reports what is left on the host, after the kernel has removed what belonged to removed namespaces.
    fn nothing_is_left(&self) {
        if let Some(left) = HostSnapshot::leftovers(&self.host, &self.base, self.workload.but) {
            self.report(format!("on the host, when all are gone: {left}"));
        }
    }
}

/// The address and the container ID of a reservation; `None` if the file is not one.
fn reservation(file: &Path) -> Option<(String, String)> {
    let name = file.file_name()?.to_str()?;
    name.parse::<std::net::IpAddr>().ok()?;
    let text = std::fs::read_to_string(file).ok()?;
    Some((name.to_owned(), text.lines().next().unwrap_or_default().trim().to_owned()))
}

/// The addresses in `one` that `other` has not, or has with another container.
fn only_in(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> Vec<String> {
    let missing = one.iter().filter(|(ip, id)| other.get(*ip) != Some(id));
    missing.map(|(ip, id)| format!("{ip} of {id}")).collect()
}
