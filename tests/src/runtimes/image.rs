//! A file system with busybox only, and an image of it, made without a registry and without a build tool.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::released;

/// The image's name.
pub const IMAGE: &str = "cnikit.test/busybox:1";

/// This machine's processor, as images name it.
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// A command in the container that ends when a program there listens on port 80: a container counts as started before that.
pub const UNTIL_SERVED: [&str; 3] = [
    "/bin/sh",
    "-c",
    "until /bin/busybox grep -q ':0050 .* 0A ' /proc/net/tcp /proc/net/tcp6; do /bin/sleep 0.05; done",
];

/// The commands of busybox that a container has.
const APPLETS: [&str; 8] = ["cat", "httpd", "ip", "nc", "ping", "sh", "sleep", "wget"];

/// Fills a directory with busybox and a page to be served.
pub(super) fn rootfs(dir: &Path) {
    for below in ["bin", "dev", "etc", "proc", "run", "sys", "tmp", "www"] {
        fs::create_dir_all(dir.join(below)).unwrap();
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    // A program copies it: a child of another thread could inherit our file descriptor, and a file that is open for writing cannot
    // be executed.
    let from = busybox.expect("busybox is installed: `scripts/test` does that");
    assert!(Command::new("cp").arg(from).arg(dir.join("bin/busybox")).status().unwrap().success());
    APPLETS.iter().for_each(|applet| symlink("busybox", dir.join("bin").join(applet)).unwrap());
    fs::write(dir.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").unwrap();
    fs::write(dir.join("www/index.html"), "served\n").unwrap();
}

/// Writes the archive of the plugins' image with this name into a directory, by `scripts/image`. Its files have these bytes more at
/// their end: behind what the kernel loads of a program there may be anything.
pub fn release_image(dir: &Path, name: &str, more: &str) -> PathBuf {
    let built = tempfile::tempdir_in(dir).unwrap().keep();
    for file in ["cni-plugins", "cni-launcher"] {
        let line = "cp \"$1\" \"$2\" && printf %s \"$3\" >>\"$2\"";
        let mut copy = Command::new("sh");
        copy.args(["-c", line, "sh"]).args([released().join(file), built.join(file)]).arg(more);
        assert!(copy.status().unwrap().success(), "{file} cannot be copied");
    }
    let archive = built.join("image.tar");
    let mut image = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/image"));
    image.arg(&archive).arg(format!("{ARCHITECTURE}={}", built.display())).env("IMAGE_NAME", name);
    let packed = image.output().unwrap();
    assert!(packed.status.success(), "{packed:?}");
    archive
}

/// Packs a file system into an archive in the OCI image layout, with this name. Its program sleeps until it gets a signal.
pub(super) fn archive(rootfs: &Path, name: &str, into: &Path) {
    let layout = tempfile::tempdir().unwrap();
    tar(rootfs, into);
    let layer = write_blob(layout.path(), &fs::read(into).unwrap(), "application/vnd.oci.image.layer.v1.tar");
    let config = json!({
        "architecture": ARCHITECTURE, "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh", "-c", "trap exit TERM INT; while :; do sleep 1; done"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = write_blob(layout.path(), config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({"schemaVersion": 2, "mediaType": manifest_type, "config": config, "layers": [layer]});
    let mut manifest = write_blob(layout.path(), manifest.to_string().as_bytes(), manifest_type);
    manifest["annotations"] = json!({"io.containerd.image.name": name});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.path().join("index.json"), index.to_string()).unwrap();
    fs::write(layout.path().join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string()).unwrap();
    tar(layout.path(), into);
}

/// Writes a blob of an image layout. Returns its descriptor.
fn write_blob(layout: &Path, bytes: &[u8], media_type: &str) -> Value {
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let file = layout.join("blob");
    fs::write(&file, bytes).unwrap();
    let printed = Command::new("sha256sum").arg(&file).output().unwrap();
    let sum = String::from_utf8(printed.stdout).unwrap()[..64].to_owned();
    fs::rename(&file, blobs.join(&sum)).unwrap();
    json!({"mediaType": media_type, "digest": format!("sha256:{sum}"), "size": bytes.len()})
}

fn tar(dir: &Path, into: &Path) {
    let packed =
        Command::new("tar").args(["--owner=0", "--group=0", "-C"]).arg(dir).arg("-cf").arg(into).arg(".").status();
    assert!(packed.expect("tar can be started").success(), "{} cannot be packed", dir.display());
}
