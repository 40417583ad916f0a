//! Another user of the node puts FIFOs and symbolic links where root opens files.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use cnikit_testkit::{CallOutput, Host, Subject};
use cnikit_tests::campaign_subjects::source_routing;
use cnikit_tests::state_files::{self, MADE_BY_SPOIL, SOON, SPOILS};
use cnikit_tests::{bin, host_device, subject};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::actor::as_another_user;

/// A directory in which any user may write, as in `/tmp`, but without the sticky bit.
fn open_to_all() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    dir
}

fn host_local(dir: &Path) -> Subject {
    subject("host-local", json!({"ipam": {"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": dir}}))
}

/// An ADD of host-local with the log at this path.
fn logging(host: &Host, plugin: &Subject, id: &str, log: &Path) -> CallOutput {
    let variables = [("CNI_LOG", "info"), ("CNI_LOG_FILE", log.to_str().unwrap())];
    plugin.call_raw(host, "ADD", id, "/run/netns/any", plugin.conf.to_string().as_bytes(), &variables)
}

#[test]
fn a_log_is_a_regular_file_of_ours_or_stderr_gets_the_lines_and_the_reason() {
    let host = Host::new();
    let place = open_to_all();
    let plugin = host_local(&host.dir().join("leases"));
    let victim = place.path().join("victim");
    fs::write(&victim, "as it was\n").unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let cases = [
        ("fifo", format!("mkfifo {}", at("fifo")), "it is not a regular file"),
        // Another process reads the FIFO, so that an open for writing would not block.
        ("read", format!("mkfifo {0}; (timeout 20 cat {0} >/dev/null 2>&1 &)", at("read")), "it is not a regular file"),
        ("link", format!("ln -s {} {}", victim.display(), at("link")), "it is a symbolic link"),
        ("dangling", format!("ln -s {} {}", at("new"), at("dangling")), "it is a symbolic link"),
        ("theirs", format!("touch {}", at("theirs")), "it belongs to another user"),
        ("directory", format!("mkdir {}", at("directory")), "Is a directory"),
    ];
    for (n, (name, make, why)) in cases.into_iter().enumerate() {
        host.sh(&as_another_user(&make));
        let began = Instant::now();
        let output = logging(&host, &plugin, &format!("c-{n}"), &place.path().join(name));
        assert!(began.elapsed() < SOON, "{name}: {:?}", began.elapsed());
        let lines: Vec<Value> = output.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((output.exit, lines.len()), (0, 2), "{name}: {output:?}");
        let reason = lines[0]["msg"].as_str().unwrap();
        assert!(reason.contains(&at(name)) && reason.contains(why), "{name}: {reason}");
        assert_eq!(lines[1]["step"], "call", "{name}");
    }
    // A second name of a file that belongs to root.
    fs::hard_link(&victim, place.path().join("second")).unwrap();
    assert!(logging(&host, &plugin, "c-hard", &place.path().join("second")).stderr.contains("has another name too"));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was\n");
    assert!(!place.path().join("new").exists() && fs::read_to_string(place.path().join("theirs")).unwrap().is_empty());
}

