//! `cnikit-agent`: see `cnikit-agent --help`.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cnikit_agent::adopt::{AdoptRequest, AlsoAdopted, network_of, plan_adoption};
use cnikit_agent::command_line::{self, AdoptLine, AgentCommand, CommandLine};
use cnikit_agent::compare::{ComparedNode, compare_node};
use cnikit_agent::config::AgentConfig;
use cnikit_agent::daemon::{self, DaemonOptions};
use cnikit_agent::engine::AnyEngine;
use cnikit_agent::{
    AgentFailure, AgentMetrics, AgentSettings, PoolAgent, cluster_nodes, give_back, log_steps, operator,
};
use cnikit_pool::{AgentCallError, AgentListener, AgentReply, AgentRequest, Error, NodeFiles, ask_agent};
use cnikit_process::Deadline;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// How long another agent may take to end, as systemd waits before it kills one.
const TAKEOVER: Duration = Duration::from_secs(90);
/// How long a running agent may take for a claim that this process hands on to it.
const HANDED_ON: Duration = Duration::from_secs(30);
/// How long an agent may have the lock without listening, before it is asked again.
const STARTING: Duration = Duration::from_millis(500);

/// The longest list of addresses that is read from stdin, in bytes.
const MOST_INPUT: u64 = 16 << 20;

fn main() -> ExitCode {
    let line = match command_line::parse(std::env::args_os().skip(1)) {
        Ok(line) => line,
        Err(text) => {
            print_error(&text);
            return ExitCode::from(2);
        }
    };
    if line.log {
        log_steps();
    }
    match execute(&line) {
        Ok(text) => {
            // A reader that has ended needs nothing.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            if matches!(line.command, AgentCommand::Claim(_))
                && let Ok(reply) = serde_json::to_string(&AgentReply::Error(failure.reply()))
            {
                let _ = writeln!(std::io::stdout().lock(), "{reply}");
            }
            let reply = failure.reply();
            print_error(&reply.msg);
            if let Some(hint) = reply.hint {
                print_error(&format!("hint: {hint}"));
            }
            ExitCode::FAILURE
        }
    }
}

fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "cnikit-agent: {text}");
}

fn execute(line: &CommandLine) -> Result<String, AgentFailure> {
    if let AgentCommand::Print(text) = &line.command {
        return Ok(text.clone());
    }
    let config = AgentConfig::read(&line.config)?;
    let engine = AnyEngine::new(config.engine()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Error { text: format!("start the runtime: {error}"), hint: None })?;
    match &line.command {
        AgentCommand::Run => run(&runtime, &config, engine).map(|()| String::new()),
        AgentCommand::Claim(request) => claim(&runtime, &config, engine, request),
        AgentCommand::GiveBack { waits } => {
            give_back(runtime.handle(), &settings(&config)?, &Arc::new(engine), *waits)?;
            Ok(String::new())
        }
        AgentCommand::Fence(request) => {
            let (incarnation, freed) = runtime.block_on(operator::fence_node(&engine, request))?;
            let done = serde_json::json!({"node": request.node, "incarnation": incarnation, "freed": freed});
            Ok(format!("{done}\n"))
        }
        AgentCommand::WatchNodes => watch_nodes(&runtime, &config, engine).map(|()| String::new()),
        AgentCommand::Define(file) => {
            let text = std::fs::read(file)
                .map_err(|error| Error { text: format!("read {}: {error}", file.display()), hint: None })?;
            let pool = runtime.block_on(operator::define_pool(&engine, &text))?;
            Ok(format!("pool {} is defined\n", pool.name()))
        }
        AgentCommand::Select { namespace, pool } => {
            runtime.block_on(operator::select_pool(&engine, namespace, pool.as_deref()))?;
            Ok(match pool {
                Some(pool) => format!("pods of namespace {namespace} get addresses of pool {pool}\n"),
                None => format!("pods of namespace {namespace} get addresses of the pool of their network\n"),
            })
        }
        AgentCommand::Forget { pool, namespace, name } => {
            let freed = runtime.block_on(operator::forget_name(&engine, pool, namespace, name))?;
            let done = serde_json::json!({"pool": pool, "namespace": namespace, "name": name, "freed": freed});
            Ok(format!("{done}\n"))
        }
        AgentCommand::List => {
            let mut all = runtime.block_on(operator::list_all(&engine))?;
            all["this"] = serde_json::json!({"node": config.node_name()?, "dataDir": config.data_dir});
            Ok(format!("{all:#}\n"))
        }
        AgentCommand::Check => {
            let AgentSettings { node: name, boot, files, .. } = settings(&config)?;
            let node = ComparedNode { name, boot, files };
            let findings = runtime.block_on(compare_node(&engine, &node))?;
            let document = serde_json::json!({"findings": findings, "dataDir": config.data_dir});
            Ok(format!("{document:#}\n"))
        }
        AgentCommand::Adopt(line) => adopt(&runtime, &config, engine, line),
        AgentCommand::Print(text) => Ok(text.clone()),
    }
}

fn settings(config: &AgentConfig) -> Result<AgentSettings, AgentFailure> {
    let boot = cnikit_netns::boot_id().map_err(|error| Error { text: error.to_string(), hint: None })?;
    Ok(AgentSettings {
        node: config.node_name()?,
        boot,
        files: NodeFiles::new(config.data_dir.clone()),
        grace: Duration::from_secs(config.grace),
    })
}

/// The lock that only one agent of a node has.
fn lock_agent(config: &AgentConfig, timeout: Duration) -> Result<cnikit_store::Lock, AgentFailure> {
    let files = NodeFiles::new(config.data_dir.clone());
    let busy = || Error {
        text: format!("another process has the lock agent.lock in {}", files.path().display()),
        hint: Some("another agent of this node runs".to_owned()),
    };
    Ok(files.lock_agent(timeout)?.ok_or_else(busy)?)
}

