//! The files of cnikit-agent. Its build takes longer than all of these tests, so one run of four of `scripts/test packages` has
//! them, and each with `CNIKIT_CAMPAIGNS=whole`. The script says so if a run has not.

use std::collections::BTreeSet;
use std::fs;

use cnikit_tests::debian_root::Debian;
use cnikit_tests::release_files::{file, kinds, sh};

/// Whether this run has its files.
fn is_made() -> bool {
    kinds().contains("agent")
}

fn install(debian: &Debian, name: &str, which: usize) -> String {
    debian.sh(&format!("dpkg --install {}", debian.give(&file(which, &format!("{name}_"), "_amd64.deb"))))
}

#[test]
fn the_agents_package_is_installed_upgraded_and_removed_and_starts_nothing() {
    if !is_made() {
        return;
    }
    let debian = Debian::new();
    let empty = debian.files();
    install(&debian, "cnikit-agent", 0);
    assert!(debian.sh("cnikit-agent --version").starts_with("cnikit-agent "));
    let files = debian.sh("dpkg -L cnikit-agent");
    for path in [
        "/usr/bin/cnikit-agent",
        "/usr/lib/systemd/system/cnikit-agent.service",
        "/usr/share/man/man8/cnikit-agent.8.gz",
        "/usr/share/doc/cnikit-agent/agent.json",
        "/usr/share/doc/cnikit-agent/copyright",
    ] {
        assert!(files.lines().any(|line| line == path), "{path}: {files}");
    }
    let unit = fs::read_to_string(debian.root.join("usr/lib/systemd/system/cnikit-agent.service")).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/cnikit-agent run\n"), "{unit}");
    assert!(unit.contains("\nConditionPathExists=/etc/cnikit/agent.json\n"), "{unit}");
    let line =
        "systemd-analyze verify --recursive-errors=no --root=. cnikit-agent.service 2>&1 | (! grep cnikit-agent)";
    sh(&debian.root, line);
    let enabled = debian.sh("find /etc/systemd -name 'cnikit-agent*'");
    assert_eq!(enabled, "", "the installation enables nothing");

    debian.sh("mkdir /etc/cnikit && cp /usr/share/doc/cnikit-agent/agent.json /etc/cnikit/");
    // The example is a configuration: only the files that it names are missing.
    let (_, printed) = debian.try_sh("cnikit-agent list");
    assert!(printed.contains("/etc/cnikit/ca.pem"), "{printed}");
    let first = debian.sh("dpkg-query -W -f '${Version}' cnikit-agent");
    install(&debian, "cnikit-agent", 1);
    assert_ne!(debian.sh("dpkg-query -W -f '${Version}' cnikit-agent"), first);
    debian.sh("dpkg --purge cnikit-agent");
    let left: BTreeSet<String> = debian.files().difference(&empty).cloned().collect();
    let configuration = ["/etc/cnikit", "/etc/cnikit/agent.json"].map(str::to_owned);
    assert_eq!(left, BTreeSet::from(configuration), "the operator's");
}

/// Without an agent that runs, the packaged plugin runs the packaged program, which asks etcd.
#[test]
fn the_packaged_plugin_finds_the_packaged_agent() {
    if !is_made() {
        return;
    }
    let debian = Debian::new();
    install(&debian, "cnikit", 0);
    let conf = r#"{"cniVersion":"1.1.0","name":"pods","type":"bridge","ipam":{"type":"pool","pool":"blue"}}"#;
    fs::write(debian.root.join("files/conf"), conf).unwrap();
    let add = "CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_IFNAME=eth0 CNI_NETNS=/proc/self/ns/net CNI_NETNS_OVERRIDE=1 \
               CNI_PATH=/usr/lib/cni /usr/lib/cni/pool </files/conf";
    let (_, printed) = debian.try_sh(add);
    assert!(printed.contains("no agent listens on"), "{printed}");
    install(&debian, "cnikit-agent", 0);
    debian.sh(r#"mkdir /etc/cnikit && echo '{"endpoints":["http://127.0.0.1:1"],"node":"a"}' >/etc/cnikit/agent.json"#);
    let (_, printed) = debian.try_sh(add);
    assert!(printed.contains("etcd at http://127.0.0.1:1: ") && printed.contains("\"code\":11"), "{printed}");
}

#[test]
fn the_agents_tarball_has_its_unit_manual_example_and_manifests() {
    if !is_made() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    sh(dir.path(), &format!("tar -xzf '{}'", file(0, "cnikit-agent-linux-amd64-v", ".tgz").display()));
    let names: BTreeSet<String> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected = [
        "LICENSE",
        "agent.json",
        "agent.md",
        "cnikit-agent",
        "cnikit-agent.8",
        "cnikit-agent.service",
        "crds.yaml",
        "rbac.yaml",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
}
