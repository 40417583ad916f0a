//! The daemon: it serves plugins, and keeps files and engine in agreement.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cnikit_pool::{
    AgentConnection, AgentListener, AgentReply, AgentRequest, Error, NetworkFiles, NodeFiles, pool_usage,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::{AgentSettings, PoolAgent};
use crate::engine::Engine;
use crate::log::log;
use crate::metrics::{AgentMetrics, usage_text};

/// How often the files are looked at.
const TICK: Duration = Duration::from_secs(5);
/// How long a plugin may take to send its request.
const REQUEST: Duration = Duration::from_secs(5);
/// How many plugins are served at once; others wait for their connection to be accepted.
const CONNECTIONS: usize = 256;
/// After a failure, how long to wait until the engine is asked anew. It doubles up to the second value.
const PAUSE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];
/// At the end, how long no request has to come, and how long those that are there may take.
const QUIET: Duration = Duration::from_millis(50);
const ENDING: Duration = Duration::from_secs(5);
/// The longest request for figures, in bytes, and how long one may take.
const HEAD: usize = 4 << 10;
const SCRAPE: Duration = Duration::from_secs(5);
/// How old the figures of the addresses may be: who may ask for them does not have the files read all the time.
const USAGE: Duration = Duration::from_secs(1);

/// What a daemon does beside its agent's settings.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// How often files and engine are compared, if nothing happens.
    pub compare: Duration,
    /// How long the session outlives the agent.
    pub session: Duration,
    /// Where figures are served.
    pub metrics: Option<String>,
}

/// What happened.
enum Event {
    /// A plugin wants addresses.
    Request(AgentConnection, AgentRequest),
    /// The engine has other pools, selections or fences, or the session has ended.
    Changed,
    /// A signal to end.
    Stop,
}

/// Serves until SIGTERM or SIGINT. What is under way is finished first. Nothing is given back at the end: blocks and containers
/// stay, and the next agent takes over the session.
///
/// # Errors
/// The files cannot be read, or signals or figures cannot be served. An engine that does not answer is no error.
pub fn serve<E: Engine>(
    runtime: &Runtime,
    settings: AgentSettings,
    engine: Arc<E>,
    listener: AgentListener,
    options: &DaemonOptions,
) -> Result<(), Error> {
    let metrics = Arc::new(AgentMetrics::default());
    let figures = Figures { metrics: Arc::clone(&metrics), files: settings.files.clone(), read: Mutex::default() };
    let (events, received) = channel();
    let node = settings.node.clone();
    let handle = runtime.handle().clone();
    let mut agent = PoolAgent::new(settings, Arc::clone(&engine), handle, Arc::clone(&metrics))?;
    wait_for_signals(runtime, &events)?;
    if let Some(place) = &options.metrics {
        serve_metrics(runtime, place, figures)?;
    }
    keep_session(runtime, Arc::clone(&engine), options.session / 3, events.clone());
    watch(runtime, engine, node, events.clone());
    let accepting = events.clone();
    let listener = Arc::new(listener);
    let accepted = Arc::clone(&listener);
    let accept = move || accept_all(&accepted, &accepting);
    std::thread::Builder::new().name("accept".into()).spawn(accept).map_err(|error| broken("start a thread", error))?;
    log("agent", "serves");
    let mut daemon = Daemon {
        agent: &mut agent,
        metrics,
        options,
        compared: None,
        has_changed: true,
        pause: PAUSE[0],
        retry_at: None,
    };
    daemon.run(&received);
    // A plugin that connects from now on finds no agent, and waits for the next one; those that have connected are served.
    if let Err(error) = listener.unlink() {
        log("socket", error);
    }
    daemon.serve_rest(&received);
    log("agent", "ends");
    Ok(())
}

fn broken(what: &str, why: impl std::fmt::Display) -> Error {
    Error { text: format!("{what}: {why}"), hint: None }
}

struct Daemon<'a, E> {
    agent: &'a mut PoolAgent<E>,
    metrics: Arc<AgentMetrics>,
    options: &'a DaemonOptions,
    /// When the files were compared with all blocks of the engine.
    compared: Option<Instant>,
    /// Whether something has happened since the last comparison that they are compared for.
    has_changed: bool,
    pause: Duration,
    /// When the engine is asked again after a failure.
    retry_at: Option<Instant>,
}

