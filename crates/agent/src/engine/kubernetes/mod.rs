//! The Kubernetes API, by custom resources: one kind of objects per kind of keys.
//!
//! It writes one object at a time, so a transaction is an [`Execution`]. All reads are of the API server's etcd: none has a
//! `resourceVersion`, by which the server would answer from its cache.

mod client;
mod nodes;
mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use cnikit_pool::{EngineKeys, Incarnation, KeyOfEngine};
use cnikit_pool_protocol::{
    BlockId, Execution, FoundValue, KeyReply, KeyRequest, NextRequest, Outcome, Part, StoredValue, Survey, Transaction,
    WriteOperation,
};
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Engine, EngineError, Listing, Reach};
use crate::log::log;
use client::{ApiAnswer, ApiClient};
pub use client::{ApiCredentials, ApiServer};
pub use nodes::{ClusterNode, NodeSighting};
pub use objects::GROUP;
use objects::{
    BLOCKS, FENCES, HEARTBEATS, Kind, NODES, POOLS, SELECTIONS, SESSIONS, STATICS, USAGES, draw, kind_of, node_name,
    object, object_name, object_of, parse_object, revision_of,
};

/// How many objects are read at once.
const PAGE: usize = 500;
/// The longest line of a watch, in bytes.
const LONGEST_EVENT: usize = 4 << 20;
/// The longest session that another agent may have, in seconds.
const LONGEST_SESSION: u64 = 86_400;

/// What is needed to reach the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The API server.
    pub server: ApiServer,
    /// How long to wait for one answer.
    pub timeout: Duration,
    /// How long a session outlives its agent.
    pub session: Duration,
}

/// An engine that is the Kubernetes API.
pub struct KubernetesEngine {
    settings: KubernetesSettings,
    client: ApiClient,
    keys: EngineKeys,
    /// The revision of the session that this agent has opened, 0 for none.
    session: AtomicI64,
    /// The node of that session.
    node: Mutex<String>,
    /// The revision of the last heartbeat that this agent has written, 0 for none.
    heartbeat: AtomicI64,
    /// The sessions of other agents, as they were seen last.
    seen: Mutex<BTreeMap<String, SeenSession>>,
}

/// A session and its heartbeat, and since when they are as they are: by this machine's clock, so that no two clocks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeenSession {
    session: i64,
    heartbeat: i64,
    since: Instant,
}

/// A heartbeat.
#[derive(Clone, Debug)]
struct Heartbeat {
    revision: i64,
    /// How long the session outlives it.
    length: Duration,
}

