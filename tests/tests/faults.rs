//! Every system call fails once, with each error that it plausibly gives.

use cnikit_testkit::errno;
use cnikit_tests::each_harmed;

/// So many failures of a verb, in the short form.
const FAILURES: usize = 2;

macro_rules! faults {
    ($($name:ident: $subject:expr $(, $more:ident)*;)+) => {$(
        mod $name {
            #[test]
            fn meets_every_error() {
                super::errno::at_every_call(&$subject, super::FAILURES);
            }
        }
    )+};
}
each_harmed!(faults);
