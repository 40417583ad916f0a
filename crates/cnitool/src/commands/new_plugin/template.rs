//! The files of the crate, from the templates.

use std::fmt::Write as _;

use crate::cli::Shape;
use crate::commands::new_plugin::shapes::{ShapeParts, parts};

/// A file of the crate.
pub(super) struct CrateFile {
    /// Its path in the crate.
    pub(super) path: String,
    pub(super) text: String,
    /// Whether it can be executed.
    pub(super) is_program: bool,
}

/// The oldest Rust, which is that of cnikit.
const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// The tests of every shape, each a name and a line: before and after those of CHECK and of faults.
const CYCLES: [(&str, &str); 3] = [
    ("add_check_and_del_leave_nothing", "life::leaves_no_trace(&subject())"),
    ("an_incomplete_del_leaves_nothing", "life::survives_incomplete_dels(&subject())"),
    ("gc_removes_what_is_not_valid_and_nothing_else", "life::removes_invalid(&subject())"),
];
const TAMPERING: (&str, &str) = ("check_names_every_change", "life::names_tampering(&subject(), &TAMPERING)");
const CAMPAIGNS: [(&str, &str); 6] = [
    ("sixty_four_containers_at_once_leave_nothing", "flood::survives(&subject(), 64)"),
    ("random_calls_leave_nothing", "flood::random_calls(&subject(), 300)"),
    ("a_kill_before_any_system_call_is_survived", "drop(kill::at_every_call(&subject(), 10))"),
    ("a_kill_at_any_moment_is_survived", "drop(kill::at_moments(&subject(), 10))"),
    ("limits_of_files_and_memory_are_survived", "drop(kill::with_resource_limits(&subject(), 5))"),
    ("a_failure_of_any_system_call_is_survived", "drop(errno::at_every_call(&subject(), 10))"),
];

/// The test with the recorded calls.
const RECORDED: &str = r#"#[test]
fn recorded_calls_of_a_runtime_are_survived() {
    let recorded = transcripts::read("tests/transcripts".as_ref());
    in_own_namespaces(|| drop(transcripts::survives(&subject(), &recorded, 2)));
}
"#;

/// The files of the crate of a plugin with this name and shape, and `sdk` as the checkout of cnikit.
pub(super) fn crate_files(name: &str, shape: Shape, sdk: &str) -> Vec<CrateFile> {
    let parts = parts(shape);
    let values = [
        ("{{plugin}}", parts.plugin.to_owned()),
        ("{{subject}}", parts.subject.trim_end().to_owned()),
        ("{{imports}}", imports(&parts)),
        ("{{tests}}", tests(&parts)),
        ("{{shared}}", shared(&parts).to_owned()),
        ("{{paths-beside}}", paths_beside(&parts)),
        ("{{beside}}", format!("`{}`", parts.beside.join("` and `"))),
        ("{{about}}", parts.about.to_owned()),
        ("{{methods}}", parts.methods.to_owned()),
        ("{{dependencies}}", dependencies(&parts)),
        ("{{dev-dependencies}}", dev_dependencies(&parts)),
        ("{{rust}}", RUST.to_owned()),
        ("{{lib}}", name.replace('-', "_")),
        ("{{name}}", name.to_owned()),
        // The last: it is the text of the caller.
        ("{{sdk}}", sdk.to_owned()),
    ];
    let mut files = Vec::new();
    for (path, template) in templates(name, &parts) {
        let mut text = template.to_owned();
        for (placeholder, value) in &values {
            text = text.replace(placeholder, value);
        }
        let is_program = ["attach", "ci"].contains(&path.as_str());
        files.push(CrateFile { path, text, is_program });
    }
    files
}

