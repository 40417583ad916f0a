//! Network configurations in a directory.

use std::fs;
use std::path::Path;

use cnikit_libcni::{Error, NetworkList, load};
use cnikit_types::document;
use tempfile::TempDir;

/// The network that is looked for.
const NAME: &str = "net";

/// A list, a NUL, a file of one plugin, a NUL, and a plugin beside the list: each may be missing.
pub(crate) fn run(data: &[u8]) {
    let dir = TempDir::new().expect("there is a temporary directory");
    let mut fields = data.splitn(3, |byte| *byte == 0);
    fs::create_dir(dir.path().join(NAME)).expect("it can be written to");
    for file in ["20-list.conflist", "10-one.conf", "net/30-more.conf"] {
        let Some(text) = fields.next().filter(|text| !text.is_empty()) else { continue };
        fs::write(dir.path().join(file), text).expect("it can be written to");
    }
    match load(dir.path(), NAME) {
        Ok(list) => loaded(dir.path(), &list),
        Err(Error::NoNetwork { name, .. }) => assert_eq!(name, NAME),
        Err(Error::Configuration { path, why }) => assert!(path.starts_with(dir.path()) && !why.is_empty(), "{why}"),
        Err(other) => panic!("loading fails for its files alone: {other}"),
    }
}

/// Whether any of its plugins stands in the document itself.
fn inlined(list: &NetworkList) -> bool {
    document::parse(&list.bytes).is_ok_and(|document| document.get("plugins").is_some())
}

/// A list is of the network, has plugins, and is the same if its document is all that there is.
fn loaded(dir: &Path, list: &NetworkList) {
    assert_eq!(list.name, NAME);
    assert!(!list.plugins.is_empty() && list.warnings.iter().all(|text| !text.is_empty()));
    let alone = dir.join("alone");
    fs::create_dir(&alone)
        .and_then(|()| fs::write(alone.join("net.conflist"), &list.bytes))
        .expect("it can be written to");
    if !inlined(list) {
        return;
    }
    let again = load(&alone, NAME).expect("the document of a list is one");
    let names = |list: &NetworkList| list.plugins.iter().map(|listed| listed.plugin.clone()).collect::<Vec<_>>();
    assert_eq!((&again.version, again.disable_check), (&list.version, list.disable_check));
    assert!(names(list).starts_with(&names(&again)), "{:?} of {:?}", names(&again), names(list));
    assert_eq!(again.bytes, list.bytes);
}
