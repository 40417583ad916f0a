//! Variations of a transcript: what is done to its calls.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::recording::{RecordedCall, Transcript};

/// The number of system calls of the plugin itself in each undisturbed call, by attachment and verb.
pub(super) type CallCounts = BTreeMap<(String, String), usize>;

/// A variation of a transcript.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Variation {
    /// The calls as recorded. A namespace is removed when no later call names it.
    Replayed,
    /// Each call is sent twice.
    Twice,
    /// The calls of an attachment are shuffled.
    Shuffled,
    /// DEL before ADD, two ADDs, CHECK after each ADD and each DEL.
    Misplaced,
    /// Each call is killed at a random system call, and sent again or not.
    Killed,
    /// All of that.
    Everything,
}

impl Variation {
    pub(super) const ALL: [Variation; 6] = [
        Variation::Replayed,
        Variation::Twice,
        Variation::Shuffled,
        Variation::Misplaced,
        Variation::Killed,
        Variation::Everything,
    ];

    pub(super) fn of(self, transcript: &Transcript, lengths: &CallCounts, chance: &mut Rng) -> Vec<Step> {
        let mut calls = transcript.calls.clone();
        if [Variation::Shuffled, Variation::Everything].contains(&self) {
            shuffle(&mut calls, chance);
        }
        let mut steps: Vec<Step> = calls.iter().flat_map(|call| self.instead_of(call)).collect();
        if self.kills() {
            steps = steps.into_iter().flat_map(|step| killed(step, lengths, chance)).collect();
        }
        steps
    }

    pub(super) fn kills(self) -> bool {
        [Variation::Killed, Variation::Everything].contains(&self)
    }

    /// Whether the variation is random.
    pub(super) fn is_drawn(self) -> bool {
        self.kills() || self == Variation::Shuffled
    }

    fn instead_of(self, call: &RecordedCall) -> Vec<Step> {
        let verbs: &[&str] = match (self, call.env["CNI_COMMAND"].as_str()) {
            (Variation::Misplaced | Variation::Everything, "ADD") => &["DEL", "ADD", "ADD", "CHECK"],
            (Variation::Misplaced | Variation::Everything, "DEL") => &["DEL", "CHECK"],
            (Variation::Twice, verb) => &[verb, verb],
            (_, verb) => &[verb],
        };
        verbs.iter().map(|verb| Step { call: call.with_verb(verb), killed_at: None }).collect()
    }
}

/// One call, and the system call at which it is killed.
#[derive(Clone)]
pub(super) struct Step {
    pub(super) call: RecordedCall,
    pub(super) killed_at: Option<usize>,
}

/// Shuffles the calls of each attachment among their positions.
fn shuffle(calls: &mut [RecordedCall], chance: &mut Rng) {
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, call) in calls.iter().enumerate() {
        places.entry(call.attachment()).or_default().push(place);
    }
    let before = calls.to_vec();
    for places in places.into_values() {
        let mut mixed = places.clone();
        chance.shuffle(&mut mixed);
        places.iter().zip(mixed).for_each(|(place, from)| calls[*place] = before[from].clone());
    }
}

/// A killed call, followed by the complete call or not.
fn killed(step: Step, lengths: &CallCounts, chance: &mut Rng) -> Vec<Step> {
    // A call that was not counted may be as short as the shortest.
    let length = lengths.get(&key(&step.call)).or_else(|| lengths.values().min()).copied();
    let dies = Step { killed_at: length.map(|length| chance.usize(..length)), ..step.clone() };
    if chance.bool() { vec![dies, step] } else { vec![dies] }
}

pub(super) fn key(call: &RecordedCall) -> (String, String) {
    (call.attachment(), call.env["CNI_COMMAND"].clone())
}
