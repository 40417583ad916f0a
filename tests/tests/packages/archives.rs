//! The tarballs, the image, the checksums and the signature.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cnikit_testkit::campaign::runs_all_cases;
use cnikit_tests::release_files::{Podman, file, kinds, release, sh, try_sh};
use cnikit_tests::{NAMES, released};
use serde_json::Value;

fn plugins_tarball() -> PathBuf {
    file(0, "cni-plugins-linux-amd64-v", ".tgz")
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn unpack(dir: &Path) {
    sh(dir, &format!("tar -xzf '{}'", plugins_tarball().display()));
}

fn assert_has_plugins(dir: &Path) {
    for name in NAMES {
        let version = sh(dir, &format!("./{name} --version"));
        assert!(version.contains(&format!("CNI {name} plugin cnikit")), "{version}");
        assert_eq!(fs::metadata(dir.join(name)).unwrap().nlink(), 1, "{name}");
    }
}

/// As upstream's: every plugin at the top.
#[test]
fn the_tarball_has_the_layout_of_upstreams() {
    let dir = tempfile::tempdir().unwrap();
    unpack(dir.path());
    let mut expected: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    expected.extend(["cni-plugins", "cni-launcher", "LICENSE", "README.md"].map(str::to_owned));
    assert_eq!(names_in(dir.path()), expected);
    assert_has_plugins(dir.path());
    let listed = sh(dir.path(), &format!("tar -tvzf '{}'", plugins_tarball().display()));
    assert!(listed.lines().all(|line| line.contains(" 0/0 ") && line.starts_with("-r")), "{listed}");
    assert!(listed.lines().next().unwrap().ends_with("./cni-plugins"), "launchers need it: {listed}");
}

/// tar unlinks a file before it writes one of its name: hard links become files of their own, and a program that runs stays whole.
#[test]
fn the_tarball_is_unpacked_over_hard_links_and_over_upstreams_plugins() {
    let linked = tempfile::tempdir().unwrap();
    fs::copy("/usr/lib/cni/bridge", linked.path().join("bridge")).expect("upstream's plugins are installed");
    for name in NAMES.iter().filter(|name| **name != "bridge") {
        fs::hard_link(linked.path().join("bridge"), linked.path().join(name)).unwrap();
    }
    fs::hard_link(linked.path().join("bridge"), linked.path().join("other")).unwrap();
    unpack(linked.path());
    assert_has_plugins(linked.path());
    assert_eq!(fs::read(linked.path().join("other")).unwrap(), fs::read("/usr/lib/cni/bridge").unwrap());
    let mode = fs::metadata(linked.path()).unwrap().mode();
    unpack(linked.path());
    assert_has_plugins(linked.path());
    assert_eq!(fs::metadata(linked.path()).unwrap().mode(), mode, "the directory itself is not the archive's");
}

/// Other tests run a launcher that glibc starts. The released one, with musl, starts without the C library.
#[test]
fn a_launcher_finds_its_binary_by_each_kind_of_path() {
    let dir = tempfile::tempdir().unwrap();
    unpack(dir.path());
    sh(dir.path(), "mkdir elsewhere; ln -s ../loopback elsewhere/; cp loopback elsewhere/bridge");
    for call in
        ["./loopback", "elsewhere/loopback", "PATH=$PWD loopback", "./elsewhere/../loopback", "\"$PWD/loopback\""]
    {
        let answer = sh(dir.path(), &format!("CNI_COMMAND=VERSION {call} </dev/null"));
        assert!(answer.contains("supportedVersions"), "{call}: {answer}");
    }
    let alone = sh(dir.path(), "CNI_COMMAND=VERSION elsewhere/bridge </dev/null || test $? = 1");
    let error: Value = serde_json::from_str(&alone).unwrap();
    assert_eq!(error["code"], 5, "{error}");
    assert!(error["msg"].as_str().unwrap().starts_with("the program cni-plugins cannot be executed"), "{error}");
}

/// Unpacked elsewhere, it installs itself; what it replaced comes back.
#[test]
fn the_tarball_installs_itself_and_uninstalls() {
    let dir = tempfile::tempdir().unwrap();
    let (unpacked, node) = (dir.path().join("unpacked"), dir.path().join("node"));
    fs::create_dir(&unpacked).unwrap();
    fs::create_dir(&node).unwrap();
    unpack(&unpacked);
    fs::copy("/usr/lib/cni/bridge", node.join("bridge")).expect("upstream's plugins are installed");
    sh(&unpacked, &format!("./cni-plugins install --plugin-dir '{}'", node.display()));
    assert_has_plugins(&node);
    sh(&unpacked, &format!("./cni-plugins uninstall --plugin-dir '{}'", node.display()));
    assert_eq!(names_in(&node), BTreeSet::from(["bridge".to_owned()]));
    assert_eq!(fs::read(node.join("bridge")).unwrap(), fs::read("/usr/lib/cni/bridge").unwrap());
}

#[test]
fn the_tarball_of_the_tool_has_its_manual_and_completions() {
    let dir = tempfile::tempdir().unwrap();
    sh(dir.path(), &format!("tar -xzf '{}'", file(0, "cnitool-linux-amd64-v", ".tgz").display()));
    assert!(sh(dir.path(), "./cnitool --version").starts_with("cnitool"));
    let names = names_in(&dir.path().join("completions"));
    assert_eq!(names, ["bash", "fish", "zsh"].map(|shell| format!("cnitool.{shell}")).into());
    assert!(dir.path().join("man/cnitool-add.1").exists());
}

/// Both kinds of lists, of every file; a changed byte is found.
#[test]
fn checksums_are_those_of_the_files() {
    let printed = sh(&release(0), "sha256sum --check --strict *.sha256 && sha512sum --check --strict *.sha512");
    let files = names_in(&release(0));
    let checked = files.iter().filter(|name| name.ends_with(".sha512")).count();
    assert!(checked >= 4, "{files:?}");
    assert_eq!(printed.lines().filter(|line| line.ends_with(": OK")).count(), 3 * checked, "{printed}");
    let dir = tempfile::tempdir().unwrap();
    let name = plugins_tarball().file_name().unwrap().to_str().unwrap().to_owned();
    sh(&release(0), &format!("cp '{name}' '{name}.sha256' '{}'", dir.path().display()));
    let line =
        format!("printf x | dd of='{name}' bs=1 seek=100 conv=notrunc status=none; sha256sum --check '{name}.sha256'");
    assert!(!try_sh(dir.path(), &line).0);
}

/// With a key made for this test. Debian's minisign verifies what a user has: the list of checksums and the public key.
#[test]
fn the_list_of_checksums_is_signed_with_the_key_that_is_given() {
    let dir = tempfile::tempdir().unwrap();
    sh(dir.path(), "minisign -G -W -p public -s secret");
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let built = released().display();
    let line = format!(
        "cd '{top}' && scripts/release --arch amd64 --built amd64='{built}' --only tarball --key '{0}/secret' --out '{0}/out'",
        dir.path().display()
    );
    sh(dir.path(), &line);
    let out = dir.path().join("out");
    let verify = "minisign -V -p ../public -m cnikit-v*.sha256";
    let printed = sh(&out, verify);
    assert!(printed.contains("Signature and comment signature verified") && printed.contains("cnikit "), "{printed}");
    sh(&out, "sha256sum --check cnikit-v*.sha256");
    sh(&out, "echo >>$(ls cnikit-v*.sha256)");
    let (succeeded, printed) = try_sh(&out, verify);
    assert!(!succeeded && printed.contains("Signature verification failed"), "{printed}");
}

/// The same files are made again, elsewhere and later.
#[test]
fn a_release_is_made_twice_with_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let built = released().display();
    let only = kinds();
    sh(dir.path(), &format!("cp -r '{built}' built && touch built/*"));
    let line = format!(
        "cd '{top}' && umask 077 && TZ=Asia/Tokyo scripts/release --arch amd64 --built amd64='{0}/built' --only '{only}' --out '{0}/out'",
        dir.path().display()
    );
    sh(dir.path(), &line);
    let sums = |dir: &Path| sh(dir, "cat cnikit-v*.sha256");
    assert_eq!(sums(&dir.path().join("out")), sums(&release(0)));
    assert!(sums(&release(0)).lines().count() >= 4);
}

