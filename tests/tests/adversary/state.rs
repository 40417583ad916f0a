//! Stored files: on a full disk, under any umask, and with other file types in their place.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use cnikit_testkit::life::SHARED;
use cnikit_testkit::{Host, HostSnapshot};
use cnikit_tests::scene::Scene;
use cnikit_tests::served::{served, served_together};
use cnikit_tests::{wrapped, write_pool_files};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use serde_json::json;

use crate::rows;

/// Runs `work` on a host, in a thread with a mount namespace of its own.
fn mounted<T: Send>(host: &Host, work: impl FnOnce() -> T + Send) -> T {
    host.enter(|| {
        unshare_mounts();
        work()
    })
}

/// Gives this thread a mount namespace of its own.
fn unshare_mounts() {
    #[expect(clippy::disallowed_methods, reason = "a mount namespace, not a network's; it goes with this thread")]
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
}

#[test]
fn on_a_full_disk_an_add_is_undone_and_a_del_works() {
    for plugin in rows::plugins_here(40) {
        let subject = served_together(plugin);
        let host = subject.host();
        let [one, two] = [(); 2].map(|()| subject.container(&host));
        let disk = host.dir().join("disk");
        fs::create_dir(&disk).unwrap();
        let subject = subject.at(&disk);
        mounted(&host, || {
            mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=128k")).unwrap();
            prepare(plugin, &disk);
            let result = subject.add(&host, "c-one", &one);
            host.try_sh(&format!("cat /dev/zero >{}/fill 2>/dev/null", disk.display()));
            let before = HostSnapshot::of(&host);
            let inside = HostSnapshot::inside(&two);
            let output = subject.call(&host, "ADD", "c-two", &two.path(), &[]);
            let (_, text) = output.refused();
            assert!(text.contains("No space left") || text.contains("is full"), "{plugin}: {text}");
            HostSnapshot::inside(&two).assert_unchanged_since(&inside, &[], plugin);
            let left = HostSnapshot::of(&host).added_since(&before, &SHARED);
            assert!(left.iter().all(|line| !line.contains("c-two") && !line.contains("veth")), "{plugin}: {left:#?}");
            subject.del(&host, "c-one", &one, &result);
            subject.call(&host, "DEL", "c-two", &two.path(), &[]).ok();
            let names = host.sh(&format!("cd {} && find . -type f ! -name fill", disk.display()));
            assert!(!names.contains("10.77.0.") && !names.contains("c-one"), "{plugin}: {names}");
            fs::remove_file(disk.join("fill")).unwrap();
            let result = subject.add(&host, "c-two", &two);
            subject.del(&host, "c-two", &two, &result);
        });
    }
}

/// Writes what a plugin needs in the directory that its files are in.
fn prepare(plugin: &str, dir: &Path) {
    if plugin == "pool" {
        write_pool_files(dir, "testnet");
    }
}

#[test]
fn under_umask_0_other_users_cannot_access_stored_files() {
    for plugin in rows::plugins_here(42) {
        let subject = served(plugin);
        let host = subject.host();
        let container = subject.container(&host);
        let mut subject = subject.at(&host.dir().join("kept"));
        prepare(plugin, &host.dir().join("kept"));
        let open = wrapped(&subject, ":");
        let script = open.path().join(&subject.plugin);
        let text = fs::read_to_string(&script).unwrap();
        fs::write(&script, text.replacen("#!/bin/sh\n", "#!/bin/sh\numask 0\n", 1)).unwrap();
        subject.bin = open.path().to_owned();
        let output = subject.call(&host, "ADD", "c-one", &container.path(), &[]);
        assert_eq!(output.exit, 0, "{output:?}");
        let found = host.sh(&format!(
            "cd {} && find . -perm /022 ! -type l; find . -type f -perm /077 -size +0; true",
            host.dir().join("kept").display()
        ));
        assert_eq!(found, "", "{plugin}");
    }
}

#[test]
fn a_cache_entry_that_is_a_link_or_a_fifo_is_not_followed() {
    for what in ["link", "fifo", "directory"] {
        let scene = Scene::new();
        let list = scene.list("net", &json!([scene.bridge()]));
        let runtime = scene.runtime();
        scene.host.enter(|| runtime.add(&list, &scene.at())).unwrap();
        let entry = scene.path("state/results/net-c1-eth0");
        let secret = scene.path("secret");
        fs::write(&secret, "root:a-secret:19000:0:99999:7:::\n").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        fs::remove_file(&entry).unwrap();
        match what {
            "link" => symlink(&secret, &entry).unwrap(),
            "fifo" => drop(scene.host.sh(&format!("mkfifo {}", entry.display()))),
            _ => fs::create_dir(&entry).unwrap(),
        }
        let outcome = std::thread::scope(|scope| {
            let (send, receive) = std::sync::mpsc::channel();
            let runtime = &runtime;
            let list = &list;
            let scene = &scene;
            scope.spawn(move || {
                let output = scene.host.enter(|| format!("{:?}", runtime.del(list, &scene.at())));
                let _ = send.send(output);
            });
            receive.recv_timeout(Duration::from_secs(100)).unwrap_or_else(|_| panic!("{what}: no call returns in time"))
        });
        assert!(!outcome.contains("a-secret"), "{what}: {outcome}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root:a-secret:19000:0:99999:7:::\n", "{what}");
        assert!(!scene.host.sh("ip -o link").contains("veth"), "{what}: {outcome}");
    }
}
