//! `new plugin`: what it writes, and what it refuses. `scripts/supply-chain` builds the crates and runs their tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const SHAPES: [&str; 5] = ["interface", "chained", "ipam", "delegating", "plain"];

/// Names of the least and the greatest length: lines of the templates are as long as the name makes them.
const NAMES: [&str; 3] = ["x", "my-plugin", "a2345678901234567890123456789012"];

#[expect(clippy::disallowed_methods, reason = "it runs the tool, rustfmt and cargo in a directory of the test's own")]
fn run(dir: &Path, program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).current_dir(dir).output().unwrap()
}

/// Runs `cnitool ARGUMENTS…` in a directory, which must end with this status; returns stdout and stderr.
fn cnitool(dir: &Path, status: i32, arguments: &[&str]) -> (String, String) {
    let output = run(dir, env!("CARGO_BIN_EXE_cnitool"), arguments);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stdout}{stderr}");
    (stdout, stderr)
}

fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    found
}

#[test]
fn a_crate_of_each_shape_is_formatted_and_cargo_reads_it() {
    let dir = TempDir::new().unwrap();
    for shape in SHAPES {
        for name in NAMES {
            let inside = dir.path().join(shape);
            fs::create_dir_all(&inside).unwrap();
            cnitool(&inside, 0, &["new", "plugin", name, "--shape", shape]);
            let made = inside.join(name);
            let mut rust = files(&made);
            rust.retain(|file| Path::new(file).extension().is_some_and(|ending| ending == "rs"));
            assert!(rust.len() >= 4, "{rust:?}");
            let mut arguments = vec!["--check", "--edition", "2024"];
            arguments.extend(rust.iter().map(String::as_str));
            let formatted = run(&made, "rustfmt", &arguments);
            assert!(formatted.status.success(), "{shape} {name}: {}", String::from_utf8_lossy(&formatted.stdout));
            let manifest = made.join("Cargo.toml").display().to_string();
            let read = run(
                &made,
                env!("CARGO"),
                &["metadata", "--offline", "--no-deps", "--format-version", "1", "--manifest-path", &manifest],
            );
            assert!(read.status.success(), "{shape}: {}", String::from_utf8_lossy(&read.stderr));
            let metadata: Value = serde_json::from_slice(&read.stdout).unwrap();
            let targets = metadata["packages"][0]["targets"].to_string();
            for kind in ["lib", "bin", "test", "example"] {
                assert!(targets.contains(&format!("\"kind\":[\"{kind}\"]")), "{shape} has no {kind}: {targets}");
            }
        }
    }
}

#[test]
fn the_json_names_every_file_and_scripts_can_be_run() {
    let dir = TempDir::new().unwrap();
    let (stdout, _) = cnitool(dir.path(), 0, &["--json", "new", "plugin", "mine"]);
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let made = fs::canonicalize(dir.path()).unwrap().join("mine");
    assert_eq!(document["directory"], made.display().to_string());
    assert_eq!(document["shape"], "interface");
    let sdk = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap().display().to_string();
    assert_eq!(document["sdk"], sdk, "the checkout that the tool is built in");
    let named = document["files"].as_array().unwrap().iter();
    let mut named: Vec<String> = named.map(|file| made.join(file.as_str().unwrap()).display().to_string()).collect();
    named.sort();
    assert_eq!(named, files(&made));
    for (file, mode) in [("attach", 0o111), ("ci", 0o111), ("Cargo.toml", 0)] {
        assert_eq!(fs::metadata(made.join(file)).unwrap().permissions().mode() & 0o111 & mode, mode, "{file}");
    }
    assert!(fs::read_to_string(made.join("Cargo.toml")).unwrap().contains(&format!("\"{sdk}/crates/cnikit\"")));
}

#[test]
fn nothing_is_overwritten_and_a_refusal_has_a_hint() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("taken")).unwrap();
    fs::write(dir.path().join("taken/file"), "mine").unwrap();
    fs::write(dir.path().join("file"), "mine").unwrap();
    std::os::unix::fs::symlink("elsewhere", dir.path().join("link")).unwrap();
    for (arguments, expected) in [
        (&["taken"][..], "taken is not empty; hint: "),
        (&["file"], "file exists already"),
        (&["link"], "link exists already"),
        (&["../x"], "a plugin cannot be called \"../x\": hint: "),
        (&["bridge"], "cnikit has a plugin of that name"),
        (&["mine", "--sdk", "/nowhere"], "--sdk: /nowhere: "),
        (&["mine", "--sdk", "/"], "--sdk: / is not a checkout of cnikit: "),
        (&["mine", "--shape", "round"], "interface, chained, ipam, delegating, plain"),
    ] {
        let (_, stderr) = cnitool(dir.path(), 1, &[&["new", "plugin"], arguments].concat());
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    let left = files(dir.path());
    assert_eq!(left.len(), 3, "{left:?}");
    fs::create_dir(dir.path().join("empty")).unwrap();
    let (stdout, _) = cnitool(dir.path(), 0, &["new", "plugin", "empty"]);
    assert!(stdout.contains("next: cd empty && ./attach"), "{stdout}");
}