/// Which processor the programs are for does not matter here: they are not executed.
#[test]
fn files_for_processors_that_nothing_is_run_on_are_called_so_and_are_not_in_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let arches = ["amd64", "riscv64", "armv7", "ppc64le", "s390x"];
    let built = arches.map(|arch| format!("--built {arch}='{}'", released().display())).join(" ");
    let line = format!(
        "cd '{top}' && scripts/release --arch {} {built} --only tarball,image --out '{}'",
        arches.join(","),
        dir.path().display()
    );
    sh(dir.path(), &line);
    let names = sh(dir.path(), "ls *.tgz");
    for arch in arches {
        let of_arch: Vec<&str> = names.lines().filter(|name| name.contains(&format!("-linux-{arch}-v"))).collect();
        assert_eq!(of_arch.len(), 2, "{arch}: {names}");
        assert!(of_arch.iter().all(|name| name.ends_with(".not-run.tgz") == (arch != "amd64")), "{names}");
    }
    let manifest = sh(dir.path(), "skopeo inspect --raw oci-archive:$(ls *.oci.tar)");
    assert_eq!(manifest.matches("architecture").count(), 1, "{manifest}");
    // A launcher that the installer would not accept is not packed.
    sh(dir.path(), &format!("cp -r '{}' long && truncate --size 3M long/cni-launcher", released().display()));
    let line = format!(
        "cd '{top}' && scripts/release --arch riscv64 --built riscv64='{0}/long' --built amd64='{1}' --only tarball --out '{0}'",
        dir.path().display(),
        released().display()
    );
    let (succeeded, printed) = try_sh(dir.path(), &line);
    assert!(!succeeded && printed.contains("longer than a launcher may be"), "{printed}");
}

