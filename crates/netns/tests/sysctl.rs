//! Sysctls are those of the namespace that the thread is in.

use cnikit_netns::sysctl::{self, SysctlChange};
use cnikit_netns::{Inside, boot_id, machine_id, make};

const FORWARD: &str = "net/ipv4/ip_forward";

#[test]
fn a_setting_is_read_written_once_and_only_in_its_namespace() {
    let outside = sysctl::read(&Inside::here(), FORWARD).unwrap();
    let netns = make::anonymous().unwrap();
    netns
        .enter(|inside| {
            let old = sysctl::read(inside, FORWARD).unwrap();
            let new = if old == "1" { "0" } else { "1" };
            assert_eq!(sysctl::set(inside, FORWARD, new).unwrap(), SysctlChange::From(old));
            assert_eq!(sysctl::set(inside, FORWARD, new).unwrap(), SysctlChange::Already);
            assert_eq!(sysctl::read(inside, FORWARD).unwrap(), new);
        })
        .unwrap();
    assert_eq!(sysctl::read(&Inside::here(), FORWARD).unwrap(), outside);
}

#[test]
fn a_value_of_several_numbers_is_compared_as_numbers() {
    let netns = make::anonymous().unwrap();
    netns
        .enter(|inside| {
            let key = "net/ipv4/ip_local_port_range";
            sysctl::set(inside, key, "20000 30000").unwrap();
            assert_eq!(sysctl::read(inside, key).unwrap(), "20000\t30000");
            assert_eq!(sysctl::set(inside, key, "20000 30000").unwrap(), SysctlChange::Already);
        })
        .unwrap();
}

#[test]
fn a_value_that_the_kernel_writes_in_full_is_equal() {
    let netns = make::anonymous().unwrap();
    netns
        .enter(|inside| {
            let key = "net/ipv4/tcp_fastopen_key";
            let value = "1-2-3-ABCD";
            sysctl::set(inside, key, value).unwrap();
            assert_eq!(sysctl::read(inside, key).unwrap(), "00000001-00000002-00000003-0000abcd");
            assert_eq!(sysctl::set(inside, key, value).unwrap(), SysctlChange::Already);
        })
        .unwrap();
}

/// A list that is longer than a page: a second read from the kernel does not return its end.
#[test]
fn a_long_value_is_read_and_written_whole() {
    let netns = make::anonymous().unwrap();
    netns
        .enter(|inside| {
            let key = "net/ipv4/ip_local_reserved_ports";
            for count in [110, 2000] {
                let ports: Vec<String> = (0..count).map(|n| (20001 + 2 * n).to_string()).collect();
                let value = ports.join(",");
                sysctl::set(inside, key, &value).unwrap();
                assert_eq!(sysctl::read(inside, key).unwrap(), value);
                assert_eq!(sysctl::set(inside, key, &value).unwrap(), SysctlChange::Already);
            }
        })
        .unwrap();
}

#[test]
fn an_absent_setting_differs_from_a_refused_value() {
    let netns = make::anonymous().unwrap();
    netns
        .enter(|inside| {
            let absent = sysctl::set(inside, "net/ipv6/conf/eth9/accept_ra", "0").unwrap_err();
            assert!(absent.is_absent(), "{absent}");
            let refused = sysctl::set(inside, FORWARD, "many").unwrap_err();
            assert_eq!(refused.errno(), Some(libc::EINVAL));
            assert!(refused.to_string().contains("cannot set the sysctl net/ipv4/ip_forward to \"many\""), "{refused}");
        })
        .unwrap();
}

#[test]
fn a_key_that_leads_anywhere_but_below_net_is_refused() {
    let here = Inside::here();
    let bad = ["", "net", "net/", "kernel/hostname", "/net/core/somaxconn", "net/../kernel/hostname", "net//core"];
    for key in bad.into_iter().chain(["net/./core/somaxconn", "net/core/somaxconn\0", "net.ipv4.ip_forward"]) {
        let error = sysctl::read(&here, key).unwrap_err();
        assert!(error.errno().is_none() && !error.is_absent(), "{key:?}: {error}");
    }
}

#[test]
fn a_link_name_with_dots_in_it_is_part_of_a_key() {
    let here = Inside::here();
    assert!(sysctl::read(&here, "net/ipv4/conf/eth0.7/forwarding").unwrap_err().is_absent());
}

#[test]
fn this_boot_and_this_machine_have_names() {
    let id = boot_id().unwrap();
    assert_eq!((id.len(), id.split('-').count()), (36, 5), "{id}");
    assert_eq!(boot_id().unwrap(), id);
    assert!(machine_id().is_none_or(|id| id.len() == 32));
}
