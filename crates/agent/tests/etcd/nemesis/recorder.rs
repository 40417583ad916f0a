//! Records every change of the engine's keys, by a watch.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cnikit_pool::EngineKeys;
use etcd_client::{Client, ConnectOptions, EventType, WatchOptions};

use super::history::Change;
use super::world::Machine;
use crate::cluster::runtime;
use crate::running::eventually;

/// After so long without a message another member is asked.
const SILENCE: Duration = Duration::from_secs(2);
/// The last key that is written.
const END: &str = "/cnikit/v1/end-of-the-test";

pub(super) struct Recorder {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    changes: Mutex<Vec<Change>>,
    /// The last revision of which all changes were seen.
    revision: AtomicI64,
    has_ended: AtomicBool,
}

impl Recorder {
    /// Starts one in the namespace of this thread.
    pub(super) fn start(endpoints: Vec<String>) -> Recorder {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let record = move || {
            runtime().block_on(async {
                let mut member = 0;
                while !of_thread.has_ended.load(Ordering::SeqCst) {
                    if let Err(error) = watch(&endpoints[member % endpoints.len()], &of_thread).await {
                        assert!(!error.contains("compacted"), "{error}");
                    }
                    member += 1;
                }
            });
        };
        Recorder { shared, thread: Mutex::new(Some(std::thread::spawn(record))) }
    }

    /// The last revision that was seen.
    pub(super) fn revision(&self) -> i64 {
        self.shared.revision.load(Ordering::SeqCst)
    }

    /// Ends it, after it has seen what was written before. Returns all changes in their order.
    pub(super) fn finish(&self, operator: &Machine, endpoint: &str) -> Vec<Change> {
        let put = format!("ETCDCTL_API=3 etcdctl --endpoints {endpoint} put {END} x");
        eventually("the last key is not written", || operator.host.try_sh(&put).0);
        eventually("the last key is not recorded", || self.shared.has_ended.load(Ordering::SeqCst));
        if let Some(thread) = self.thread.lock().unwrap().take() {
            thread.join().unwrap();
        }
        std::mem::take(&mut self.shared.changes.lock().unwrap())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
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