/// Every file of the directory, and the image's version of this release.
#[test]
fn the_manifests_are_those_of_the_repository() {
    let dir = tempfile::tempdir().unwrap();
    sh(dir.path(), &format!("tar -xzf '{}'", file(0, "cnikit-kubernetes-v", ".tgz").display()));
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    sh(dir.path(), &format!("diff -r '{top}/plugins/all/kubernetes' kubernetes"));
    let version = env!("CARGO_PKG_VERSION");
    for overlay in ["install", "uninstall"] {
        let text = fs::read_to_string(dir.path().join("kubernetes").join(overlay).join("kustomization.yaml")).unwrap();
        assert!(text.contains(version), "{overlay}: {text}");
    }
}

fn image() -> PathBuf {
    file(0, "cnikit-v", ".oci.tar")
}

#[test]
fn the_image_has_one_layer_for_each_processor_and_starts_the_installer() {
    let dir = tempfile::tempdir().unwrap();
    let inspect = |flags: &str| -> Value {
        let printed = sh(dir.path(), &format!("skopeo inspect {flags} 'oci-archive:{}'", image().display()));
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    };
    let manifests = inspect("--raw")["manifests"].as_array().unwrap().clone();
    for manifest in &manifests {
        let architecture = manifest["platform"]["architecture"].as_str().unwrap();
        let facts = inspect(&format!("--override-arch {architecture}"));
        assert_eq!(facts["Layers"].as_array().unwrap().len(), 1, "{facts}");
        let config = inspect(&format!("--override-arch {architecture} --config"));
        assert_eq!(config["architecture"], architecture);
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/cni-plugins"]), "{config}");
    }
    assert!(manifests.iter().any(|manifest| manifest["platform"]["architecture"] == "amd64"), "{manifests:?}");
    // The digests are those of the content: skopeo compares them while it copies.
    sh(dir.path(), &format!("skopeo --insecure-policy copy --all 'oci-archive:{}' dir:copy", image().display()));
}