impl<E: Engine> Daemon<'_, E> {
    fn run(&mut self, events: &Receiver<Event>) {
        loop {
            self.compare_if_due();
            let left = self.retry_at.map_or(TICK, |at| at.saturating_duration_since(Instant::now()).min(TICK));
            match events.recv_timeout(left) {
                Ok(event) => {
                    if !self.handle(event) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => match self.agent.has_idle_blocks() {
                    Ok(true) => self.has_changed = true,
                    Ok(false) => {}
                    Err(error) => log("files", error),
                },
            }
            // A watch of the Kubernetes API that begins reports each pool, selection and fence: they are compared once. Not after
            // many requests, each of which may wait for an engine that does not answer.
            for event in events.try_iter() {
                let is_request = matches!(event, Event::Request(..));
                if !self.handle(event) {
                    return;
                }
                if is_request {
                    break;
                }
            }
        }
    }

    /// Returns whether the daemon goes on.
    fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Request(connection, request) => self.serve(&connection, &request),
            Event::Changed => self.has_changed = true,
            Event::Stop => return false,
        }
        true
    }

    /// Serves the plugins that connected before the end.
    fn serve_rest(&mut self, events: &Receiver<Event>) {
        let began = Instant::now();
        while began.elapsed() < ENDING {
            match events.recv_timeout(QUIET) {
                Ok(Event::Request(connection, request)) => self.serve(&connection, &request),
                Ok(Event::Changed | Event::Stop) => {}
                Err(_) => return,
            }
        }
    }

    fn compare_if_due(&mut self) {
        let with_all = self.compared.is_none_or(|at| at.elapsed() >= self.options.compare);
        if !(with_all || self.has_changed) || self.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        if with_all {
            self.agent.read_all_next();
        }
        match self.agent.reconcile(&BTreeSet::new()) {
            Ok(()) => {
                if with_all {
                    self.compared = Some(Instant::now());
                }
                self.has_changed = false;
                self.pause = PAUSE[0];
                self.retry_at = None;
                // It is for people only, and the next comparison tries again.
                if let Err(error) = self.agent.report_usage(self.options.compare) {
                    log("usage", error);
                }
                if !self.agent.may_claim() {
                    // Another machine's session may end, or the containers of a fenced node.
                    self.has_changed = true;
                    self.retry_at = Some(Instant::now() + TICK);
                }
            }
            Err(error) => {
                log("engine", error);
                self.retry_at = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(PAUSE[1]);
            }
        }
    }

    /// Does what a plugin asks for, and replies with what became of it.
    fn serve(&mut self, connection: &AgentConnection, request: &AgentRequest) {
        let served = self.agent.reply(request);
        self.metrics.count_request(served.is_ok());
        let reply = served.unwrap_or_else(|failure| {
            log("claim", format_args!("{}: {failure}", subject_of(request)));
            AgentReply::Error(failure.reply())
        });
        if let Err(error) = connection.reply(&reply) {
            log("socket", error);
        }
    }
}

/// What a request is about, for the log.
fn subject_of(request: &AgentRequest) -> String {
    let (network, pool) = match request {
        AgentRequest::Want(want) => (&want.network, &want.pool),
        AgentRequest::Sticky(want) => (&want.network, &want.pool),
        _ => return "a request of a newer plugin".to_owned(),
    };
    format!("network {network}, pool {pool}")
}

fn wait_for_signals(runtime: &Runtime, events: &Sender<Event>) -> Result<(), Error> {
    let _guard = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut received = signal(kind).map_err(|error| broken("wait for signals", error))?;
        let events = events.clone();
        runtime.spawn(async move {
            received.recv().await;
            let _ = events.send(Event::Stop);
        });
    }
    Ok(())
}

/// Renews the session again and again.
fn keep_session<E: Engine>(runtime: &Runtime, engine: Arc<E>, every: Duration, events: Sender<Event>) {
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            match engine.keep_session().await {
                Ok(true) => {}
                Ok(false) => drop(events.send(Event::Changed)),
                Err(error) => log("session", error),
            }
        }
    });
}

fn watch<E: Engine>(runtime: &Runtime, engine: Arc<E>, node: String, events: Sender<Event>) {
    runtime.spawn(async move {
        let mut pause = PAUSE[0];
        loop {
            let began = Instant::now();
            let changed = events.clone();
            let error = engine.watch(&node, move || drop(changed.send(Event::Changed))).await;
            log("engine", error);
            pause = if began.elapsed() > PAUSE[1] { PAUSE[0] } else { (pause * 2).min(PAUSE[1]) };
            tokio::time::sleep(pause).await;
        }
    });
}

