//! Records every change of the engine's keys, by a watch, and when it was: between two writes of its own.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cnikit_pool::EngineKeys;
use etcd_client::{Client, ConnectOptions, EventType, ResponseHeader, WatchOptions};

use super::history::{Change, Marker, Moment};
use super::world::Machine;
use crate::cluster::runtime;
use crate::running::eventually;

/// After so long without a message another member is asked.
const SILENCE: Duration = Duration::from_secs(2);
/// A key of which the agents know nothing. It is written again and again: each write has a revision, and a begin and an end.
const MARKER: &str = "/marker";
/// The time between two such writes.
const BETWEEN: Duration = Duration::from_millis(20);
/// The last key that is written.
const END: &str = "/cnikit/v1/end-of-the-test";

pub(super) struct Recorder {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    changes: Mutex<Vec<Change>>,
    markers: Mutex<Vec<Marker>>,
    /// The last revision of which all changes were seen.
    revision: AtomicI64,
    has_ended: AtomicBool,
}

impl Recorder {
    /// Starts one in the namespace of this thread. Its times are since `began`.
    pub(super) fn start(endpoints: Vec<String>, began: Instant) -> Recorder {
        let shared = Arc::new(Shared::default());
        let (of_watch, of_markers) = (Arc::clone(&shared), Arc::clone(&shared));
        let members = endpoints.clone();
        let record = move || {
            runtime().block_on(async {
                for member in members.iter().cycle() {
                    if of_watch.has_ended.load(Ordering::SeqCst) {
                        return;
                    }
                    if let Err(error) = watch(member, &of_watch).await {
                        assert!(!error.contains("compacted"), "{error}");
                    }
                }
            });
        };
        let mark = move || {
            runtime().block_on(async {
                for member in endpoints.iter().cycle() {
                    if of_markers.has_ended.load(Ordering::SeqCst) {
                        return;
                    }
                    write_markers(member, &of_markers, began).await;
                }
            });
        };
        Recorder { shared, threads: Mutex::new(vec![std::thread::spawn(record), std::thread::spawn(mark)]) }
    }

    /// The last revision that was seen.
    pub(super) fn revision(&self) -> i64 {
        self.shared.revision.load(Ordering::SeqCst)
    }

    /// Ends it, after it has seen what was written before. Returns all changes and markers, each in their order.
    pub(super) fn finish(&self, operator: &Machine, endpoint: &str) -> (Vec<Change>, Vec<Marker>) {
        let put = format!("ETCDCTL_API=3 etcdctl --endpoints {endpoint} put {END} x");
        eventually("the last key is not written", || operator.host.try_sh(&put).0);
        eventually("the last key is not recorded", || self.shared.has_ended.load(Ordering::SeqCst));
        for thread in self.threads.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
        let changes = std::mem::take(&mut *self.shared.changes.lock().unwrap());
        (changes, std::mem::take(&mut *self.shared.markers.lock().unwrap()))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
    }
}

/// Writes markers until one is not answered.
async fn write_markers(endpoint: &str, shared: &Shared, began: Instant) {
    let now = || Moment::try_from(began.elapsed().as_micros()).unwrap();
    let options = ConnectOptions::new().with_connect_timeout(SILENCE).with_timeout(SILENCE);
    let Ok(mut client) = Client::connect([endpoint], Some(options)).await else { return };
    while !shared.has_ended.load(Ordering::SeqCst) {
        let begin = now();
        let Ok(answer) = client.put(MARKER, "", None).await else { return };
        let Some(revision) = answer.header().map(ResponseHeader::revision) else { return };
        shared.markers.lock().unwrap().push(Marker { revision, begin, end: now() });
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Records until the connection ends or is silent.
async fn watch(endpoint: &str, shared: &Shared) -> Result<(), String> {
    let text = |error: etcd_client::Error| error.to_string();
    let options = ConnectOptions::new().with_connect_timeout(SILENCE).with_require_leader(true);
    let keys = EngineKeys::new(EngineKeys::PREFIX).map_err(|error| error.to_string())?;
    let began = async {
        let mut client = Client::connect([endpoint], Some(options)).await?;
        let from = shared.revision.load(Ordering::SeqCst) + 1;
        client.watch(EngineKeys::PREFIX, Some(WatchOptions::new().with_prefix().with_start_revision(from))).await
    };
    let Ok(began) = tokio::time::timeout(SILENCE, began).await else { return Ok(()) };
    let mut stream = began.map_err(text)?;
    while let Ok(message) = tokio::time::timeout(SILENCE, stream.message()).await {
        let Some(message) = message.map_err(text)? else { return Ok(()) };
        if message.compact_revision() > 0 {
            return Err(format!("compacted at {}", message.compact_revision()));
        }
        for event in message.events() {
            let Some(pair) = event.kv() else { continue };
            let revision = pair.mod_revision();
            if pair.key() == END.as_bytes() {
                shared.has_ended.store(true, Ordering::SeqCst);
            }
            if let Some(key) = pair.key_str().ok().and_then(|key| keys.parse(key)) {
                let value = (event.event_type() == EventType::Put).then(|| pair.value().to_vec());
                shared.changes.lock().unwrap().push(Change { revision, key, value });
            }
        }
        // A message has all changes of a revision, or none.
        if let Some(last) = message.events().last().and_then(etcd_client::Event::kv) {
            shared.revision.store(last.mod_revision(), Ordering::SeqCst);
        }
        if shared.has_ended.load(Ordering::SeqCst) {
            return Ok(());
        }
    }
    Ok(())
}
