//! Getting more addresses: from the agent that runs, or by running its program once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit::types::NetConf;
use cnikit::{Error, Result, code, log};
use cnikit_pool::{
    AgentCallError, AgentError, AgentReply, AgentRequest, NetworkFiles, Want, ask_agent, parse_reply, start_give_back,
    tell_agent,
};
use cnikit_process::{Deadline, Env, Program, run};

use crate::allocation::{Attempt, PoolRequest, Shortage};
use crate::keys::PoolPlugin;

/// The longest output of the agent's program that is read, in bytes.
const OUTPUT: usize = 64 << 10;

/// Tells the agent that few addresses are left. Nothing waits for it, and nothing fails.
pub(crate) fn tell(request: &PoolRequest<'_>, shortage: &Shortage) {
    if let Err(error) = tell_agent(&request.plugin.agent_socket, &want(request, shortage)) {
        log::info(format_args!("few addresses of pool {} are left, and {error}", shortage.pool));
    }
}

/// Asks the agent for what is short, and returns when it has done that: then the caller tries again. Without an agent its program
/// is run once, unless another call has had that done since the caller looked: then the result is of a new attempt.
pub(crate) fn ask(request: &PoolRequest<'_>, shortage: Shortage, deadline: Deadline) -> Result<Option<Attempt>> {
    match ask_twice(request, &want(request, &shortage), deadline) {
        Ok(AgentReply::Done(true)) => Ok(None),
        Ok(AgentReply::Done(false) | AgentReply::Addresses(_)) => {
            Err(with_reason(shortage, "the agent has not done what was asked"))
        }
        Ok(AgentReply::Error(error)) => Err(of_agent(shortage, error)),
        Err(AgentCallError::NotRunning { .. }) => claim_once(request, shortage, deadline),
        Err(error) => {
            let late = matches!(error, AgentCallError::Late(_));
            let hint = if late {
                "look at the agent's log: its engine may be out of reach"
            } else {
                "look at the agent's log"
            };
            Err(with_reason(shortage, &error.to_string()).hint(hint))
        }
    }
}

/// Asks the agent, and once more if it ended without a reply: it was replaced.
fn ask_twice(
    request: &PoolRequest<'_>,
    wanted: &AgentRequest,
    deadline: Deadline,
) -> std::result::Result<AgentReply, AgentCallError> {
    let socket = &request.plugin.agent_socket;
    match ask_agent(socket, wanted, deadline) {
        Err(AgentCallError::Broken { .. }) => ask_agent(socket, wanted, deadline),
        answered => answered,
    }
}

fn want(request: &PoolRequest<'_>, shortage: &Shortage) -> AgentRequest {
    let attachment = (!shortage.addresses.is_empty()).then(|| request.owner.to_string());
    AgentRequest::Want(Want {
        network: request.network.name().to_owned(),
        pool: shortage.pool.clone(),
        families: shortage.families.clone(),
        free: shortage.free,
        addresses: shortage.addresses.clone(),
        attachment,
    })
}

/// Runs `cnikit-agent claim`. One call of the node does that at a time, and looks again once it is its turn: the one before may
/// have claimed what this one needs.
fn claim_once(request: &PoolRequest<'_>, shortage: Shortage, deadline: Deadline) -> Result<Option<Attempt>> {
    let Some(program) = program_without_agent(request.plugin) else {
        let reason = format!("no agent listens on {}", request.plugin.agent_socket.display());
        return Err(with_reason(shortage, &reason).hint("start cnikit-agent on this node"));
    };
    let left = deadline.remaining().unwrap_or(request.plugin.timeout).max(Duration::from_millis(1));
    let _lock = match request.files.lock_claims(left) {
        Ok(lock) => lock,
        Err(error) => return Err(with_reason(shortage, &error.text)),
    };
    let shortage = match request.attempt()? {
        Attempt::Short(shortage) => shortage,
        allocated @ Attempt::Allocated(..) => return Ok(Some(allocated)),
    };
    match run_claim(&program, &request.plugin.agent_config, &want(request, &shortage), deadline) {
        Ok(AgentReply::Error(error)) => Err(of_agent(shortage, error)),
        Ok(_) => Ok(None),
        Err(reason) => Err(with_reason(shortage, &reason)),
    }
}

/// The agent's program, for a node on which no agent listens; `None` if that is not there, or has no configuration.
fn program_without_agent(plugin: &PoolPlugin) -> Option<PathBuf> {
    plugin.agent().filter(|program| program.exists() && plugin.agent_config.exists())
}

/// Asks the agent for the addresses of a name, which it has to ask its engine for. Without an agent its program is run once.
pub(crate) fn ask_for_name(
    request: &PoolRequest<'_>,
    wanted: &AgentRequest,
    deadline: Deadline,
) -> std::result::Result<AgentReply, (String, &'static str)> {
    let error = match ask_twice(request, wanted, deadline) {
        Ok(reply) => return Ok(reply),
        Err(error) => error,
    };
    if !matches!(error, AgentCallError::NotRunning { .. }) {
        return Err((error.to_string(), "look at the agent's log"));
    }
    let Some(program) = program_without_agent(request.plugin) else {
        return Err((error.to_string(), "start cnikit-agent on this node"));
    };
    let hint = "run `cnikit-agent check` on this node";
    let left = deadline.remaining().unwrap_or(request.plugin.timeout).max(Duration::from_millis(1));
    let _lock = request.files.lock_claims(left).map_err(|error| (error.text, hint))?;
    run_claim(&program, &request.plugin.agent_config, wanted, deadline).map_err(|reason| (reason, hint))
}