fn run(runtime: &Runtime, config: &AgentConfig, engine: AnyEngine) -> Result<(), AgentFailure> {
    let _lock = lock_agent(config, TAKEOVER)?;
    let listener = AgentListener::bind(&config.socket)?;
    let options = DaemonOptions {
        compare: Duration::from_secs(config.compare),
        session: Duration::from_secs(config.session.into()),
        metrics: config.metrics.clone(),
    };
    daemon::serve(runtime, settings(config)?, Arc::new(engine), listener, &options)?;
    Ok(())
}

/// Fences nodes that Kubernetes has given up, until a signal.
fn watch_nodes(runtime: &Runtime, config: &AgentConfig, engine: AnyEngine) -> Result<(), AgentFailure> {
    let AnyEngine::Kubernetes(engine) = engine else {
        let hint = Some("the configuration needs `kubernetes`".to_owned());
        return Err(Error { text: "etcd knows nothing of the nodes of Kubernetes".into(), hint }.into());
    };
    let every = Duration::from_secs(config.session.into());
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())
            .map_err(|error| Error { text: format!("wait for signals: {error}"), hint: None })?;
        tokio::select! {
            _ = terminated.recv() => Ok(()),
            never = cluster_nodes::watch_nodes(Arc::from(engine), every) => never,
        }
    })
}

/// Claims once: by the agent that runs, or in this process.
fn claim(
    runtime: &Runtime,
    config: &AgentConfig,
    engine: AnyEngine,
    request: &AgentRequest,
) -> Result<String, AgentFailure> {
    let reply = serve_all(runtime, config, engine, std::slice::from_ref(request))?;
    let done = serde_json::to_string(&reply).unwrap_or_default();
    Ok(format!("{done}\n"))
}

/// Serves requests, one after the other: by the agent that runs, or in this process. Returns the last reply.
fn serve_all(
    runtime: &Runtime,
    config: &AgentConfig,
    engine: AnyEngine,
    requests: &[AgentRequest],
) -> Result<AgentReply, AgentFailure> {
    let mut last = AgentReply::Done(true);
    let mut left = requests.iter();
    for request in left.by_ref() {
        match ask_or_lock(config, request)? {
            Handed::Replied(AgentReply::Error(error)) => {
                return Err(AgentFailure::Refused { code: error.code, text: error.msg, hint: error.hint });
            }
            Handed::Replied(reply) => last = reply,
            Handed::Locked(_lock) => {
                let metrics = Arc::new(AgentMetrics::default());
                let mut agent = PoolAgent::new(settings(config)?, Arc::new(engine), runtime.handle().clone(), metrics)?;
                for request in std::iter::once(request).chain(left) {
                    last = agent.reply(request)?;
                }
                return Ok(last);
            }
        }
    }
    Ok(last)
}

/// Who serves a request.
enum Handed {
    /// The agent that runs has done it.
    Replied(AgentReply),
    /// This process, which has the lock: no agent runs.
    Locked(cnikit_store::Lock),
}

/// Asks the agent that runs. If none listens, takes the agent's lock; an agent that starts meanwhile has it before it listens, and
/// is asked then. One that ends without a reply is being replaced.
fn ask_or_lock(config: &AgentConfig, request: &AgentRequest) -> Result<Handed, AgentFailure> {
    let deadline = Deadline::after(HANDED_ON);
    loop {
        let failed = match ask_agent(&config.socket, request, deadline) {
            Ok(reply) => return Ok(Handed::Replied(reply)),
            Err(AgentCallError::NotRunning { .. }) => match lock_agent(config, STARTING) {
                Ok(lock) => return Ok(Handed::Locked(lock)),
                Err(failed) => failed,
            },
            Err(error @ AgentCallError::Broken { .. }) => Error { text: error.to_string(), hint: None }.into(),
            Err(error) => return Err(Error { text: error.to_string(), hint: None }.into()),
        };
        if !deadline.pause(Duration::from_millis(20)) {
            return Err(failed);
        }
    }
}

/// Claims the blocks that cover the addresses of a network's directory.
fn adopt(runtime: &Runtime, config: &AgentConfig, engine: AnyEngine, line: &AdoptLine) -> Result<String, AgentFailure> {
    let mut also = AlsoAdopted::default();
    if line.reads_stdin {
        let mut text = Vec::new();
        let read = std::io::stdin().lock().take(MOST_INPUT).read_to_end(&mut text);
        read.map_err(|error| Error { text: format!("read stdin: {error}"), hint: None })?;
        also = AlsoAdopted::parse(&text)?;
    }
    let network = network_of(&line.directory, &config.data_dir, line.reads_stdin)?;
    let request = AdoptRequest { network, pool: line.pool.clone(), ranges: line.ranges.clone(), also };
    let files = NodeFiles::new(config.data_dir.clone());
    let blocks = runtime.block_on(plan_adoption(&engine, &files, &config.node_name()?, &request))?;
    if !line.is_dry_run {
        // Those that this node has already, too: a block of which it knows nothing, or that is sealed, serves then.
        let wants: Vec<AgentRequest> = blocks.iter().map(|block| AgentRequest::Want(block.want.clone())).collect();
        serve_all(runtime, config, engine, &wants)?;
    }
    let document = serde_json::json!({
        "network": request.network, "pool": request.pool, "dryRun": line.is_dry_run, "blocks": blocks,
    });
    Ok(format!("{document:#}\n"))
}
