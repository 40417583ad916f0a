//! etcd, version 3.4 or newer.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use cnikit_pool::{EngineKeys, Incarnation, KeyOfEngine};
use cnikit_pool_protocol::{BlockId, Guard, Outcome, Part, StoredValue, Survey, Transaction, WriteOperation};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error as EtcdError, GetOptions, GetResponse, Identity,
    KeyValue, PutOptions, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::sync::Mutex;

use super::{Engine, EngineError, Listing, Reach};

/// How many keys are read at once.
const PAGE: i64 = 1_000;
/// How many keys are read one by one in a transaction. etcd's limit, `--max-txn-ops`, is 128 unless it is changed.
const KEYS: usize = 100;
/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection on which nothing is heard for so long is tested, and given up after [`SILENT`].
const PROBE: Duration = Duration::from_secs(10);
const SILENT: Duration = Duration::from_secs(5);

/// What is needed to reach etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdSettings {
    /// The members: `https://etcd-1.example:2379`. They are tried in this order.
    pub endpoints: Vec<String>,
    /// Certificates and keys, for `https`.
    pub tls: Option<EtcdTls>,
    /// The prefix of all keys.
    pub prefix: String,
    /// How long to wait for one answer.
    pub timeout: Duration,
    /// How long a session outlives its agent, in seconds.
    pub session: i64,
}

/// Certificates and keys in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The certificates that the members' are verified by.
    pub ca: Vec<u8>,
    /// The certificate and the key of this agent.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EtcdTls { .. }") // a key is in no log
    }
}

/// An engine that is etcd.
pub struct EtcdEngine {
    settings: EtcdSettings,
    keys: EngineKeys,
    /// The connection to the member that answers.
    client: Mutex<Option<Client>>,
    /// The number of that member.
    member: AtomicUsize,
    /// The lease of the session; 0 for none.
    lease: AtomicI64,
}

impl std::fmt::Debug for EtcdEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdEngine").field("endpoints", &self.settings.endpoints).finish_non_exhaustive()
    }
}

impl EtcdEngine {
    /// An engine that connects when it is first asked.
    ///
    /// # Errors
    /// There is no endpoint, or the prefix is invalid.
    pub fn new(settings: EtcdSettings) -> Result<EtcdEngine, cnikit_pool::Error> {
        let keys = EngineKeys::new(&settings.prefix)?;
        if settings.endpoints.is_empty() {
            return Err(cnikit_pool::Error {
                text: "no endpoint of etcd".into(),
                hint: Some("name them in `endpoints` of the configuration file".into()),
            });
        }
        let (client, member, lease) = (Mutex::new(None), AtomicUsize::new(0), AtomicI64::new(0));
        Ok(EtcdEngine { settings, keys, client, member, lease })
    }

    /// The name of the member that is asked, for messages.
    fn endpoint(&self) -> &str {
        let member = self.member.load(Ordering::Relaxed) % self.settings.endpoints.len();
        &self.settings.endpoints[member]
    }

    fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_keep_alive(PROBE, SILENT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if let Some(tls) = &self.settings.tls {
            let mut with = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.identity {
                with = with.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(with);
        }
        options
    }

    async fn client(&self) -> Result<Client, EngineError> {
        let mut connected = self.client.lock().await;
        if let Some(client) = &*connected {
            return Ok(client.clone());
        }
        match Client::connect([self.endpoint()], Some(self.options())).await {
            Ok(client) => {
                *connected = Some(client.clone());
                Ok(client)
            }
            Err(error) => {
                self.member.fetch_add(1, Ordering::Relaxed);
                Err(EngineError { text: format!("connect to {}: {error}", self.endpoint()), is_open: false })
            }
        }
    }

    /// Waits for an answer. If there is none, the next member is asked the next time.
    async fn answered<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, EtcdError>> + Send,
    ) -> Result<T, EngineError> {
        let failure = match tokio::time::timeout(self.settings.timeout, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {:?}", self.settings.timeout),
        };
        let text = format!("{what}: etcd at {}: {failure}", self.endpoint());
        let error = EngineError { text, is_open: true };
        if error.is_no_space() {
            // The member has answered, and the others would answer the same. The write that reached the quota was executed.
            return Err(error);
        }
        self.client.lock().await.take();
        self.member.fetch_add(1, Ordering::Relaxed);
        Err(error)
    }

