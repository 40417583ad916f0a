//! Programs built on libcni: one that fills the cache with the attachments of a full node, and a runtime that sets up many
//! containers at once. And a plain read of the same files, as a comparison.

use std::fs::{self, File};
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use cnikit_libcni::{Attachment, Cache, InProcess, NetworkList, Networks, PluginOutput, Runtime, load};
use cnikit_netns::make;
use nix::fcntl::{OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use serde_json::json;

use crate::Result;

/// The number of results that are written at the same time, because each waits for the disk.
const KEEPERS: usize = 16;

/// Writes a cached result of each container into `state`, as an ADD of the network does. Each container has a namespace path below
/// `ns`.
pub(crate) fn keep(dir: &Path, containers: impl Iterator<Item = (String, Ipv4Addr)>) -> Result<()> {
    let list = load(&dir.join("net.d"), "bench").map_err(|error| error.to_string())?;
    let netns = make::anonymous().map_err(|error| error.to_string())?;
    let from = format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd());
    fs::create_dir(dir.join("ns")).map_err(|error| error.to_string())?;
    let all: Vec<(String, Ipv4Addr)> = containers.collect();
    for (id, _) in &all {
        let path = dir.join("ns").join(id);
        let bound = File::create(&path)
            .and_then(|_| Ok(mount(Some(from.as_str()), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?));
        bound.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let keep =
        |some: &[(String, Ipv4Addr)]| some.iter().try_for_each(|(id, address)| keep_one(dir, &list, id, *address));
    thread::scope(|scope| {
        let keepers: Vec<_> =
            all.chunks(all.len().div_ceil(KEEPERS).max(1)).map(|some| scope.spawn(|| keep(some))).collect();
        keepers.into_iter().try_for_each(joined)
    })
}

/// The plugin is a function in this process that returns the result of a bridge.
fn keep_one(dir: &Path, list: &NetworkList, id: &str, address: Ipv4Addr) -> Result<()> {
    let path = dir.join("ns").join(id).display().to_string();
    let answer = json!({
        "cniVersion": list.version,
        "interfaces": [
            {"name": "bench0", "mac": "02:00:00:00:00:01", "mtu": 1500},
            {"name": format!("veth{:08x}", address.to_bits()), "mac": "02:00:00:00:00:02", "mtu": 1500},
            {"name": "eth0", "mac": "02:00:00:00:00:03", "mtu": 1500, "sandbox": path},
        ],
        "ips": [{"interface": 2, "address": format!("{address}/16"), "gateway": "10.97.0.1"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.97.0.1"}],
        "dns": {},
    });
    let plugin = &list.plugins[0].plugin;
    let said = PluginOutput { stdout: answer.to_string().into_bytes(), stderr: Vec::new() };
    let bridge = InProcess::default().with(plugin, move |_| Ok(said.clone()));
    let runtime = Runtime { executor: Arc::new(bridge), ..Runtime::new("", Cache::below(&dir.join("state"))) };
    runtime.add(list, &Attachment::new(id, path)).map(drop).map_err(|error| error.to_string())
}

/// Sets up or removes containers, all at once. The arguments are the directories of the scenario and of the plugins, and the paths
/// of the containers' namespaces.
pub(crate) fn pods(setup: bool, words: &[String]) -> Result<()> {
    let [dir, bin, paths @ ..] = words else { return Err("directory, plugins and namespaces are needed".to_owned()) };
    let dir = Path::new(dir);
    let list = load(&dir.join("net.d"), "bench").map_err(|error| error.to_string())?;
    let networks = Networks::new(Runtime::new(bin, Cache::below(&dir.join("state")))).with(list);
    let one = |(n, path): (usize, &String)| {
        let pod = Attachment::new(format!("pod-{n}"), path);
        let done = if setup { networks.setup(&pod).map(drop) } else { networks.remove(&pod).map(drop) };
        done.map_err(|error| error.to_string())
    };
    thread::scope(|scope| {
        let one = &one;
        let pods: Vec<_> = paths.iter().enumerate().map(|pod| scope.spawn(move || one(pod))).collect();
        pods.into_iter().try_for_each(joined)
    })
}

fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().map_err(|_| "a thread panicked".to_owned())?
}

/// Reads every file of these directories with the least work: three system calls each, into one buffer.
pub(crate) fn read(dirs: &[PathBuf]) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    dirs.iter().try_for_each(|dir| read_all(dir, &mut buffer).map_err(|error| format!("{}: {error}", dir.display())))
}

fn read_all(dir: &Path, buffer: &mut [u8]) -> std::io::Result<()> {
    let open = File::open(dir)?;
    for entry in fs::read_dir(dir)? {
        let file = openat(&open, entry?.file_name().as_os_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let _ = File::from(file).read(buffer)?;
    }
    Ok(())
}