impl std::fmt::Debug for KubernetesEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesEngine").field("server", &self.settings.server.server).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl KubernetesEngine {
    /// An engine that connects when it is first asked.
    ///
    /// # Errors
    /// The server's address is invalid.
    pub fn new(settings: KubernetesSettings) -> Result<KubernetesEngine, cnikit_pool::Error> {
        let client = ApiClient::new(settings.server.clone(), settings.timeout)?;
        Ok(KubernetesEngine {
            client,
            settings,
            keys: EngineKeys::new(EngineKeys::PREFIX)?,
            session: AtomicI64::new(0),
            node: Mutex::new(String::new()),
            heartbeat: AtomicI64::new(0),
            seen: Mutex::new(BTreeMap::new()),
        })
    }

    /// What an answer that was not expected means. Whether it is open: a server that fails may have executed the request.
    fn unexpected(&self, what: &str, answer: &ApiAnswer) -> EngineError {
        let is_open = answer.status.is_server_error();
        let hint = match answer.status {
            StatusCode::NOT_FOUND => " (are the custom resource definitions of the agent installed?)",
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (what may this agent's credentials do?)",
            _ => "",
        };
        let text = format!("{what}: API server {}: {}{hint}", self.client.name(), answer.reason());
        EngineError { text, is_open }
    }

    /// Reads an object; `None` if there is none of that name.
    async fn get(&self, kind: Kind, name: &str) -> Result<Option<Value>, EngineError> {
        let read = |error: EngineError| EngineError { is_open: false, ..error };
        let answer = self.client.ask(Method::GET, &kind.path_of(name), None).await.map_err(read)?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.body)),
            _ if is_no_object(&answer, name) => Ok(None),
            _ => Err(read(self.unexpected("read", &answer))),
        }
    }

    /// All objects of a kind, at one revision.
    async fn all(&self, kind: Kind) -> Result<Vec<Value>, EngineError> {
        self.all_at(&kind.path()).await
    }

    /// All objects of a path, at one revision.
    async fn all_at(&self, place: &str) -> Result<Vec<Value>, EngineError> {
        let read = |error: EngineError| EngineError { is_open: false, ..error };
        let mut found = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!("{place}?limit={PAGE}{next}");
            let mut answer = self.client.ask(Method::GET, &path, None).await.map_err(read)?;
            // The revision of the first page may be forgotten meanwhile: then all is read anew.
            if answer.status == StatusCode::GONE && !next.is_empty() {
                found.clear();
                next.clear();
                continue;
            }
            let Value::Array(items) = answer.body["items"].take() else {
                return Err(read(self.unexpected("list", &answer)));
            };
            if answer.status != StatusCode::OK {
                return Err(read(self.unexpected("list", &answer)));
            }
            found.extend(items);
            match answer.body["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => next = format!("&continue={}", encoded(token)),
                _ => return Ok(found),
            }
        }
    }

    async fn values(&self, kind: Kind) -> Result<Vec<(KeyOfEngine, StoredValue)>, EngineError> {
        let mut values = Vec::new();
        for object in self.all(kind).await? {
            if let (Some(key), found) = parse_object(&self.keys, &object)?
                && kind_of(&key) == kind
            {
                let StoredValue { value, revision } = found.stored;
                // Nothing is claimed by a definition that does not count yet: see [`StoredValue::revision`].
                let revision = if found.is_pending { -revision } else { revision };
                values.push((key, StoredValue { value, revision }));
            }
        }
        Ok(values)
    }

    async fn value(&self, key: &KeyOfEngine) -> Result<Option<FoundValue>, EngineError> {
        match self.get(kind_of(key), &object_name(key)).await? {
            Some(object) => Ok(Some(parse_object(&self.keys, &object)?.1)),
            None => Ok(None),
        }
    }

    /// Writes an object: creates it, or replaces it under a revision. `None`: refused.
    async fn put(&self, kind: Kind, mut object: Value, revision: Option<i64>) -> Result<Option<i64>, EngineError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let answer = match revision {
            None => self.client.ask(Method::POST, &kind.path(), Some(&object)).await?,
            Some(revision) => {
                object["metadata"]["resourceVersion"] = Value::String(revision.to_string());
                self.client.ask(Method::PUT, &kind.path_of(&name), Some(&object)).await?
            }
        };
        match answer.status {
            StatusCode::OK | StatusCode::CREATED => Ok(Some(revision_of(&answer.body)?)),
            StatusCode::CONFLICT => Ok(None),
            _ if revision.is_some() && is_no_object(&answer, &name) => Ok(None),
            _ => Err(self.unexpected("write", &answer)),
        }
    }

    /// Deletes an object under a revision. Returns whether it had that revision.
    async fn delete(&self, kind: Kind, name: &str, revision: i64) -> Result<bool, EngineError> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": revision.to_string()},
        });
        let answer = self.client.ask(Method::DELETE, &kind.path_of(name), Some(&options)).await?;
        match answer.status {
            StatusCode::OK => Ok(true),
            StatusCode::CONFLICT => Ok(false),
            _ if is_no_object(&answer, name) => Ok(false),
            _ => Err(self.unexpected("delete", &answer)),
        }
    }

    /// Executes a request about one key.
    async fn request(&self, request: &KeyRequest) -> Result<KeyReply, EngineError> {
        let written = |revision: Option<i64>| revision.map_or(KeyReply::Refused, KeyReply::Written);
        match request {
            KeyRequest::Read(key) => Ok(KeyReply::Found(self.value(key).await?)),
            KeyRequest::List(part) => {
                let kind = match part {
                    Part::Pools => POOLS,
                    Part::BlocksOf(_) => BLOCKS,
                    Part::StaticsOf(_) => STATICS,
                };
                let mut listed = Vec::new();
                for (key, stored) in self.values(kind).await? {
                    if part.has(&key) {
                        listed.push((key, stored.revision));
                    }
                }
                Ok(KeyReply::Listed(listed))
            }
            KeyRequest::Create { key, value, is_pending } => {
                Ok(written(self.put(kind_of(key), object_of(key, value, *is_pending)?, None).await?))
            }
            KeyRequest::Replace { key, value, revision, is_pending } => {
                Ok(written(self.put(kind_of(key), object_of(key, value, *is_pending)?, Some(*revision)).await?))
            }
            KeyRequest::Delete { key, revision } => {
                let is_deleted = self.delete(kind_of(key), &object_name(key), *revision).await?;
                Ok(written(is_deleted.then_some(*revision)))
            }
        }
    }

    async fn read_heartbeat(&self, node: &str) -> Result<Option<Heartbeat>, EngineError> {
        let Some(found) = self.get(HEARTBEATS, &node_name(node)).await? else { return Ok(None) };
        let seconds = found["spec"]["seconds"].as_u64().unwrap_or_default().min(LONGEST_SESSION);
        Ok(Some(Heartbeat { revision: revision_of(&found)?, length: Duration::from_secs(seconds) }))
    }

    /// Writes a heartbeat for a session over the one of this revision. `None`: refused.
    async fn write_heartbeat(&self, node: &str, session: i64, over: Option<i64>) -> Result<Option<i64>, EngineError> {
        let at = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        let spec = json!({
            "node": node, "session": session.to_string(), "seconds": self.settings.session.as_secs(), "at": at,
            "write": draw()?,
        });
        self.put(HEARTBEATS, object(HEARTBEATS, &node_name(node), &spec), over).await
    }

    /// Takes over the heartbeat of the node for the session that was opened.
    async fn begin_heartbeat(&self, node: &str, session: i64) -> Result<(), EngineError> {
        let before = self.read_heartbeat(node).await?.map(|found| found.revision);
        if let Some(revision) = self.write_heartbeat(node, session, before).await? {
            self.heartbeat.store(revision, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A session as the protocol sees it: one that was not renewed for its length has no record any more, so it can be replaced.
    async fn reported(&self, node: &str, stored: StoredValue) -> Result<StoredValue, EngineError> {
        if stored.revision == self.session.load(Ordering::Relaxed) {
            return Ok(stored);
        }
        let heartbeat = self.read_heartbeat(node).await?;
        if self.has_ended(node, stored.revision, heartbeat.as_ref()) {
            return Ok(StoredValue { value: Vec::new(), ..stored });
        }
        Ok(stored)
    }

    /// Whether session and heartbeat were the same for the whole length of the session while this agent looked.
    fn has_ended(&self, node: &str, session: i64, heartbeat: Option<&Heartbeat>) -> bool {
        let length = heartbeat.map_or(self.settings.session, |found| found.length.max(self.settings.session));
        let now =
            SeenSession { session, heartbeat: heartbeat.map_or(0, |found| found.revision), since: Instant::now() };
        let mut seen = locked(&self.seen);
        match seen.get(node) {
            Some(before) if SeenSession { since: now.since, ..*before } == now => before.since.elapsed() >= length,
            _ => {
                seen.insert(node.to_owned(), now);
                false
            }
        }
    }

    /// Follows one kind until that fails, and calls a function with each object that changes.
    async fn follow(&self, kind: Kind, changed: impl Fn(&Value) + Send) -> EngineError {
        let broken = |why: &str| EngineError { text: format!("watch {}: {why}", kind.plural), is_open: false };
        // Without a revision, it begins with all objects as they are.
        let mut body = match self.client.stream(&format!("{}?watch=true", kind.path())).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        let mut text: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => return broken(&error.to_string()),
            };
            let Some(data) = frame.data_ref() else { continue };
            text.extend_from_slice(data);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let Ok(event) = serde_json::from_slice::<Value>(&line) else { return broken("it is not JSON") };
                if event["type"] == "ERROR" {
                    return broken(event["object"]["message"].as_str().unwrap_or_default());
                }
                changed(&event["object"]);
            }
            if text.len() > LONGEST_EVENT {
                return broken("an event is too long");
            }
        }
        broken("the API server has ended it")
    }
}

