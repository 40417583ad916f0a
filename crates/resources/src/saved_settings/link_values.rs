//! The settings of a link that can be changed and restored.

use cnikit_netlink::{Link, LinkChange, Mac};
use serde::{Deserialize, Serialize};

/// Settings of a link: those that are wanted, or those from before. The names of the members are upstream's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkValues {
    /// The hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Promiscuous mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// All-multicast mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allmulti: Option<bool>,
    /// The length of the transmit queue, in packets.
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub tx_queue_length: Option<u32>,
}

impl LinkValues {
    /// The settings that a link has otherwise, and the values that it has instead.
    pub(crate) fn differing(&self, link: &Link) -> (LinkValues, LinkValues) {
        let mtu = self.mtu.filter(|mtu| *mtu != link.mtu);
        let mac = self.mac.filter(|mac| Some(*mac) != link.mac);
        let promisc = self.promisc.filter(|on| *on != link.promiscuous);
        let allmulti = self.allmulti.filter(|on| *on != link.all_multicast);
        let tx_queue_length = self.tx_queue_length.filter(|length| *length != link.tx_queue_length);
        let found = LinkValues {
            mac: mac.and(link.mac),
            mtu: mtu.map(|_| link.mtu),
            promisc: promisc.map(|_| link.promiscuous),
            allmulti: allmulti.map(|_| link.all_multicast),
            tx_queue_length: tx_queue_length.map(|_| link.tx_queue_length),
        };
        (LinkValues { mac, mtu, promisc, allmulti, tx_queue_length }, found)
    }

    /// These settings, and the others where a setting is absent here.
    pub(crate) fn or(&self, others: &LinkValues) -> LinkValues {
        LinkValues {
            mac: self.mac.or(others.mac),
            mtu: self.mtu.or(others.mtu),
            promisc: self.promisc.or(others.promisc),
            allmulti: self.allmulti.or(others.allmulti),
            tx_queue_length: self.tx_queue_length.or(others.tx_queue_length),
        }
    }

    /// Each setting that is present, alone.
    pub(crate) fn each(&self) -> Vec<LinkValues> {
        let none = LinkValues::default();
        let all = [
            LinkValues { mac: self.mac, ..none.clone() },
            LinkValues { mtu: self.mtu, ..none.clone() },
            LinkValues { promisc: self.promisc, ..none.clone() },
            LinkValues { allmulti: self.allmulti, ..none.clone() },
            LinkValues { tx_queue_length: self.tx_queue_length, ..none.clone() },
        ];
        all.into_iter().filter(|one| *one != none).collect()
    }

    /// The settings as netlink takes them.
    pub(crate) fn change(&self) -> LinkChange {
        LinkChange::default()
            .mac(self.mac)
            .mtu(self.mtu)
            .promiscuous(self.promisc)
            .all_multicast(self.allmulti)
            .tx_queue_length(self.tx_queue_length)
    }

    /// The name and the value of each setting that is present, for people.
    pub(crate) fn words(&self) -> Vec<(&'static str, String)> {
        let switched = |on: Option<bool>| on.map(|on| if on { "on".to_owned() } else { "off".to_owned() });
        let all = [
            ("MAC", self.mac.map(|mac| mac.to_string())),
            ("MTU", self.mtu.map(|mtu| mtu.to_string())),
            ("promisc", switched(self.promisc)),
            ("allmulti", switched(self.allmulti)),
            ("txQLen", self.tx_queue_length.map(|length| length.to_string())),
        ];
        all.into_iter().filter_map(|(of, value)| Some((of, value?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn all() -> LinkValues {
        LinkValues {
            mac: Some(MAC),
            mtu: Some(1400),
            promisc: Some(true),
            allmulti: Some(false),
            tx_queue_length: Some(7),
        }
    }

    fn link() -> Link {
        let mut link = Link::default();
        link.mac = Some(Mac([2, 0, 0, 0, 0, 9]));
        link.mtu = 1500;
        link.all_multicast = true;
        link.tx_queue_length = 1000;
        link
    }

    #[test]
    fn only_what_a_link_has_otherwise_is_changed_and_its_values_are_those_from_before() {
        let (changed, before) = all().differing(&link());
        assert_eq!(changed, all());
        let values =
            [("MAC", "02:00:00:00:00:09"), ("MTU", "1500"), ("promisc", "off"), ("allmulti", "on"), ("txQLen", "1000")];
        assert_eq!(before.words(), values.map(|(of, value)| (of, value.to_owned())));
        assert_eq!(before.differing(&link()), (LinkValues::default(), LinkValues::default()), "it has them");
        let one = LinkValues { mtu: Some(1400), promisc: Some(false), ..LinkValues::default() };
        let (changed, before) = one.differing(&link());
        assert_eq!(changed.words(), [("MTU", "1400".to_owned())]);
        assert_eq!(before.words(), [("MTU", "1500".to_owned())]);
        assert_eq!(LinkValues::default().differing(&link()), (LinkValues::default(), LinkValues::default()));
    }

    #[test]
    fn each_value_is_set_alone_if_the_kernel_refuses_all_together() {
        let each = all().each();
        assert_eq!(each.len(), 5);
        let none = LinkValues::default();
        assert_eq!(each.iter().fold(none.clone(), |sum, one| sum.or(one)), all());
        assert!(each.iter().all(|one| one.words().len() == 1), "{each:?}");
        assert!(none.each().is_empty());
    }

    #[test]
    fn the_values_from_before_the_first_change_are_kept() {
        let first = LinkValues { mtu: Some(1500), promisc: Some(false), ..LinkValues::default() };
        let kept = first.or(&all());
        assert_eq!(
            (kept.mtu, kept.promisc, kept.mac, kept.tx_queue_length),
            (Some(1500), Some(false), Some(MAC), Some(7))
        );
        assert_eq!(first.or(&LinkValues::default()), first);
        assert_eq!(LinkValues::default().or(&all()), all());
    }

    #[test]
    fn a_setting_that_is_absent_is_not_sent() {
        let all = all();
        let change = LinkChange::default().mac(MAC).mtu(1400).promiscuous(true).all_multicast(false).tx_queue_length(7);
        assert_eq!(format!("{:?}", all.change()), format!("{change:?}"));
        assert_eq!(format!("{:?}", LinkValues::default().change()), format!("{:?}", LinkChange::default()));
    }
}