/// Runs `cnikit-agent claim`, which replies as an agent does.
fn run_claim(
    program: &Path,
    config: &Path,
    request: &AgentRequest,
    deadline: Deadline,
) -> std::result::Result<AgentReply, String> {
    let text = serde_json::to_string(request).map_err(|error| error.to_string())?;
    let args = vec!["claim".into(), "--request".into(), text.into(), "--config".into(), config.into()];
    let program = Program::new(program, Env::Clean(&[])).args(args).limit(OUTPUT);
    let ended = run(&program, deadline).map_err(|error| error.to_string())?;
    if let Ok(reply) = parse_reply(&ended.stdout) {
        return Ok(reply);
    }
    let stderr = String::from_utf8_lossy(&ended.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("cnikit-agent claim ended with {}: {last}", ended.how))
}

/// After addresses were released: on a node where no agent runs, has a process give back the blocks that are not used any more. It
/// waits for nothing, and fails nothing.
pub(crate) fn start_giving_back(conf: &NetConf, network: &NetworkFiles) {
    // DEL and GC succeed with a configuration that ADD refuses.
    let Ok(Some(plugin)) = conf.read_at::<PoolPlugin>(&["ipam"]) else { return };
    let Some(program) = plugin.agent() else { return };
    match start_give_back(network, &plugin.agent_socket, &program, &plugin.agent_config) {
        Ok(true) => log::info("cnikit-agent gives back the blocks that are not used"),
        Ok(false) => {}
        Err(error) => log::info(format_args!("unused blocks are not given back now: {error}")),
    }
}

/// The agent's error, with the plugin's before it.
fn of_agent(shortage: Shortage, error: AgentError) -> Error {
    let mut refused = with_reason(shortage, &error.msg);
    refused.code = if error.code == 0 { code::TRY_AGAIN } else { error.code };
    if error.hint.is_some() {
        refused.hint = error.hint;
    }
    refused
}

fn with_reason(shortage: Shortage, reason: &str) -> Error {
    let mut error = shortage.error;
    error.msg = format!("{}; {reason}", error.msg);
    error
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cnikit::netns;
    use cnikit::types::{Args, NetConf};
    use cnikit_pool::{
        BlockState, Incarnation, LocalBlock, LocalNode, LocalPools, NodeFiles, NodeState, PoolDefinition,
    };
    use cnikit_reservations::Owner;

    use super::*;
    use crate::allocation::network;
    use crate::keys::PoolPlugin;

    #[test]
    fn the_program_is_not_run_for_what_another_call_has_claimed_since_this_one_looked() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let ran = dir.path().join("ran");
        std::fs::write(path("agent.json"), "{}").unwrap();
        std::fs::write(path("program"), format!("#!/bin/sh\n: >{}\necho '{{\"done\":true}}'\n", ran.display()))
            .unwrap();
        std::fs::set_permissions(path("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let text = format!(
            r#"{{"name":"pods","ipam":{{"type":"pool","pool":"blue","agentSocket":"{}","agent":"{}","agentConfig":"{}"}}}}"#,
            path("none.sock"),
            path("program"),
            path("agent.json"),
        );
        let conf = NetConf::parse(text.as_bytes()).unwrap();
        let plugin: PoolPlugin = conf.read_at(&["ipam"]).unwrap().unwrap();
        let files = NodeFiles::new(dir.path().join("networks"));
        let pool = PoolDefinition::parse(br#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}]}"#).unwrap();
        let boot = netns::boot_id().unwrap();
        let incarnation = Incarnation::draw().unwrap();
        files.write_node(&LocalNode { node: "a".into(), incarnation, boot, state: NodeState::Serving }).unwrap();
        files.write_pools(&LocalPools { pools: vec![pool.config().clone()], ..LocalPools::default() }).unwrap();
        let (args, owner) = (Args::default(), Owner::new("container-1", "eth0"));
        let pods = network(&files, "pods");
        let request = PoolRequest {
            plugin: &plugin,
            args: &args,
            requested_pool: "",
            owner,
            files,
            network: pods,
            requested: vec![],
        };
        let short = || match request.attempt().unwrap() {
            Attempt::Short(shortage) => shortage,
            Attempt::Allocated(addresses, _) => panic!("{addresses:?}"),
        };

        let looked = short();
        assert!(ask(&request, short(), Deadline::after(Duration::from_secs(20))).unwrap().is_none());
        assert!(ran.exists());
        std::fs::remove_file(&ran).unwrap();

        let cidr = "10.8.0.64/26".parse().unwrap();
        let block = LocalBlock { pool: "blue".into(), cidr, is_static: false, epoch: 7, state: BlockState::Active };
        request.network.lock().unwrap().write_blocks(&[block]).unwrap();
        let Some(Attempt::Allocated(addresses, _)) =
            ask(&request, looked, Deadline::after(Duration::from_secs(20))).unwrap()
        else {
            panic!("nothing is allocated");
        };
        assert_eq!(addresses[0].address.ip().to_string(), "10.8.0.64");
        assert!(!ran.exists());
    }
}
