//! The ids (nsid) that namespaces have for each other.

use cnikit_netns::Netns;
use cnikit_testkit::own_process::in_own_process;

use crate::scene::{inside, netns, veth};

#[test]
fn the_id_of_a_namespace_is_that_of_links_into_it() {
    let (_here_netns, here) = inside();
    let first = netns();
    let second = netns();
    let to_first = here.create_veth(&veth("veth1", "eth0", &first)).unwrap();
    let to_second = here.create_veth(&veth("veth2", "eth0", &second)).unwrap();

    let numbers = [&first, &second].map(|netns| here.namespace_id(netns).unwrap());
    assert_eq!([to_first.lower_netns, to_second.lower_netns], numbers);
    assert!(numbers[0].is_some() && numbers[1].is_some());
    assert_ne!(numbers[0], numbers[1]);
    let numbers_again = [&second, &first].map(|netns| here.namespace_id(netns).unwrap());
    assert_eq!(numbers_again, [numbers[1], numbers[0]], "as they were read before");
    assert_eq!(here.link("veth2").unwrap().lower_netns, numbers[1]);
}

/// Runs in a process of its own: a program that another test starts meanwhile would inherit the descriptor, and hold the namespace
/// until its exec.
#[test]
fn a_link_is_read_by_namespace_id_while_the_namespace_exists() {
    let name = "namespace::a_link_is_read_by_namespace_id_while_the_namespace_exists";
    in_own_process(name, read_by_its_number);
}

#[expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
fn read_by_its_number() {
    let (_here_netns, here) = inside();
    let there = netns();
    let near = here.create_veth(&veth("near", "far", &there)).unwrap();
    let number = near.lower_netns.unwrap();
    let index = near.lower.unwrap();
    let far = here.find_link_in(number, index).unwrap().unwrap();
    assert_eq!((far.name.as_str(), far.lower, far.index), ("far", Some(near.index), index));
    assert_eq!(here.find_link_in(number, 4711).unwrap(), None);
    assert_eq!(here.find_link_in(number + 7, index).unwrap(), None);
    drop(there);
    assert_eq!(here.find_link_in(number, index).unwrap(), None, "though the kernel may not have removed it yet");
}

#[test]
fn each_namespace_counts_for_itself() {
    let (here_netns, here) = inside();
    let (there_netns, there) = inside();
    // This namespace assigns its first ids to two other namespaces, so that the ids compared below are not equal by chance.
    let others = [netns(), netns()];
    for (number, other) in others.iter().enumerate() {
        there.create_veth(&veth(&format!("veth{number}"), "eth0", other)).unwrap();
    }
    here.create_veth(&veth("near", "far", &there_netns)).unwrap();

    assert_eq!(there.link("far").unwrap().lower_netns, Some(2));
    assert_eq!(there.namespace_id(&here_netns).unwrap(), Some(2));
    assert_eq!(here.namespace_id(&there_netns).unwrap(), Some(0));
}

#[test]
fn a_namespace_without_links_has_no_id_and_a_query_assigns_none() {
    let (here_netns, here) = inside();
    let other = netns();
    for _ in 0..2 {
        assert_eq!(here.namespace_id(&other).unwrap(), None);
        assert_eq!(here.namespace_id(&here_netns).unwrap(), None, "nor the namespace for itself");
    }
}

#[test]
fn a_file_that_is_not_a_namespace_is_refused_with_its_path() {
    let (_here_netns, here) = inside();
    let error = here.namespace_id(&Netns::unopened("/run/gone").unwrap()).unwrap_err();
    assert_eq!((error.errno, error.object.as_str()), (libc::EINVAL, "/run/gone"), "{error}");
}