/// The path of each file with its template.
fn templates(name: &str, parts: &ShapeParts) -> Vec<(String, &'static str)> {
    let mut all: Vec<(String, &str)> = [
        ("Cargo.toml", include_str!("../../../templates/Cargo.toml.in")),
        (".cargo/config.toml", include_str!("../../../templates/cargo-config.toml")),
        (".gitignore", include_str!("../../../templates/gitignore")),
        ("rustfmt.toml", include_str!("../../../templates/rustfmt.toml")),
        ("clippy.toml", include_str!("../../../templates/clippy.toml")),
        ("README.md", include_str!("../../../templates/README.md.in")),
        ("attach", include_str!("../../../templates/attach.in")),
        ("ci", include_str!("../../../templates/ci")),
        (".github/workflows/ci.yml", include_str!("../../../templates/ci.yml.in")),
        ("src/main.rs", include_str!("../../../templates/main.rs.in")),
        ("src/lib.rs", parts.library),
        ("tests/kernel.rs", include_str!("../../../templates/kernel.rs.in")),
        ("tests/transcripts/ctr.jsonl", include_str!("../../../../../tests/transcripts/containerd-2.1-ctr.jsonl")),
    ]
    .map(|(path, template)| (path.to_owned(), template))
    .into();
    all.push((format!("{name}.conflist"), parts.network));
    for plugin in parts.beside {
        let template = match *plugin {
            "ptp" => include_str!("../../../templates/ptp.rs.in"),
            _ => include_str!("../../../templates/host-local.rs.in"),
        };
        all.push((format!("examples/{plugin}.rs"), template));
    }
    all
}

fn imports(parts: &ShapeParts) -> String {
    let mut imports = parts.imports.to_owned();
    if parts.tampering {
        imports.push_str("use cnikit_testkit::life::Tampering;\n");
    }
    let fault = if parts.faults.is_some() { "fault, " } else { "" };
    let _ = write!(
        imports,
        "use cnikit_testkit::{{Subject, errno, {fault}flood, kill, life, transcripts}};\nuse serde_json::json;"
    );
    if parts.faults.is_some() {
        imports.push_str("\n\nuse {{lib}}::Config;");
    }
    imports
}

fn tests(parts: &ShapeParts) -> String {
    let mut all = CYCLES.to_vec();
    if parts.tampering {
        all.push(TAMPERING);
    }
    all.extend(parts.faults);
    all.extend(CAMPAIGNS);
    let mut text = String::new();
    for (name, line) in all {
        let _ = write!(text, "#[test]\nfn {name}() {{\n    in_own_namespaces(|| {line});\n}}\n\n");
    }
    text + RECORDED.trim_end()
}

/// The lines of a snapshot that the network may leave: the reservations of host-local.
fn shared(parts: &ShapeParts) -> &'static str {
    if parts.beside.contains(&"host-local") { "\"leases\"" } else { "" }
}

fn paths_beside(parts: &ShapeParts) -> String {
    let paths: Vec<String> = parts.beside.iter().map(|plugin| format!("beside(\"{plugin}\")")).collect();
    paths.join(", ")
}

fn dependencies(parts: &ShapeParts) -> String {
    let mut lines = vec![
        "cnikit = { path = \"{{sdk}}/crates/cnikit\" }",
        "dlmalloc = { version = \"0.2\", features = [\"global\"] }",
        "serde = { version = \"1\", features = [\"derive\"] }",
    ];
    for dependency in parts.dependencies {
        lines.push(match *dependency {
            "cnikit-store" => "cnikit-store = { path = \"{{sdk}}/crates/store\" }",
            "ipnetwork" => "ipnetwork = { version = \"0.21\", default-features = false }",
            _ => "serde_json = \"1\"",
        });
    }
    lines.sort_unstable();
    lines.join("\n")
}

fn dev_dependencies(parts: &ShapeParts) -> String {
    let mut lines = vec![
        "cnikit = { path = \"{{sdk}}/crates/cnikit\", features = [\"testing\"] }".to_owned(),
        "cnikit-testkit = { path = \"{{sdk}}/crates/testkit\" }".to_owned(),
        "serde_json = \"1\"".to_owned(),
    ];
    for plugin in parts.beside {
        lines.push(format!("{plugin} = {{ path = \"{{{{sdk}}}}/plugins/{plugin}\" }}"));
    }
    lines.sort_unstable();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled_and_every_network_list_is_json() {
        for shape in [Shape::Interface, Shape::Chained, Shape::Ipam, Shape::Delegating, Shape::Plain] {
            let files = crate_files("my-own", shape, "/somewhere/{{name}}");
            for CrateFile { path, text, .. } in &files {
                let text = text.replace("/somewhere/{{name}}", "");
                assert!(!text.contains("{{") || path.starts_with("tests/transcripts/"), "{path}: {text}");
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{path}");
            }
            let of = |name: &str| &files.iter().find(|file| file.path == name).unwrap().text;
            let list: serde_json::Value = serde_json::from_str(of("my-own.conflist")).unwrap();
            assert!(list["plugins"].to_string().contains("\"type\":\"my-own\""), "{list}");
            assert!(of("src/main.rs").contains("my_own::Config"));
        }
    }
}
