//! containerd drives the plugins as a kubelet would: the packaged release and the newest one; our plugins, and upstream's alone as
//! a control. If a test fails with upstream too, the test is wrong.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what each scene took is part of what a test program says")]

mod libcni;
mod scenes;
mod stage;

use std::process::ExitCode;

use cnikit_tests::mixed::UpstreamRelease;
use cnikit_tests::runtimes::{Edition, Maker, trials};
use libtest_mimic::Arguments;

use stage::Subject;

/// The runtime, the plugins, the version of the specification, and the backend of rules: the default one or nftables.
const SUBJECTS: [Subject; 7] = [
    Subject { edition: Edition::Packaged, version: "0.4.0", maker: Maker::Ours, backend: None },
    Subject {
        edition: Edition::Packaged,
        version: "0.4.0",
        maker: Maker::Theirs(UpstreamRelease::Packaged),
        backend: None,
    },
    Subject { edition: Edition::Packaged, version: "1.0.0", maker: Maker::Ours, backend: None },
    Subject {
        edition: Edition::Packaged,
        version: "1.0.0",
        maker: Maker::Theirs(UpstreamRelease::Packaged),
        backend: None,
    },
    Subject { edition: Edition::Newest, version: "1.1.0", maker: Maker::Ours, backend: None },
    Subject { edition: Edition::Newest, version: "1.1.0", maker: Maker::Ours, backend: Some("nftables") },
    Subject {
        edition: Edition::Newest,
        version: "1.1.0",
        maker: Maker::Theirs(UpstreamRelease::Newest),
        backend: None,
    },
];

fn main() -> ExitCode {
    if let Some(verb) = std::env::args().nth(1).and_then(|word| libcni::Verb::named(&word)) {
        return libcni::carry_out(verb);
    }
    let scenes = SUBJECTS.map(|subject| (subject.to_string(), move || stage::play(subject, &scenes::of(subject))));
    trials(&Arguments::from_args(), scenes.into())
}
