//! File systems that are full or read-only. Each test mounts one in a mount namespace of its own.
#![expect(clippy::unwrap_used, reason = "a test says what should be so")]

mod scene;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cnikit_reservations::{ErrorKind, Owner};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use nix::time::ClockId;
use scene::{Scene, set, store_in};

/// Runs a scene on a tmpfs of its own, mounted in a mount namespace of its own.
fn on_tmpfs<T: Send>(options: &str, work: impl FnOnce(&Scene) -> T + Send) -> T {
    let run = || {
        #[expect(clippy::disallowed_methods, reason = "a mount namespace, not a network's; it goes with this thread")]
        nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let place = tempfile::tempdir().unwrap();
        mount(Some("none"), place.path(), Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        let scene = Scene { store: store_in(place.path().join("data")), place };
        let done = work(&scene);
        nix::mount::umount2(scene.place.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
        done
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn read_only(path: &Path) {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).unwrap();
}

fn entries(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn on_a_full_disk_an_add_is_refused_clearly_and_nothing_is_half_written() {
    for inodes in 2..24 {
        on_tmpfs(&format!("size=1m,nr_inodes={inodes}"), |scene| {
            let sets = [set("10.1.2.0/24"), set("2001:db8::/64")];
            let dir = scene.place.path().join("data/net");
            let mut given = 0;
            let refused = loop {
                match scene.add(&format!("c{given}"), &sets) {
                    Ok(_) => given += 1,
                    Err(refused) => break refused,
                }
                assert!(given < 30);
            };
            assert_eq!(refused.kind, ErrorKind::Disk, "{inodes} inodes: {refused}");
            assert!(refused.text.contains("No space left on device"), "{refused}");
            assert!(refused.hint.as_ref().unwrap().contains("free space or inodes"), "{refused}");
            let files: Vec<String> =
                entries(&dir).into_iter().filter(|name| name.contains("10.1") || name.contains(':')).collect();
            assert_eq!(files.len(), given * 2, "{inodes} inodes: {files:?}");
            for file in files {
                assert!(fs::read_to_string(dir.join(file)).unwrap().starts_with('c'), "whole");
            }
            for n in 0..given {
                assert_eq!(scene.del(&format!("c{n}")), 2, "a DEL needs no space");
            }
        });
    }
}

#[test]
fn with_no_block_left_an_add_is_refused_and_a_del_is_not() {
    on_tmpfs("size=64k", |scene| {
        let sets = [set("10.1.2.0/24")];
        scene.add("a", &sets).unwrap();
        let fill = fs::write(scene.place.path().join("ballast"), vec![1; 1 << 17]);
        assert!(fill.is_err());
        let refused = scene.add("b", &sets).unwrap_err();
        assert!(refused.text.contains("No space left on device"), "{refused}");
        assert!(scene.store.health().unwrap_err().text.contains("No space left on device"));
        assert_eq!(entries(&scene.place.path().join("data/net")), ["10.1.2.2", "last_reserved_ip.0", "lock"]);
        assert_eq!(scene.del("a"), 1);
        fs::remove_file(scene.place.path().join("ballast")).unwrap();
        assert_eq!(scene.add("b", &sets).unwrap(), "10.1.2.3/24");
    });
}

#[test]
fn on_a_read_only_disk_changes_are_refused_and_reads_succeed() {
    on_tmpfs("size=1m", |scene| {
        let sets = [set("10.1.2.0/24")];
        let owner = Owner::new("a", "eth0");
        scene.add("a", &sets).unwrap();
        read_only(scene.place.path());
        let refused = [
            scene.add("b", &sets).unwrap_err(),
            scene.store.release(&owner).unwrap_err(),
            scene.store.health().unwrap_err(),
            scene.store.sweep(&[]).unwrap_err(),
        ];
        for refused in refused {
            assert_eq!(refused.kind, ErrorKind::Disk);
            assert!(refused.text.contains("Read-only file system") && refused.text.contains("/data/net"), "{refused}");
            assert!(refused.hint.unwrap().contains("writable"));
        }
        scene.store.confirm(&owner, &["10.1.2.2".parse().unwrap()]).unwrap();
        assert_eq!(scene.add("a", &sets).unwrap_err().kind, ErrorKind::HoldsAlready);
        assert_eq!(scene.del("unknown"), 0);
    });
}

#[test]
fn on_an_empty_read_only_disk_health_fails_and_del_succeeds() {
    on_tmpfs("size=1m", |scene| {
        read_only(scene.place.path());
        assert!(scene.add("a", &[set("10.1.2.0/24")]).unwrap_err().text.contains("Read-only file system"));
        assert!(scene.store.health().unwrap_err().text.contains("Read-only file system"));
        assert_eq!(scene.del("a"), 0);
    });
}

/// Runs a scene on a ramfs, whose timestamps are from the coarse clock in every kernel.
fn on_ramfs(work: impl FnOnce(&Scene) + Send) {
    on_tmpfs("size=1m", |scene| {
        mount(Some("none"), scene.place.path(), Some("ramfs"), MsFlags::empty(), None::<&str>).unwrap();
        work(scene);
        nix::mount::umount2(scene.place.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    });
}

/// Everything that decides whether an index is used: the directory's times, both clocks, and the header of the index.
fn evidence(scene: &Scene) -> String {
    let directory = fs::metadata(scene.place.path().join("data/net")).unwrap();
    let mtime = (directory.mtime(), directory.mtime_nsec());
    let ctime = (directory.ctime(), directory.ctime_nsec());
    let clock = |id| nix::time::clock_gettime(id).map(|time| (time.tv_sec(), time.tv_nsec()));
    let fine = clock(ClockId::CLOCK_REALTIME);
    let coarse = clock(ClockId::CLOCK_REALTIME_COARSE);
    let index = fs::read(scene.place.path().join("data/.idx/net")).map(|bytes| bytes[..bytes.len().min(128)].to_vec());
    format!("mtime {mtime:?}, ctime {ctime:?}, clock {fine:?}, coarse clock {coarse:?}, index {index:?}")
}

#[test]
fn a_foreign_change_within_one_tick_of_a_coarse_clock_is_seen() {
    on_ramfs(|scene| {
        for n in 0..300 {
            scene.add("ours", &[set("10.1.2.0/24")]).unwrap();
            let sealed = evidence(scene);
            fs::write(scene.place.path().join("data/net/10.9.9.9"), "theirs\r\neth0").unwrap();
            let changed = evidence(scene);
            let freed = (scene.del("theirs"), scene.del("ours"));
            assert_eq!(freed, (1, 1), "round {n}:\nsealed: {sealed}\nchanged: {changed}\nnow: {}", evidence(scene));
        }
    });
}

#[test]
fn an_index_is_complete_for_no_time_that_a_clock_could_give_to_another_change() {
    on_ramfs(|scene| {
        let directory = scene.place.path().join("data/net");
        for n in 0..300 {
            scene.add("ours", &[set("10.1.2.0/24")]).unwrap();
            let sealed = fs::metadata(&directory).unwrap();
            fs::write(directory.join("10.9.9.9"), "theirs\r\neth0").unwrap();
            if sealed.mtime() >= 0 {
                // The kernel gives a change any time that its clock shows, so it may give this one.
                fs::File::open(&directory).unwrap().set_modified(sealed.modified().unwrap()).unwrap();
            }
            assert_eq!((scene.del("theirs"), scene.del("ours")), (1, 1), "round {n}: {}", evidence(scene));
        }
    });
}

#[test]
fn a_file_that_another_program_replaced_within_one_tick_is_read_again() {
    on_ramfs(|scene| {
        let directory = scene.place.path().join("data/net");
        for n in 0..300 {
            let given = scene.add("ours", &[set("10.1.2.0/24")]).unwrap();
            let file = directory.join(given.split('/').next().unwrap());
            // The same inode in the same tick, as ext4 gives it to a file that is created right after another one was removed.
            fs::write(&file, "theirs\r\neth0").unwrap();
            fs::write(directory.join("10.9.9.9"), "another\r\neth0").unwrap();
            assert_eq!((scene.del("another"), scene.del("theirs")), (1, 1), "round {n}: {}", evidence(scene));
            assert_eq!(scene.del("ours"), 0, "round {n}");
        }
    });
}

#[test]
fn a_reservation_that_cannot_be_read_fails_the_del_until_it_can() {
    on_tmpfs("size=1m", |scene| {
        let sets = [set("10.1.2.0/24"), set("2001:db8::/64")];
        scene.add("a", &sets).unwrap();
        scene.add("b", &sets).unwrap();
        fs::remove_file(scene.place.path().join("data/.idx/net")).unwrap(); // now only the files name the owners
        let hidden = scene.place.path().join("data/net/10.1.2.2");
        // A file of sysfs has the size of one page, but ends before that: the read fails as it does at a bad sector.
        mount(Some("/sys/kernel/uevent_seqnum"), &hidden, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        for _ in 0..2 {
            let refused = scene.store.release(&Owner::new("a", "eth0")).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Disk, "{refused}");
            assert!(
                refused.text.contains("a/eth0 may hold one more address: read ") && refused.text.contains("10.1.2.2")
            );
        }
        assert_eq!(
            entries(&scene.place.path().join("data/net"))[..2],
            ["10.1.2.2", "10.1.2.3"],
            "the other container's stay"
        );
        nix::mount::umount2(&hidden, nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert_eq!((scene.del("a"), scene.del("a"), scene.del("b")), (1, 0, 2));
    });
}