#[test]
fn nothing_is_open_to_other_users_under_any_umask() {
    let host = Host::new();
    let place = open_to_all();
    let plugin = host_local(&host.dir().join("leases"));
    let log = place.path().join("log");
    let conf = place.path().join("conf");
    fs::write(&conf, plugin.conf.to_string()).unwrap();
    let call = "CNI_COMMAND=ADD CNI_CONTAINERID=c-one CNI_NETNS=/run/netns/any CNI_IFNAME=eth0";
    let bin = plugin.bin.display();
    let log_name = log.display();
    let line = format!("umask 0; {call} CNI_PATH={bin} CNI_LOG=info CNI_LOG_FILE={log_name} {bin}/host-local");
    host.sh(&format!("{line} <{}", conf.display()));
    let found = fs::metadata(&log).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid()), (0o600, 0));
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 1);
    let leases = host.dir().join("leases");
    assert_eq!(host.sh(&format!("find {} -perm /022 -o -type f -perm /077", leases.display())), "");
    let network = json!({"cniVersion": "1.1.0", "name": "testnet", "plugins": [plugin.conf]});
    fs::write(host.dir().join("net.conflist"), network.to_string()).unwrap();
    let tool = cnikit_tests::program("cnitool");
    let dir = host.dir().display();
    let line = format!("umask 0; NETCONFPATH={dir} CNI_CACHE_DIR={dir}/cache CNI_PATH={bin} {}", tool.display());
    let netns = host.container().path();
    host.sh(&format!("{line} add testnet {netns}; find {dir}/cache | grep -q results/"));
    assert_eq!(host.sh(&format!("find {dir}/cache {dir}/leases -perm /022 -o -type f -perm /077")), "");
}

#[test]
fn no_fifo_and_no_link_in_a_data_directory_is_opened() {
    for (what, make) in SPOILS {
        let host = Host::new();
        let place = tempfile::tempdir().unwrap();
        let plugin = host_local(place.path());
        let network = place.path().join("testnet");
        let spoil = |name: &str| state_files::spoil(&host, &network.join(name), make);
        let call = |verb: &str, id: &str| {
            let began = Instant::now();
            let output = plugin.call(&host, verb, id, "/run/netns/any", &[]);
            assert!(began.elapsed() < SOON, "{what}: {verb} took {:?}", began.elapsed());
            output
        };
        call("ADD", "c-one").ok();
        // A hint only: it is written again.
        spoil("last_reserved_ip.0");
        call("ADD", "c-two").ok();
        let hint = fs::symlink_metadata(network.join("last_reserved_ip.0")).unwrap();
        assert!(hint.is_file() && hint.mode() & 0o7777 == 0o600, "{what}");
        // The lock: without it nothing is done, and the error names the file in its place.
        assert_eq!(fs::metadata(network.join("lock")).unwrap().mode() & 0o7777, 0o600);
        spoil("lock");
        for verb in ["ADD", "DEL"] {
            let (_, text) = call(verb, "c-three").refused();
            assert!(
                text.contains("testnet/lock") && text.contains("find out which program writes in this directory"),
                "{text}"
            );
        }
        host.sh(&format!("rm {}/lock", network.display()));
        call("DEL", "c-one").ok();
        call("DEL", "c-two").ok();
        assert!(!Path::new(MADE_BY_SPOIL).exists());
    }
    [source_routing(bin()), host_device(bin())].iter().for_each(state_files::opens_no_spoiled_file);
}

/// Other users can open the lock that the upstream plugins made, until our host-local has locked it once.
#[test]
fn a_lock_of_the_upstream_host_local_is_closed_to_other_users() {
    let host = Host::new();
    let place = tempfile::tempdir().unwrap();
    let plugin = host_local(place.path());
    let theirs = plugin.in_directory(cnikit_tests::references()[1].clone());
    theirs.call(&host, "ADD", "c-one", "/run/netns/any", &[]).ok();
    let lock = place.path().join("testnet/lock");
    assert_ne!(fs::metadata(&lock).unwrap().mode() & 0o077, 0);
    plugin.call(&host, "DEL", "c-one", "/run/netns/any", &[]).ok();
    assert_eq!(fs::metadata(&lock).unwrap().mode() & 0o077, 0);
    theirs.call(&host, "ADD", "c-two", "/run/netns/any", &[]).ok();
}

