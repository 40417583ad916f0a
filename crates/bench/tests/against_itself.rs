//! Upstream's packaged plugins against themselves: every difference that the benchmark reports is an error of the benchmark.

use std::path::Path;
use std::process::{Command, Output};

const REFERENCE: &str = "/usr/lib/cni";

#[expect(clippy::disallowed_methods, reason = "a test starts what it tests from outside")]
#[expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
fn bench(out: &Path, scenario: &[&str]) -> Output {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_cnikit-bench"));
    bench.args(["measure", "--ours", REFERENCE, "--peer", &format!("itself={REFERENCE}"), "--out"]);
    // The benchmark leaves the files of its scenarios, because a removal would disturb the next measurement.
    bench.arg(out).args(scenario).env("TMPDIR", out).output().unwrap()
}

/// The cell of a row of the table below a heading.
#[expect(clippy::expect_used, reason = "a test panics: that is how it fails")]
fn cell(table: &str, row: &str, heading: &str) -> String {
    let cells = |name: &str| -> Vec<String> {
        let line = table.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect("the row is there");
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let column = cells("row").iter().position(|name| name == heading).expect("the column is there");
    cells(row).swap_remove(column)
}

#[test]
fn the_same_plugins_are_as_fast_as_each_other() {
    let out = tempfile::tempdir().unwrap();
    let ended = bench(out.path(), &["--exact", "host-local, empty"]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let table = std::fs::read_to_string(out.path().join("bench.md")).unwrap();
    let faster = cell(&table, "host-local, empty ADD", "faster by").replace("~ ", "");
    let ratio: f64 = faster.trim_start_matches("**").split("**").next().unwrap().parse().unwrap();
    assert!((0.2..5.0).contains(&ratio), "{table}");
    let memory = cell(&table, "host-local, empty ADD", "memory");
    let (ours, theirs) = memory.split_once(" / ").unwrap();
    assert!([ours, theirs].iter().all(|megabytes| megabytes.parse::<f64>().unwrap() > 2.0), "{memory}");
}

#[test]
fn an_operation_that_fails_is_reported_and_fails_the_run_if_it_is_ours() {
    let out = tempfile::tempdir().unwrap();
    let ended = bench(out.path(), &["--exact", "bridge", "--rounds", "1", "--assert"]);
    let table = std::fs::read_to_string(out.path().join("bench.md")).unwrap();
    assert!(table.contains("| bridge STATUS | — [1] | — ["), "{table}");
    assert!(
        table.lines().any(|line| line.starts_with("1. With cnikit") && line.contains(", bridge STATUS fails: ")),
        "{table}"
    );
    assert!(table.contains("| bridge STATUS of ours | success | With cnikit, bridge STATUS fails: "), "{table}");
    assert!(table.contains("| **not measured**, **broken** |"), "{table}");
    assert_eq!(ended.status.code(), Some(1), "{table}");
}

#[test]
fn calls_at_once_are_counted_too() {
    let out = tempfile::tempdir().unwrap();
    let ended = bench(out.path(), &["--exact", "bridge, 2 at once", "--rounds", "1"]);
    let table = std::fs::read_to_string(out.path().join("bench.md")).unwrap();
    let calls: u32 = cell(&table, "bridge, 2 at once ADD", "calls").parse().unwrap();
    assert!((50..5_000).contains(&calls), "{table}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains(&format!("  {calls} calls  ")), "{table}");
}

#[test]
fn the_floor_does_what_the_scenarios_want() {
    let out = tempfile::tempdir().unwrap();
    let floor = tempfile::tempdir().unwrap();
    for name in ["bridge", "ptp", "macvlan", "host-local", "bandwidth", "sbr"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cnikit-floor"), floor.path().join(name)).unwrap();
    }
    let scenarios = ["bridge", "bridge, nftables", "ptp", "macvlan", "host-local, empty", "bandwidth", "sbr"];
    let mut options = vec!["--floor", floor.path().to_str().unwrap(), "--rounds", "2"];
    scenarios.iter().for_each(|scenario| options.extend(["--exact", scenario]));
    bench(out.path(), &options);
    let table = std::fs::read_to_string(out.path().join("bench.md")).unwrap();
    for (scenario, verbs) in scenarios.into_iter().zip([3, 3, 2, 2, 2, 3, 2]) {
        for verb in ["ADD", "DEL", "CHECK"].into_iter().take(verbs) {
            let floor = cell(&table, &format!("{scenario} {verb}"), "floor");
            assert!(floor.ends_with(')'), "{scenario} {verb}: {floor}: {table}");
        }
    }
    assert!(table.contains("| host-local, empty ADD beside the floor | at most 1.35 times as long |"), "{table}");
}

#[test]
fn a_directory_without_plugins_is_an_error() {
    let out = tempfile::tempdir().unwrap();
    let nothing = tempfile::tempdir().unwrap();
    let peer = format!("empty={}", nothing.path().display());
    let ended = bench(out.path(), &["--exact", "bridge", "--rounds", "1", "--peer", &peer]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("empty: "), "{ended:?}");
}

#[test]
fn a_scenario_that_is_not_there_is_an_error() {
    let ended = bench(Path::new("/nowhere"), &["--rows", "no-such-row"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cnikit-bench scenarios"));
}
