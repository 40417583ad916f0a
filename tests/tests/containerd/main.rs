//! containerd drives the plugins as a kubelet has it do: the packaged one and the newest, ours and, as a control, the
//! reference's alone. What fails with the reference too is the scene's fault.
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

/// Who drives whose plugins, in which version of the specification, with rules by the default backend or by nftables.
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
