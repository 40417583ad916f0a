//! The removal of links, one or many.

use std::collections::BTreeSet;

use cnikit_netlink::{Batch, Link, LinkChange, Netlink};
use cnikit_skel::{Errors, Result};

use crate::link::random;

/// How many links go at once: meanwhile nobody else on the host can change any, for about 2 ms a link.
const AT_ONCE: usize = 64;

/// Deletes a link; that somebody else was faster is success.
pub(crate) fn delete(netlink: &Netlink, link: &Link) -> Result<()> {
    absent_is_done(netlink.delete_link(link.index))
}

/// Deletes links, many at once, of which each `is_meant`: the kernel waits as long for one link as for a group of them.
///
/// To be deleted together, links have to be in one group. They are put into one by a number that was rolled a moment ago;
/// then all links are read again, and only if nobody else's is in it is the group deleted. What is left then, and is still
/// meant, goes one by one.
/// Somebody else's link could go with them if it was given just this number of 32 bits in the moment between the reading
/// and the removal.
#[doc(alias = "IFLA_GROUP")]
pub(crate) fn delete_all(netlink: &Netlink, links: &[Link], is_meant: impl Fn(&Link) -> bool) -> Result<()> {
    let batch = |chunk: &[Link]| match chunk {
        [] => Ok(()),
        [one] => delete(netlink, one),
        chunk => delete_group(netlink, chunk, random_group()?, &is_meant),
    };
    links.chunks(AT_ONCE).map(batch).collect::<Errors>().finish()
}

fn delete_group(netlink: &Netlink, links: &[Link], group: u32, is_meant: impl Fn(&Link) -> bool) -> Result<()> {
    let mut batch = Batch::new();
    let change = LinkChange { group: Some(group), ..LinkChange::default() };
    links.iter().for_each(|link| batch.set_link_if_present(link.index, &change));
    netlink.send(batch)?;
    let ours: BTreeSet<u32> = links.iter().map(|link| link.index).collect();
    let goes = |link: &Link| ours.contains(&link.index) && is_meant(link);
    if netlink.links()?.iter().filter(|link| link.group == group).all(goes) {
        absent_is_done(netlink.delete_group(group))?;
    }
    netlink.links()?.iter().filter(|link| goes(link)).map(|link| delete(netlink, link)).collect::<Errors>().finish()
}

/// Any but 0, which is that of all links that are in none.
fn random_group() -> Result<u32> {
    let number = u32::from_ne_bytes(random::bytes("a group")?);
    Ok(number.max(1))
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

    /// The names that are left, of three links in the group and a fourth that is in none.
    fn left(is_meant: impl Fn(&Link) -> bool + Send, meant: &[&str]) -> Vec<String> {
        let work = move |_: &Inside| {
            let host = Netlink::here().unwrap();
            let made =
                |name: &str| host.create_bridge(&NewBridge { name: name.into(), ..NewBridge::default() }).unwrap();
            let links = ["one", "two", "three", "four"].map(made);
            host.change(links[2].index, &LinkChange { group: Some(GROUP), ..LinkChange::default() }).unwrap();
            let gone = Link { index: 999, ..links[0].clone() };
            let meant: Vec<Link> = links.iter().filter(|link| meant.contains(&&*link.name)).cloned().collect();
            delete_group(&host, &[meant, vec![gone]].concat(), GROUP, is_meant).unwrap();
            host.links().unwrap().into_iter().map(|link| link.name).filter(|name| name != "lo").collect()
        };
        cnikit_netns::make::anonymous().unwrap().enter(work).unwrap()
    }

    #[test]
    fn a_group_goes_at_once_and_nothing_else() {
        assert_eq!(left(|_| true, &["one", "two", "three"]), ["four"]);
        assert_eq!(left(|_| true, &["three"]), ["one", "two", "four"]);
    }

    /// Of each link of a group it is asked whether it is meant, of one that goes alone it is not.
    #[test]
    fn links_go_by_groups_of_sixty_four() {
        let work = |_: &Inside| {
            let host = Netlink::here().unwrap();
            let made = |n: usize| {
                let name = format!("br{n}");
                host.create_bridge(&NewBridge { name, ..NewBridge::default() }).unwrap()
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
            assert!(!groups.contains_key(&0), "that of all links that are in none");
            assert_eq!(host.links().unwrap().len(), 1, "only lo is left");
        };
        cnikit_netns::make::anonymous().unwrap().enter(work).unwrap();
    }

    #[test]
    fn a_stranger_in_the_group_stays_and_ours_go_all_the_same() {
        assert_eq!(left(|_| true, &["one", "two"]), ["three", "four"]);
        assert_eq!(left(|link| link.name != "three", &["one"]), ["two", "three", "four"]);
    }

    #[test]
    fn what_is_no_longer_meant_stays() {
        assert_eq!(left(|link| link.name == "one", &["one", "two"]), ["two", "three", "four"]);
    }

    #[test]
    fn what_somebody_takes_out_of_the_group_at_the_last_moment_goes_all_the_same() {
        let meddled = |link: &Link| {
            let other = LinkChange { group: Some(0), ..LinkChange::default() };
            link.group != GROUP || link.name != "one" || Netlink::here().unwrap().change(link.index, &other).is_ok()
        };
        assert_eq!(left(meddled, &["one", "two", "three"]), ["four"]);
    }
}