/// Files of other programs that a configuration names: a call waits for none of them.
#[test]
fn no_file_that_a_configuration_names_is_waited_for() {
    let host = Host::new();
    let container = Host::new().container();
    let fifo = host.dir().join("fifo");
    host.sh(&format!("mkfifo {}", fifo.display()));
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24", "resolvConf": fifo, "dataDir": "$DIR/leases"});
    let env = vec![("NETCONFPATH".to_owned(), host.dir().display().to_string())];
    for (plugin, keys) in [
        ("host-local", json!({"ipam": ipam})),
        ("flannel", json!({"subnetFile": fifo, "dataDir": "$DIR/flannel"})),
        ("flannel", json!({"dataDir": "$DIR/flannel-kept"})),
    ] {
        let plugin = subject(plugin, keys).at(host.dir()).with_env(env.clone());
        let began = Instant::now();
        plugin.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    // A runtime's configuration directory and its cache.
    symlink(&fifo, host.dir().join("10-net.conflist")).unwrap();
    let cache = host.dir().join("cache");
    fs::create_dir_all(cache.join("results")).unwrap();
    host.sh(&format!("mkfifo {}/results/net-c-one-eth0", cache.display()));
    let tool = cnikit_tests::program("cnitool");
    let dir = host.dir().display();
    let began = Instant::now();
    for line in ["list", "add net /run/netns/none", "config validate"] {
        let command = format!("NETCONFPATH={dir} CNI_CACHE_DIR={dir}/cache {} {line}", tool.display());
        let (_, output) = host.try_sh(&command);
        assert!(began.elapsed() < SOON, "{line}: {:?} {output}", began.elapsed());
    }
}

/// The cache directory that `scripts/lib.sh` chooses, in a mount namespace with its own `/var/tmp`, in which another user made that
/// name first.
fn cache_used(host: &Host, theirs: &str, variables: &str) -> String {
    let needs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/lib.sh");
    let home = host.dir().display();
    let inside = host.dir().join("inside");
    let line = format!(
        "set -e; mount -t tmpfs -o mode=1777 none /var/tmp; {theirs}
         cd /; HOME={home} {variables} bash -euc '. {}; need_cache; echo \"cache: $CACHE $CNIKIT_CACHE $(stat -c \"%u %a\" $CACHE)\"'",
        needs.display()
    );
    fs::write(&inside, line).unwrap();
    let output = host.sh(&format!("env -u CNIKIT_CACHE -u XDG_CACHE_HOME unshare --mount bash {}", inside.display()));
    output.lines().find_map(|line| line.strip_prefix("cache: ")).unwrap_or(&output).to_owned()
}

#[test]
fn a_cache_that_another_user_may_have_filled_is_not_used_by_scripts() {
    let host = Host::new();
    let made_by_them = |line: &str| as_another_user(line);
    let own = format!("{0}/.cache/cnikit {0}/.cache/cnikit 0 700", host.dir().display());
    let usual = "/var/tmp/cnikit /var/tmp/cnikit 0";
    assert_eq!(cache_used(&host, "true", ""), format!("{usual} 700"));
    assert_eq!(cache_used(&host, "mkdir -m 755 /var/tmp/cnikit", ""), format!("{usual} 755"), "it was made before");
    for theirs in [
        &made_by_them("mkdir -m 755 /var/tmp/cnikit"),
        &made_by_them("mkdir -m 777 /var/tmp/cnikit"),
        &made_by_them("ln -s /root /var/tmp/cnikit"),
        &made_by_them("touch /var/tmp/cnikit"),
        "mkdir -m 777 /var/tmp/cnikit",
        "mkdir -m 775 /var/tmp/cnikit",
    ] {
        assert_eq!(cache_used(&host, theirs, ""), own, "{theirs}");
    }
    let named = "CNIKIT_CACHE=/var/tmp/named";
    assert_eq!(cache_used(&host, "mkdir -m 1777 /var/tmp/named", named), own);
    assert_eq!(cache_used(&host, "mkdir -m 700 /var/tmp/named", named), "/var/tmp/named /var/tmp/named 0 700");
    // In a directory of theirs they could exchange it.
    let below = "CNIKIT_CACHE=/var/tmp/open/cache";
    let theirs = "mkdir -m 777 /var/tmp/open; mkdir -m 700 /var/tmp/open/cache";
    assert_eq!(cache_used(&host, theirs, below), own);
}