/// Whether an answer says that there is no object of this name. A server without the kind answers the same, except for the name.
fn is_no_object(answer: &ApiAnswer, name: &str) -> bool {
    answer.status == StatusCode::NOT_FOUND
        && answer.body["reason"] == "NotFound"
        && answer.body["details"]["name"] == name
}

/// A token in a query.
fn encoded(token: &str) -> String {
    let mut text = String::new();
    for byte in token.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

impl Engine for KubernetesEngine {
    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, EngineError> {
        let mut execution = Execution::new(transaction.clone());
        let outcome = loop {
            match execution.next() {
                NextRequest::Done(outcome) => break outcome,
                NextRequest::Ask(request) => match self.request(&request).await {
                    Ok(reply) => execution.answer(reply),
                    Err(error) => {
                        let is_open = error.is_open || execution.has_written();
                        return Err(EngineError { is_open, ..error });
                    }
                },
            }
        };
        if let Outcome::Committed(revisions) = &outcome {
            for (write, revision) in transaction.writes.iter().zip(revisions) {
                if let WriteOperation::PutLeased(KeyOfEngine::Session(node), _) = write {
                    self.session.store(*revision, Ordering::Relaxed);
                    node.clone_into(&mut locked(&self.node));
                    // If this fails, the next renewal tries again.
                    if let Err(error) = self.begin_heartbeat(node, *revision).await {
                        log("session", error);
                    }
                }
            }
        }
        Ok(outcome)
    }

    async fn survey(
        &self,
        node: &str,
        incarnation: Incarnation,
        given: &BTreeSet<BlockId>,
        reach: Reach,
    ) -> Result<Survey, EngineError> {
        // Blocks first: a fence that is not there afterwards was not there when they were read.
        let mut values = Vec::new();
        if reach == Reach::All {
            values = self.values(BLOCKS).await?;
            values.extend(self.values(STATICS).await?);
        } else {
            for key in given.iter().map(BlockId::key) {
                values.extend(self.value(&key).await?.map(|found| (key, found.stored)));
            }
        }
        let own = [
            KeyOfEngine::Fence { node: node.to_owned(), incarnation },
            KeyOfEngine::Node(node.to_owned()),
            KeyOfEngine::Session(node.to_owned()),
        ];
        for key in own {
            let Some(found) = self.value(&key).await? else { continue };
            let stored = match key {
                KeyOfEngine::Session(_) => self.reported(node, found.stored).await?,
                _ => found.stored,
            };
            values.push((key, stored));
        }
        Ok(Survey::gather(node, incarnation, given, values))
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<(KeyOfEngine, StoredValue)>, EngineError> {
        let kind = match listing {
            Listing::Pools => POOLS,
            Listing::Selections => SELECTIONS,
            Listing::Blocks | Listing::BlocksOf(_) => BLOCKS,
            Listing::Statics | Listing::StaticsOf(_) => STATICS,
            Listing::Nodes => NODES,
            Listing::Sessions => SESSIONS,
            Listing::Usages => USAGES,
            Listing::FencesOf(_) => FENCES,
            Listing::Key(key) => {
                let found = self.value(key).await?;
                return Ok(found.map(|found| (key.clone(), found.stored)).into_iter().collect());
            }
        };
        let mut values = self.values(kind).await?;
        match listing {
            Listing::BlocksOf(pool) => values.retain(|(key, _)| Part::BlocksOf(pool.clone()).has(key)),
            Listing::StaticsOf(pool) => values.retain(|(key, _)| Part::StaticsOf(pool.clone()).has(key)),
            Listing::FencesOf(name) => {
                values.retain(|(key, _)| matches!(key, KeyOfEngine::Fence { node, .. } if node == name));
            }
            _ => {}
        }
        Ok(values)
    }

    /// Waits, if it has to, until it is known whether the session is renewed.
    async fn living_session(&self, node: &str) -> Result<Option<StoredValue>, EngineError> {
        let key = KeyOfEngine::Session(node.to_owned());
        let mut first = None;
        loop {
            let Some(found) = self.value(&key).await? else { return Ok(None) };
            let heartbeat = self.read_heartbeat(node).await?;
            if self.has_ended(node, found.stored.revision, heartbeat.as_ref()) {
                return Ok(Some(StoredValue { value: Vec::new(), ..found.stored }));
            }
            let now = (found.stored.revision, heartbeat.map(|found| found.revision));
            if *first.get_or_insert(now) != now {
                return Ok(Some(found.stored));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn keep_session(&self) -> Result<bool, EngineError> {
        let session = self.session.load(Ordering::Relaxed);
        let node = locked(&self.node).clone();
        if session == 0 {
            return Ok(false);
        }
        let last = self.heartbeat.load(Ordering::Relaxed);
        let mut written = None;
        if last != 0 {
            written = self.write_heartbeat(&node, session, Some(last)).await?;
        }
        if written.is_none() {
            // Another agent has taken over the session, or the answer to a renewal was lost.
            let found = self.value(&KeyOfEngine::Session(node.clone())).await?;
            if found.is_none_or(|found| found.stored.revision != session) {
                return Ok(false);
            }
            let before = self.read_heartbeat(&node).await?;
            written = self.write_heartbeat(&node, session, before.map(|found| found.revision)).await?;
        }
        if let Some(revision) = written {
            self.heartbeat.store(revision, Ordering::Relaxed);
        }
        Ok(true)
    }

    async fn watch(&self, node: &str, changed: impl Fn() + Send) -> EngineError {
        let changed = Mutex::new(changed);
        let any = |_: &Value| locked(&changed)();
        let of_node = |object: &Value| {
            let key = object["spec"]["key"].as_str().unwrap_or_default();
            let parsed = self.keys.parse(&format!("{}{key}", self.keys.prefix()));
            if matches!(parsed, Some(KeyOfEngine::Fence { node: fenced, .. }) if fenced == node) {
                locked(&changed)();
            }
        };
        // What changed before the watch began is not reported by it.
        locked(&changed)();
        tokio::select! {
            error = self.follow(POOLS, any) => error,
            error = self.follow(SELECTIONS, any) => error,
            error = self.follow(FENCES, of_node) => error,
        }
    }
}
