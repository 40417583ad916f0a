//! Checks of names.

use cnikit_types::{check_container_id, check_ifname, check_network_name, check_plugin_name};

#[test]
fn ids_and_network_names_are_words_of_any_length() {
    for good in ["a", "0", "A-b_c.d", &"x".repeat(300)] {
        assert_eq!((check_container_id(good), check_network_name(good)), (Ok(()), Ok(())), "{good}");
    }
    for bad in ["-a", ".a", "_a", "a b", "a/b", "a\n", "é", "a\0"] {
        assert_eq!(check_container_id(bad), Err("invalid characters in containerID".into()), "{bad:?}");
        assert_eq!(check_network_name(bad), Err("invalid characters found in network name".into()), "{bad:?}");
    }
    assert_eq!(check_container_id(""), Err("missing container ID".into()));
    assert_eq!(check_network_name(""), Err("missing network name".into()));
}

#[test]
fn an_interface_name_has_at_most_fifteen_bytes_not_characters() {
    assert_eq!(check_ifname(&"x".repeat(15)), Ok(()));
    assert_eq!(check_ifname(&"x".repeat(16)), Err("interface name is too long".into()));
    assert_eq!(check_ifname("éééééé"), Ok(()));
    assert_eq!(check_ifname("éééééééé"), Err("interface name is too long".into()));
}

#[test]
fn an_interface_name_that_the_kernel_would_refuse_or_change_is_refused() {
    assert_eq!(check_ifname(""), Err("interface name is empty".into()));
    for dots in [".", ".."] {
        assert_eq!(check_ifname(dots), Err("interface name is . or ..".into()));
    }
    for bad in ["a/b", "a:b", "a b", "a\t", "a\u{a0}", "a\u{85}", "a\u{2003}"] {
        let message = "interface name contains / or : or whitespace characters";
        assert_eq!(check_ifname(bad), Err(message.into()), "{bad:?}");
    }
    for bad in ["eth%d", "%", "a\u{1}", "a\0", "a\u{7f}"] {
        assert_eq!(check_ifname(bad), Err("interface name contains % or control characters".into()), "{bad:?}");
    }
    for good in ["eth0", "...", "a.100", "veth-a_b", "@"] {
        assert_eq!(check_ifname(good), Ok(()), "{good}");
    }
}

#[test]
fn a_plugin_name_is_a_file_name_never_a_path() {
    for good in ["bridge", "host-local", "my.plugin_2"] {
        assert_eq!(check_plugin_name(good), Ok(()));
    }
    assert_eq!(check_plugin_name(""), Err("no plugin name provided".into()));
    for bad in [".", "..", "/bin/sh", "../x", "a/b", "a\\b", "a\0", "-rf", "a b"] {
        assert_eq!(check_plugin_name(bad), Err(format!("invalid plugin name: {bad:?}")));
    }
}
