//! Results that a runtime kept.

use std::fs;

use cnikit_libcni::{Attachment, AttachmentSummary, Cache, Error, NetworkList, State, load};
use cnikit_types::{CniResult, Version};
use tempfile::TempDir;

/// The file of a kept result; the first byte chooses the version of the network.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else { return };
    let version = Version::ALL[usize::from(*choice) % Version::ALL.len()];
    let dir = TempDir::new().expect("there is a temporary directory");
    let results = dir.path().join("results");
    fs::create_dir(&results).expect("it can be written to");
    fs::write(results.join("net-c-eth0"), text).expect("it can be written to");
    let cache = Cache::below(dir.path());
    let listed = cache.attachments().expect("the directory can be listed");
    assert_eq!(listed.len(), 1, "one file is one attachment, whatever is in it");
    assert!(listed[0].state != State::Unreadable || !listed[0].problems.is_empty(), "it says what is wrong");
    let whole = listed[0].summary();
    let glance = cache.list().expect("the directory can be listed");
    let said = |one: &AttachmentSummary| {
        let named = [&one.network, &one.container_id, &one.ifname, &one.netns].map(String::clone);
        (named, one.state, one.metadata.clone())
    };
    assert_eq!(glance.iter().map(said).collect::<Vec<_>>(), [said(&whole)], "a glance sees what is there");
    let list = network(&dir, version);
    let at = Attachment { container_id: "c".into(), ifname: "eth0".into(), ..Attachment::default() };
    match cache.result(&list, &at) {
        Ok(None) => {}
        Ok(Some(result)) => {
            let (own, _) = CniResult::read(&result, version).expect("what was kept is a result");
            assert_eq!(own, version, "in the version of the network");
        }
        Err(Error::Cache(why)) => assert!(why.contains("result"), "{why}"),
        Err(other) => panic!("{other}"),
    }
}

fn network(dir: &TempDir, version: Version) -> NetworkList {
    let text = format!(r#"{{"cniVersion":"{version}","name":"net","plugins":[{{"type":"t"}}]}}"#);
    fs::write(dir.path().join("net.conflist"), text).expect("it can be written to");
    load(dir.path(), "net").expect("it is a network")
}
