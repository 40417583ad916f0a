//! A real kubelet, with API server, scheduler and controllers, runs pods on our plugins by containerd; and the image and the
//! manifests of a release install them.
//!
//! The scenes with the plugins share a cluster. If one fails, the cluster ends, and the next scene starts another.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::print_stdout, reason = "what each scene took is part of what a test program says")]

mod installer;
mod podman;
mod scenes;
mod stage;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use cnikit_testkit::campaign::{runs_all_cases, sample, seeded_rng};
use cnikit_tests::earlier;
use cnikit_tests::runtimes::{Edition, trials};
use libtest_mimic::Arguments;

use stage::{Backend, Shared};

type Play = Arc<dyn Fn() + Send + Sync>;

/// How many scenes with the plugins are played, and how many with the installer, unless all are wanted or some are named.
const FEW: usize = 2;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let clusters = Arc::new(Shared::default());
    let mut scenes = Vec::new();
    if arguments.filter.is_some() || runs_all_cases() {
        for backend in Backend::ALL {
            scenes.extend(with_plugins(backend, &clusters));
        }
        scenes.extend(with_installer());
    } else {
        // Of one backend, because each needs a cluster of its own.
        let backend = Backend::ALL[seeded_rng("backend").usize(..Backend::ALL.len())];
        scenes.extend(sample("scenes with plugins", with_plugins(backend, &clusters), FEW));
        let mut short = with_installer();
        // These take more than two minutes each.
        short.retain(|(name, _)| !name.contains("a_node_in_use"));
        scenes.extend(sample("scenes with the installer", short, FEW));
    }
    let play = |(name, play): (String, Play)| (name, move || play());
    let ended = trials(&arguments, scenes.into_iter().map(play).collect());
    clusters.end();
    ended
}

fn with_plugins(backend: Backend, clusters: &Arc<Shared>) -> Vec<(String, Play)> {
    let mut all: Vec<(String, Play)> = Vec::new();
    for scene in scenes::ALL {
        let clusters = Arc::clone(clusters);
        all.push((format!("{backend}::{}", scene.name), Arc::new(move || clusters.play(backend, &scene))));
    }
    all
}

fn with_installer() -> Vec<(String, Play)> {
    let mut all: Vec<(String, Play)> = Vec::new();
    let has_earlier = earlier().join(".complete").exists();
    if !has_earlier {
        println!("releases: {} not run here for want of b2fe807\n", installer::FROM_EARLIER.len());
    }
    let of_manifests = installer::ALL.into_iter().chain(installer::FROM_EARLIER.into_iter().filter(|_| has_earlier));
    for (name, play) in of_manifests {
        all.push((format!("manifests::{name}"), Arc::new(move || timed(&format!("manifests, {name}"), play))));
    }
    for edition in [Edition::Packaged, Edition::Newest] {
        for (name, play) in podman::ALL {
            let name = format!("podman::{}::{name}", edition.name());
            let shown = name.clone();
            all.push((name, Arc::new(move || timed(&shown, || play(edition)))));
        }
    }
    all
}

fn timed(what: &str, play: impl FnOnce()) {
    let begin = Instant::now();
    play();
    println!("{what}: {:.1} s", begin.elapsed().as_secs_f32());
}
