//! Scans the node for living network namespaces, with progress on a terminal.

use cnikit_netns::NetnsScan;

use crate::cli::ScanScope;
use crate::output::progress::Progress;

/// Scans all processes of the scope. The time depends on their number.
pub(crate) fn scan(scope: ScanScope) -> NetnsScan {
    let mut progress = Progress::of("looking for living namespaces");
    let scan = NetnsScan::scan(scope.scope(), |done, of| progress.count(done, of));
    progress.end();
    scan
}