    /// Asks something that changes nothing, of each member until one answers.
    async fn read<T, F>(&self, what: &str, call: impl Fn(Client) -> F + Send + Sync) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, EtcdError>> + Send,
    {
        let mut failed = EngineError { text: String::new(), is_open: false };
        for _ in 0..self.settings.endpoints.len() {
            let tried = match self.client().await {
                Ok(client) => Box::pin(self.answered(what, call(client))).await,
                Err(error) => Err(error),
            };
            match tried {
                Ok(answer) => return Ok(answer),
                Err(error) => failed = error,
            }
        }
        Err(EngineError { is_open: false, ..failed })
    }

    /// All keys below a prefix, at a revision; 0 for the present one.
    async fn range(&self, prefix: &str, revision: i64) -> Result<Vec<(KeyOfEngine, StoredValue)>, EngineError> {
        let mut values = Vec::new();
        let end = end_of(prefix);
        let mut from = prefix.as_bytes().to_vec();
        let mut revision = revision;
        loop {
            let page = self
                .read("read", |mut client| {
                    let (from, end) = (from.clone(), end.clone());
                    let options = GetOptions::new().with_range(end).with_limit(PAGE).with_revision(revision);
                    async move { client.get(from, Some(options)).await }
                })
                .await?;
            revision = revision.max(page.header().map_or(0, etcd_client::ResponseHeader::revision));
            values.extend(page.kvs().iter().filter_map(|pair| self.stored(pair)));
            let Some(last) = page.kvs().last() else { return Ok(values) };
            if !page.more() {
                return Ok(values);
            }
            from = last.key().to_vec();
            from.push(0);
        }
    }

    /// A key of ours with its value.
    fn stored(&self, pair: &KeyValue) -> Option<(KeyOfEngine, StoredValue)> {
        let key = self.keys.parse(pair.key_str().ok()?)?;
        Some((key, StoredValue { value: pair.value().to_vec(), revision: pair.mod_revision() }))
    }

    /// The lease of the session that is opened now.
    async fn new_lease(&self) -> Result<i64, EngineError> {
        let seconds = self.settings.session;
        let mut client = self.client().await?;
        let granted = self.answered("open a session", async move { client.lease_grant(seconds, None).await }).await?;
        Ok(granted.id())
    }

    async fn operations(&self, transaction: &Transaction) -> Result<(Vec<TxnOp>, Option<i64>), EngineError> {
        let mut operations = Vec::new();
        let mut lease = None;
        for write in &transaction.writes {
            operations.push(match write {
                WriteOperation::Put(key, value) => TxnOp::put(self.keys.of(key), value.clone(), None),
                WriteOperation::PutLeased(key, value) => {
                    let id = self.new_lease().await?;
                    lease = Some(id);
                    TxnOp::put(self.keys.of(key), value.clone(), Some(PutOptions::new().with_lease(id)))
                }
                WriteOperation::Delete(key) => TxnOp::delete(self.keys.of(key), None),
            });
        }
        Ok((operations, lease))
    }
}

/// The first key after all that begin with a prefix. A prefix ends with a slash.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn comparison(keys: &EngineKeys, guard: &Guard) -> Compare {
    match guard {
        Guard::Absent(key) => Compare::create_revision(keys.of(key), CompareOp::Equal, 0),
        Guard::Unchanged(key, revision) => Compare::mod_revision(keys.of(key), CompareOp::Equal, *revision),
        Guard::NoneSince(part, revision) => {
            let prefix = match part {
                Part::Pools => keys.pools(),
                Part::BlocksOf(pool) => keys.blocks_of(pool),
                Part::StaticsOf(pool) => keys.statics_of(pool),
            };
            let end = end_of(&prefix);
            // All keys of the range have to satisfy it; one without keys does.
            Compare::mod_revision(prefix, CompareOp::Less, revision + 1).with_range(end)
        }
    }
}

fn first_value(response: TxnOpResponse) -> Option<StoredValue> {
    let TxnOpResponse::Get(found) = response else { return None };
    let found: GetResponse = found;
    let pair = found.kvs().first()?;
    Some(StoredValue { value: pair.value().to_vec(), revision: pair.mod_revision() })
}