/// Podman loads the image and runs it against a node's root directory: installed, verified, uninstalled.
#[test]
fn podman_runs_the_image_against_a_node() {
    let node = tempfile::tempdir().unwrap();
    let plugins = node.path().join("opt/cni/bin");
    fs::create_dir_all(&plugins).unwrap();
    fs::copy("/usr/lib/cni/bridge", plugins.join("bridge")).expect("upstream's plugins are installed");
    let podman = Podman::new(&image());
    assert!(podman.image.starts_with("localhost/cnikit:"), "{}", podman.image);
    let run = |command: &str| podman.run(node.path(), "", &format!("{command} --plugin-dir /opt/cni/bin"));
    run("install");
    assert_has_plugins(&plugins);
    run("verify");
    run("uninstall");
    assert_eq!(names_in(&plugins), BTreeSet::from(["bridge".to_owned()]));
}

/// The files of this run, and with `CNIKIT_CAMPAIGNS=whole` those of a whole release, of both processors.
fn releases() -> Vec<PathBuf> {
    let whole = runs_all_cases().then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/packages/auditable"));
    std::iter::once(release(0)).chain(whole).collect()
}

/// The most bytes of all plugins of a processor.
const MOST: u64 = 8 << 20;

/// arm64's files are for that processor. They are run in a virtual machine: `CNIKIT_CAMPAIGNS=whole scripts/test packages`.
#[test]
fn every_binary_of_a_tarball_is_small_static_and_for_its_processor() {
    for release in releases() {
        let mut seen = 0;
        for name in names_in(&release).iter().filter(|name| name.ends_with("gz")) {
            let machines = [("amd64", 62_u16), ("arm64", 183)];
            let of = |(architecture, _): &&(&str, u16)| name.contains(&format!("-linux-{architecture}-"));
            let Some((_, machine)) = machines.iter().find(of) else { continue };
            let unpacked = tempfile::tempdir().unwrap();
            sh(unpacked.path(), &format!("tar -xzf '{}'", release.join(name).display()));
            let mut bytes = 0;
            for program in names_in(unpacked.path()) {
                let content = fs::read(unpacked.path().join(&program)).unwrap_or_default();
                if content.starts_with(b"\x7fELF") {
                    assert_eq!(u16::from_le_bytes([content[18], content[19]]), *machine, "{name}: {program}");
                    let headers = sh(unpacked.path(), &format!("readelf -lW {program}"));
                    assert!(!headers.contains("INTERP"), "{name}: {program} has a dynamic loader");
                    bytes += content.len() as u64;
                    seen += 1;
                }
            }
            assert!(bytes <= MOST, "{name}: {bytes} bytes");
        }
        assert!(seen > NAMES.len(), "{}: {seen} programs", release.display());
    }
}

#[test]
fn a_whole_release_is_of_both_processors_and_lists_what_is_in_its_binaries() {
    for release in releases().into_iter().skip(1) {
        let names = names_in(&release);
        let has = |start: &str, end: &str| names.iter().any(|name| name.starts_with(start) && name.ends_with(end));
        for architecture in ["amd64", "arm64"] {
            assert!(has(&format!("cni-plugins-linux-{architecture}-v"), ".tgz"), "{names:?}");
        }
        for name in names.iter().filter(|name| name.ends_with(".cdx.json")) {
            let listed: Value = serde_json::from_slice(&fs::read(release.join(name)).unwrap()).unwrap();
            let components = listed["components"].as_array().unwrap();
            assert!(components.iter().any(|one| one["name"] == "serde_json"), "{name}: {listed}");
        }
        assert!(has("cni-plugins-linux-arm64-v", ".cdx.json"), "{names:?}");
        let image = names.iter().find(|name| name.ends_with(".oci.tar")).unwrap();
        let raw = sh(&release, &format!("skopeo inspect --raw 'oci-archive:{image}'"));
        let index: Value = serde_json::from_str(&raw).unwrap();
        assert_eq!(index["manifests"].as_array().unwrap().len(), 2, "{index}");
    }
}