/// Accepts connections for ever, each in a thread that waits for its request.
fn accept_all(listener: &AgentListener, events: &Sender<Event>) {
    let open = Arc::new(AtomicUsize::new(0));
    let deadline = cnikit_process::Deadline::never();
    loop {
        while open.load(Ordering::Relaxed) >= CONNECTIONS {
            deadline.pause(Duration::from_millis(5));
        }
        let connection = match listener.accept(REQUEST) {
            Ok(connection) => connection,
            Err(error) => {
                log("socket", error);
                deadline.pause(PAUSE[0]);
                continue;
            }
        };
        open.fetch_add(1, Ordering::Relaxed);
        let (waiting, served) = (events.clone(), Arc::clone(&open));
        let read = move || {
            read_request(connection, &waiting);
            served.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new().name("request".into()).spawn(read) {
            open.fetch_sub(1, Ordering::Relaxed);
            log("socket", error);
        }
    }
}

fn read_request(connection: AgentConnection, events: &Sender<Event>) {
    match connection.request() {
        Ok(request) => drop(events.send(Event::Request(connection, request))),
        Err(error) => {
            log("socket", &error);
            let error = cnikit_pool::AgentError { code: 0, msg: error.text, hint: error.hint };
            let _ = connection.reply(&AgentReply::Error(error));
        }
    }
}

/// What is served to Prometheus.
struct Figures {
    metrics: Arc<AgentMetrics>,
    files: NodeFiles,
    /// The figures of the addresses, and when the files were read for them.
    read: Mutex<Option<(Instant, String)>>,
}

impl Figures {
    fn text(&self) -> String {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = match read.take() {
            Some((at, text)) if at.elapsed() < USAGE => (at, text),
            _ => (Instant::now(), self.addresses()),
        };
        let text = self.metrics.text() + &addresses.1;
        *read = Some(addresses);
        text
    }

    /// The figures of the addresses, by the files, without a lock.
    fn addresses(&self) -> String {
        let open = |name: &str| self.files.network(name, REQUEST, |text| log("reservations", text));
        let reserved =
            |network: &NetworkFiles| Ok(network.store().survey()?.into_iter().map(|one| one.address).collect());
        match pool_usage(&self.files, reserved, open) {
            Ok(usages) => usage_text(&usages),
            Err(error) => {
                log("usage", error);
                usage_text(&[])
            }
        }
    }
}

/// Serves the figures, over HTTP.
fn serve_metrics(runtime: &Runtime, place: &str, figures: Figures) -> Result<(), Error> {
    let failed = |error: std::io::Error| broken(&format!("serve figures at {place}"), error);
    let figures = Arc::new(figures);
    let _guard = runtime.enter();
    if !place.starts_with('/') {
        let listener = runtime.block_on(TcpListener::bind(place)).map_err(failed)?;
        runtime.spawn(async move {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    answer_in_time(stream, &figures).await;
                }
            }
        });
        return Ok(());
    }
    // The socket of an agent that has ended. Another file stays, and is an error.
    let is_socket = std::fs::symlink_metadata(place).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(place).is_err() {
        std::fs::remove_file(place).map_err(failed)?;
    }
    let listener = UnixListener::bind(place).map_err(failed)?;
    runtime.spawn(async move {
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                answer_in_time(stream, &figures).await;
            }
        }
    });
    Ok(())
}

async fn answer_in_time(stream: impl AsyncReadExt + AsyncWriteExt + Unpin, figures: &Arc<Figures>) {
    // A client that is slow is not waited for, and its failure is its own.
    let _ = tokio::time::timeout(SCRAPE, answer(stream, figures)).await;
}

async fn answer(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, figures: &Arc<Figures>) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0; 512];
    while head.len() < HEAD && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
    let (status, body) = if head.starts_with(b"GET /metrics ") {
        // It reads files, and sessions are renewed meanwhile.
        let figures = Arc::clone(figures);
        let text = tokio::task::spawn_blocking(move || figures.text()).await;
        ("200 OK", text.map_err(std::io::Error::other)?)
    } else {
        ("404 Not Found", "see /metrics\n".to_owned())
    };
    let answer = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