impl Engine for EtcdEngine {
    async fn commit(&self, transaction: &Transaction) -> Result<Outcome, EngineError> {
        let (operations, lease) = self.operations(transaction).await?;
        let comparisons: Vec<Compare> = transaction.guards.iter().map(|guard| comparison(&self.keys, guard)).collect();
        let keys = transaction.guards.iter().filter_map(Guard::key);
        let reads: Vec<TxnOp> = keys.map(|key| TxnOp::get(self.keys.of(key), None)).collect();
        let asked = Txn::new().when(comparisons).and_then(operations).or_else(reads);
        let mut client = self.client().await?;
        let answer = self.answered("write", async move { client.txn(asked).await }).await?;
        if !answer.succeeded() {
            let mut read = answer.op_responses().into_iter().map(first_value);
            let value = |guard: &Guard| guard.key().and_then(|_| read.next().flatten());
            return Ok(Outcome::Refused(transaction.guards.iter().map(value).collect()));
        }
        if let Some(lease) = lease {
            self.lease.store(lease, Ordering::Relaxed);
        }
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Outcome::Committed(vec![revision; transaction.writes.len()]))
    }

    async fn survey(
        &self,
        node: &str,
        incarnation: Incarnation,
        given: &BTreeSet<BlockId>,
        reach: Reach,
    ) -> Result<Survey, EngineError> {
        let mut keys = vec![
            KeyOfEngine::Session(node.to_owned()),
            KeyOfEngine::Node(node.to_owned()),
            KeyOfEngine::Fence { node: node.to_owned(), incarnation },
        ];
        if reach == Reach::Given {
            keys.extend(given.iter().map(BlockId::key));
        }
        // All is read at the revision of the first answer, so that a fence is not seen without what it freed, nor the reverse.
        let mut revision = 0;
        let mut values = Vec::new();
        for some in keys.chunks(KEYS) {
            let options = GetOptions::new().with_revision(revision);
            let reads: Vec<TxnOp> =
                some.iter().map(|key| TxnOp::get(self.keys.of(key), Some(options.clone()))).collect();
            let answer = self
                .read("read", |mut client| {
                    let asked = Txn::new().and_then(reads.clone());
                    async move { client.txn(asked).await }
                })
                .await?;
            if revision == 0 {
                revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            }
            let found = answer.op_responses().into_iter().map(first_value);
            values.extend(some.iter().cloned().zip(found).filter_map(|(key, stored)| Some((key, stored?))));
        }
        if reach == Reach::All {
            values.extend(self.range(&self.keys.blocks(), revision).await?);
            values.extend(self.range(&self.keys.statics(), revision).await?);
        }
        Ok(Survey::gather(node, incarnation, given, values))
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<(KeyOfEngine, StoredValue)>, EngineError> {
        let prefix = match listing {
            Listing::Pools => self.keys.pools(),
            Listing::Selections => self.keys.selections(),
            Listing::BlocksOf(pool) => self.keys.blocks_of(pool),
            Listing::StaticsOf(pool) => self.keys.statics_of(pool),
            Listing::Blocks => self.keys.blocks(),
            Listing::Statics => self.keys.statics(),
            Listing::Nodes => self.keys.nodes(),
            Listing::Sessions => self.keys.sessions(),
            Listing::FencesOf(node) => self.keys.fences_of(node),
            Listing::Usages => self.keys.usages(),
            Listing::Key(key) => {
                // Other keys may begin with it.
                let mut found = self.range(&self.keys.of(key), 0).await?;
                found.retain(|(other, _)| other == key);
                return Ok(found);
            }
        };
        self.range(&prefix, 0).await
    }

    async fn keep_session(&self) -> Result<bool, EngineError> {
        let lease = self.lease.load(Ordering::Relaxed);
        if lease == 0 {
            return Ok(false);
        }
        let mut client = self.client().await?;
        let kept = self.answered("renew the session", async move {
            match client.lease_keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(EtcdError::LeaseKeepAliveError(_)) => Ok(false),
                Err(error) => Err(error),
            }
        });
        kept.await
    }

    async fn watch(&self, node: &str, changed: impl Fn() + Send) -> EngineError {
        let failed = |error: EtcdError| EngineError { text: format!("watch: {error}"), is_open: false };
        let mut client = match self.client().await {
            Ok(client) => client,
            Err(error) => return error,
        };
        let prefixes = [self.keys.pools(), self.keys.selections(), self.keys.fences_of(node)];
        let whole = || Some(WatchOptions::new().with_prefix());
        let mut stream = match client.watch(prefixes[0].clone(), whole()).await {
            Ok(stream) => stream,
            Err(error) => return failed(error),
        };
        for prefix in &prefixes[1..] {
            if let Err(error) = stream.watch(prefix.clone(), whole()).await {
                return failed(error);
            }
        }
        // What changed before the watch began is not reported by it.
        changed();
        loop {
            match stream.message().await {
                Ok(Some(message)) if message.canceled() => {
                    return EngineError { text: "watch: etcd has ended it".into(), is_open: false };
                }
                Ok(Some(message)) if message.events().is_empty() => {}
                Ok(Some(_)) => changed(),
                Ok(None) => return EngineError { text: "watch: the connection ended".into(), is_open: false },
                Err(error) => return failed(error),
            }
        }
    }
}
