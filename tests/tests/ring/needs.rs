//! The needs themselves: where everything should be there, each of them is.

use std::slice;

use cnikit_testkit::need::Need;

use crate::test::Test;

/// A test a need, which does nothing more than to have it.
pub(crate) fn tests() -> Vec<Test> {
    let test = |need| Test { module: module_path!(), name: Need::name(need), needs: slice::from_ref(need), run: || () };
    Need::ALL.iter().map(test).collect()
}
