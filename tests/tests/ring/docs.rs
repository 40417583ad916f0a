//! The network lists of the pages in `docs/` that need more of a kernel than many have.

use cnikit_testkit::need::Need;
use cnikit_tests::docs::{Example, examples};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[test!(lists_with_vlans_live needs Need::BRIDGE_VLAN_FILTERING)];

fn lists_with_vlans_live() {
    let tried = examples(Some(Need::BRIDGE_VLAN_FILTERING.name()));
    assert!(!tried.is_empty(), "the page of bridge shows one");
    tried.iter().for_each(Example::try_out);
}
