//! Fuzz target: files of the runtime's cache, `/var/lib/cni/results`.

use std::fs;

use cnikit_libcni::{Attachment, AttachmentSummary, Cache, Error, NetworkList, State, load};
use cnikit_types::{CniResult, Version};
use tempfile::TempDir;

/// The first byte selects the version of the network; the rest is the content of the file.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else { return };
    let version = Version::ALL[usize::from(*choice) % Version::ALL.len()];
    let dir = TempDir::new().expect("there is a temporary directory");
    let results = dir.path().join("results");
    fs::create_dir(&results).expect("it can be written to");
    fs::write(results.join("net-c-eth0"), text).expect("it can be written to");
    let cache = Cache::below(dir.path());
    let listed = cache.attachments().expect("the directory can be listed");
    assert_eq!(listed.len(), 1, "one file is one attachment, with any content");
    assert!(listed[0].state != State::Unreadable || !listed[0].problems.is_empty(), "it says what is wrong");
    let whole = listed[0].summary();
    let summaries = cache.list().expect("the directory can be listed");
    assert_eq!(summaries.len(), 1, "a summary has the same attachments");
    assert_same_summary(&summaries[0], &whole);
    let list = network(&dir, version);
    let at = Attachment::new("c", "");
    match cache.result(&list, &at) {
        Ok(None) => {}
        Ok(Some(result)) => {
            let (own, _) = CniResult::read(&result, version).expect("a cached result is a result");
            assert_eq!(own, version, "in the version of the network");
        }
        Err(Error::Cache(why)) => assert!(why.contains("result"), "{why}"),
        Err(other) => panic!("{other}"),
    }
}

fn assert_same_summary(one: &AttachmentSummary, other: &AttachmentSummary) {
    assert_eq!(one.network, other.network);
    assert_eq!(one.container_id, other.container_id);
    assert_eq!(one.ifname, other.ifname);
    assert_eq!(one.netns, other.netns);
    assert_eq!(one.state, other.state);
    assert_eq!(one.metadata, other.metadata);
}

fn network(dir: &TempDir, version: Version) -> NetworkList {
    let text = format!(r#"{{"cniVersion":"{version}","name":"net","plugins":[{{"type":"t"}}]}}"#);
    fs::write(dir.path().join("net.conflist"), text).expect("it can be written to");
    load(dir.path(), "net").expect("it is a network")
}
