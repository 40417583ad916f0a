//! `cnikit-agent`: see `cnikit-agent --help`.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cnikit_agent::command_line::{self, AgentCommand, CommandLine};
use cnikit_agent::config::AgentConfig;
use cnikit_agent::daemon::{self, DaemonOptions};
use cnikit_agent::engine::EtcdEngine;
use cnikit_agent::{AgentFailure, AgentMetrics, AgentSettings, PoolAgent, log_steps, operator};
use cnikit_pool::{AgentCallError, AgentListener, AgentReply, AgentRequest, Error, NodeFiles, Want, ask_agent};
use cnikit_process::Deadline;
use cnikit_store::PrivateDirectory;
use tokio::runtime::Runtime;

/// How long another agent may take to end, as systemd waits before it kills one.
const TAKEOVER: Duration = Duration::from_secs(90);
/// How long a running agent may take for a claim that this process hands on to it.
const HANDED_ON: Duration = Duration::from_secs(30);

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
            if matches!(line.command, AgentCommand::Claim { .. })
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
    let engine = EtcdEngine::new(config.etcd()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Error { text: format!("start the runtime: {error}"), hint: None })?;
    match &line.command {
        AgentCommand::Run => run(&runtime, &config, engine).map(|()| String::new()),
        AgentCommand::Claim { network, pool } => claim(&runtime, &config, engine, network, pool),
        AgentCommand::Fence(request) => {
            let (incarnation, freed) = runtime.block_on(operator::fence_node(&engine, request))?;
            let done = serde_json::json!({"node": request.node, "incarnation": incarnation, "freed": freed});
            Ok(format!("{done}\n"))
        }
        AgentCommand::Define(file) => {
            let text = std::fs::read(file)
                .map_err(|error| Error { text: format!("read {}: {error}", file.display()), hint: None })?;
            let pool = runtime.block_on(operator::define_pool(&engine, &text))?;
            Ok(format!("pool {} is defined\n", pool.name()))
        }
        AgentCommand::List => Ok(format!("{:#}\n", runtime.block_on(operator::list_all(&engine))?)),
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

/// The lock that only one agent of a node has: two would not know of each other's claims.
fn only_agent(config: &AgentConfig, timeout: Duration) -> Result<cnikit_store::Lock, AgentFailure> {
    let failed = |error: cnikit_store::Error| {
        let hint = error.is_deadline().then(|| "another agent of this node runs".to_owned());
        AgentFailure::Files(Error { text: error.to_string(), hint })
    };
    cnikit_store::Directory::make_durably(&config.data_dir, 0o755).map_err(failed)?;
    let directory = PrivateDirectory::make(&config.data_dir, &[".pool"]).map_err(failed)?;
    directory.lock("agent.lock", timeout).map_err(failed)
}

fn run(runtime: &Runtime, config: &AgentConfig, engine: EtcdEngine) -> Result<(), AgentFailure> {
    let _lock = only_agent(config, TAKEOVER)?;
    let listener = AgentListener::bind(&config.socket)?;
    let options = DaemonOptions {
        compare: Duration::from_secs(config.compare),
        session: Duration::from_secs(config.session.into()),
        metrics: config.metrics.clone(),
    };
    daemon::serve(runtime, settings(config)?, Arc::new(engine), listener, &options)?;
    Ok(())
}

/// Claims once: by the agent that runs, or in this process.
fn claim(
    runtime: &Runtime,
    config: &AgentConfig,
    engine: EtcdEngine,
    network: &str,
    pool: &str,
) -> Result<String, AgentFailure> {
    let arrived = Instant::now();
    let want = Want {
        network: network.to_owned(),
        pool: pool.to_owned(),
        families: Vec::new(),
        free: 1,
        addresses: Vec::new(),
        attachment: None,
    };
    let request = AgentRequest::Want(want.clone());
    match ask_agent(&config.socket, &request, Deadline::after(HANDED_ON)) {
        Ok(AgentReply::Error(error)) => {
            return Err(AgentFailure::Refused { code: error.code, text: error.msg, hint: error.hint });
        }
        Err(AgentCallError::NotRunning { .. }) => {
            let _lock = only_agent(config, HANDED_ON)?;
            let metrics = Arc::new(AgentMetrics::default());
            let mut agent = PoolAgent::new(settings(config)?, Arc::new(engine), runtime.handle().clone(), metrics)?;
            agent.serve(&want, arrived)?;
        }
        Ok(AgentReply::Done(_)) => {}
        Err(error) => return Err(Error { text: error.to_string(), hint: None }.into()),
    }
    let done = serde_json::to_string(&AgentReply::Done(true)).unwrap_or_default();
    Ok(format!("{done}\n"))
}
