//! A plugin is found by name, and never by path.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cnikit_invoke::{Error, find};
use tempfile::{TempDir, tempdir};

fn put(dir: &TempDir, name: &str, mode: u32) -> PathBuf {
    let file = dir.path().join(name);
    File::create(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    file
}

fn text(dir: &TempDir) -> String {
    dir.path().to_str().unwrap().to_owned()
}

#[test]
fn the_first_directory_that_has_it_wins() {
    let one = tempdir().unwrap();
    let two = tempdir().unwrap();
    let second = put(&two, "ipam", 0o755);
    let path = format!("/no/such:{}:{}", text(&one), text(&two));
    assert_eq!(find("ipam", &path).unwrap(), second);
    let first = put(&one, "ipam", 0o755);
    assert_eq!(find("ipam", &path).unwrap(), first);
}

#[test]
fn a_file_that_is_not_executable_hides_no_plugin_in_a_later_directory() {
    let one = tempdir().unwrap();
    let two = tempdir().unwrap();
    let file = put(&one, "ipam", 0o644);
    let path = format!("{}:{}", text(&one), text(&two));
    let error = find("ipam", &path).unwrap_err();
    let file = file.to_str().unwrap();
    assert_eq!(error.hint(), Some(format!("chmod +x {file}")));
    assert_eq!(
        error.to_string(),
        format!("failed to find plugin \"ipam\" in path [{} {}]: {file} is not executable", text(&one), text(&two))
    );
    let second = put(&two, "ipam", 0o755);
    assert_eq!(find("ipam", &path).unwrap(), second);
}

#[test]
fn directories_and_dangling_links_are_skipped_and_good_links_followed() {
    let one = tempdir().unwrap();
    let two = tempdir().unwrap();
    let path = format!("{}:{}", text(&one), text(&two));
    fs::create_dir(one.path().join("folder")).unwrap();
    symlink("nowhere", one.path().join("dangling")).unwrap();
    for name in ["folder", "dangling"] {
        let error = find(name, &path).unwrap_err();
        assert!(matches!(&error, Error::NotFound { unusable, .. } if unusable.is_empty()), "{error}");
        assert_eq!(error.hint().as_deref(), Some("install it there, or add its directory to CNI_PATH"));
    }
    put(&two, "real", 0o755);
    let link = one.path().join("link");
    symlink(two.path().join("real"), &link).unwrap();
    assert_eq!(find("link", &path).unwrap(), link);
}

#[test]
fn an_error_of_stat_is_not_reported_as_absence() {
    let one = tempdir().unwrap();
    let two = tempdir().unwrap();
    symlink("ipam", one.path().join("ipam")).unwrap();
    let path = format!("{}:{}", text(&one), text(&two));
    let error = find("ipam", &path).unwrap_err().to_string();
    assert!(error.contains("(os error 40)"), "{error}");
    let second = put(&two, "ipam", 0o755);
    assert_eq!(find("ipam", &path).unwrap(), second);
}

#[test]
fn a_name_is_never_a_path() {
    let dir = tempdir().unwrap();
    put(&dir, "evil", 0o755);
    for name in ["../evil", "a/evil", "/bin/sh", ".", "..", "evil/", "ev\0il", "./evil", "ev\nil"] {
        let error = find(name, &text(&dir)).unwrap_err();
        assert!(matches!(error, Error::Name { .. }), "{name:?}: {error}");
        assert!(error.to_string().starts_with("invalid plugin name: "), "{error}");
    }
    assert_eq!(find("", &text(&dir)).unwrap_err().to_string(), "no plugin name provided");
}

#[test]
fn an_empty_part_of_the_path_is_not_the_working_directory() {
    let here = Path::new("Cargo.toml");
    assert!(here.exists(), "a test runs in its package");
    for path in ["", ":", "::/no/such"] {
        let error = find("Cargo.toml", path).unwrap_err();
        assert!(matches!(&error, Error::NotFound { unusable, .. } if unusable.is_empty()), "{error}");
    }
}
