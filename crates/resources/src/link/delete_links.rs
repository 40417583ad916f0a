//! Deleting links, one or many, without waiting until the kernel has freed them.

use std::collections::BTreeSet;

use cnikit_netlink::{Batch, Link, LinkChange, Netlink};
use cnikit_process::SlowSend;
use cnikit_skel::{Errors, Result};

use crate::link::random;
use crate::link::unreaped::Place;

/// How many links are deleted at once. Meanwhile no other process on the host can change a link, for about 2 ms per link.
const AT_ONCE: usize = 64;

/// Deletes a link. A link that is gone already is success.
pub(crate) fn delete(netlink: &Netlink, link: &Link) -> Result<()> {
    match Place::free() {
        Some(place) => finish_later(&place, netlink.unregister_link(link.index)),
        None => absent_is_done(netlink.delete_link(link.index)),
    }
}

/// Deletes those of the links for which `is_meant` is true, many at once: the kernel waits as long for one link as for a group.
///
/// To be deleted together, links have to be in one group. They are put into a group with a random number. Then all links are read
/// again, and the group is deleted only if no other link is in it. Links that remain after that, and for which `is_meant` is still
/// true, are deleted one by one.
/// Another link could be deleted with the group only if another program gave it the same 32-bit number between that reading and the
/// deletion.
#[doc(alias = "IFLA_GROUP")]
pub(crate) fn delete_all(netlink: &Netlink, links: &[Link], is_meant: impl Fn(&Link) -> bool) -> Result<()> {
    let mut errors = Errors::default();
    for chunk in links.chunks(AT_ONCE) {
        errors.note(match chunk {
            [one] => delete(netlink, one),
            chunk => random_group().and_then(|group| delete_group(netlink, chunk, group, &is_meant)),
        });
    }
    errors.finish()
}

fn delete_group(netlink: &Netlink, links: &[Link], group: u32, is_meant: impl Fn(&Link) -> bool) -> Result<()> {
    let mut batch = Batch::new();
    let change = LinkChange::default().group(group);
    for link in links {
        batch.set_link_if_present(link.index, &change);
    }
    netlink.send(batch)?;
    let ours: BTreeSet<u32> = links.iter().map(|link| link.index).collect();
    let is_to_go = |link: &Link| ours.contains(&link.index) && is_meant(link);
    let mut members = netlink.links()?;
    members.retain(|link| link.group == group);
    if let Some(first) = members.first()
        && members.iter().all(is_to_go)
    {
        match Place::free() {
            Some(place) => finish_later(&place, netlink.unregister_group(group, first.index))?,
            None => absent_is_done(netlink.delete_group(group))?,
        }
    }
    let mut errors = Errors::default();
    for link in netlink.links()?.iter().filter(|link| is_to_go(link)) {
        errors.note(delete(netlink, link));
    }
    errors.finish()
}

/// The number of a group. It is not 0, which is the default group of all links.
fn random_group() -> Result<u32> {
    let number = u32::from_ne_bytes(random::bytes("a group")?);
    Ok(number.max(1))
}

/// Records the child that waits until the links are freed.
fn finish_later(place: &Place, unregistered: cnikit_netlink::Result<Option<SlowSend>>) -> Result<()> {
    absent_is_done(unregistered.map(|child| child.into_iter().for_each(|child| place.record(child))))
}

fn absent_is_done(deleted: cnikit_netlink::Result<()>) -> Result<()> {
    match deleted {
        Err(error) if !error.is_absent() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use cnikit_netlink::NewBridge;
    use cnikit_netns::Inside;

    use super::*;

    const GROUP: u32 = 0x6b69_7431;

    /// Deletes the group, and returns the names of the links that remain: of three in the group, and a fourth in no group.
    fn left(is_meant: impl Fn(&Link) -> bool + Send, meant: &[&str]) -> Vec<String> {
        let work = move |_: &Inside| {
            let host = Netlink::here().unwrap();
            let made = |name: &str| host.create_bridge(&NewBridge::new(name)).unwrap();
            let links = ["one", "two", "three", "four"].map(made);
            host.change(links[2].index, &LinkChange::default().group(GROUP)).unwrap();
            let mut gone = links[0].clone();
            gone.index = 999;
            let meant: Vec<Link> = links.iter().filter(|link| meant.contains(&&*link.name)).cloned().collect();
            delete_group(&host, &[meant, vec![gone]].concat(), GROUP, is_meant).unwrap();
            host.links().unwrap().into_iter().map(|link| link.name).filter(|name| name != "lo").collect()
        };
        cnikit_netns::make::anonymous().unwrap().enter(work).unwrap()
    }

    #[test]
    fn only_the_links_of_a_group_are_deleted() {
        assert_eq!(left(|_| true, &["one", "two", "three"]), ["four"]);
        assert_eq!(left(|_| true, &["three"]), ["one", "two", "four"]);
    }

    /// `is_meant` is called for each link of a group, and not for one that is deleted alone.
    #[test]
    fn links_are_deleted_in_groups_of_sixty_four() {
        let work = |_: &Inside| {
            let host = Netlink::here().unwrap();
            let made = |n: usize| {
                let name = format!("br{n}");
                host.create_bridge(&NewBridge::new(name)).unwrap()
            };
            let links: Vec<Link> = (0..=64).map(made).collect();
            let asked = RefCell::new(BTreeMap::<u32, BTreeSet<u32>>::new());
            let is_meant = |link: &Link| {
                asked.borrow_mut().entry(link.group).or_default().insert(link.index);
                true
            };
            delete_all(&host, &links, is_meant).unwrap();
            let groups = asked.into_inner();
            assert_eq!(groups.values().map(BTreeSet::len).collect::<Vec<_>>(), [64], "{groups:?}");
            assert!(!groups.contains_key(&0), "0 is the default group of all links");
            assert_eq!(host.links().unwrap().len(), 1, "only lo is left");
        };
        cnikit_netns::make::anonymous().unwrap().enter(work).unwrap();
    }

    #[test]
    fn another_link_in_the_group_stays_and_ours_are_deleted_all_the_same() {
        assert_eq!(left(|_| true, &["one", "two"]), ["three", "four"]);
        assert_eq!(left(|link| link.name != "three", &["one"]), ["two", "three", "four"]);
    }

    #[test]
    fn a_link_that_no_longer_matches_stays() {
        assert_eq!(left(|link| link.name == "one", &["one", "two"]), ["two", "three", "four"]);
    }

    #[test]
    fn a_link_that_leaves_the_group_at_the_last_moment_is_deleted_all_the_same() {
        let meddled = |link: &Link| {
            let other = LinkChange::default().group(0);
            link.group != GROUP || link.name != "one" || Netlink::here().unwrap().change(link.index, &other).is_ok()
        };
        assert_eq!(left(meddled, &["one", "two", "three"]), ["four"]);
    }
}
