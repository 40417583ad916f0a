//! Getting more addresses: from the agent that runs, or by running its program once.

use std::time::Duration;

use cnikit::{Error, Result, code, log};
use cnikit_pool::{AgentCallError, AgentError, AgentReply, AgentRequest, Want, ask_agent, parse_reply, tell_agent};
use cnikit_process::{Deadline, Env, Program, run};

use crate::allocation::{PoolRequest, Shortage};

/// The longest output of the agent's program that is read, in bytes.
const OUTPUT: usize = 64 << 10;

/// Tells the agent that few addresses are left. Nothing waits for it, and nothing fails.
pub(crate) fn tell(request: &PoolRequest<'_>, shortage: &Shortage) {
    if let Err(error) = tell_agent(&request.plugin.agent_socket, &want(request, shortage)) {
        log::info(format_args!("few addresses of pool {} are left, and {error}", shortage.pool));
    }
}

/// Asks the agent for what is short, and returns when it has done that.
pub(crate) fn ask(request: &PoolRequest<'_>, shortage: Shortage, deadline: Deadline) -> Result<()> {
    match ask_agent(&request.plugin.agent_socket, &want(request, &shortage), deadline) {
        Ok(AgentReply::Done(true)) => Ok(()),
        Ok(AgentReply::Done(false)) => Err(with_reason(shortage, "the agent has not done what was asked")),
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

/// Runs `cnikit-agent claim`. One call of the node does at a time: another one that has waited for it tries its luck first.
fn claim_once(request: &PoolRequest<'_>, shortage: Shortage, deadline: Deadline) -> Result<()> {
    let plugin = request.plugin;
    let socket = plugin.agent_socket.display();
    let program = match plugin.agent() {
        Some(program) if program.exists() && plugin.agent_config.exists() => program,
        _ => {
            let reason = format!("no agent listens on {socket}");
            return Err(with_reason(shortage, &reason).hint("start cnikit-agent on this node"));
        }
    };
    let left = deadline.remaining().unwrap_or(plugin.timeout).max(Duration::from_millis(1));
    match request.files.lock_claims(left) {
        Ok(lock) if lock.waited() => Ok(()),
        Ok(_lock) => {
            let arguments = ["claim", "--network", request.network.name(), "--pool", &shortage.pool, "--config"];
            let mut args: Vec<std::ffi::OsString> = arguments.iter().map(Into::into).collect();
            args.push(plugin.agent_config.clone().into());
            let ended = run(&Program::new(program, Env::Clean(&[])).args(args).limit(OUTPUT), deadline);
            match ended {
                Ok(ended) => match parse_reply(&ended.stdout) {
                    Ok(AgentReply::Error(error)) => Err(of_agent(shortage, error)),
                    _ if ended.how.is_success() => Ok(()),
                    _ => {
                        let stderr = String::from_utf8_lossy(&ended.stderr);
                        let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                        Err(with_reason(shortage, &format!("cnikit-agent claim ended with {}: {last}", ended.how)))
                    }
                },
                Err(error) => Err(with_reason(shortage, &error.to_string())),
            }
        }
        Err(error) => Err(with_reason(shortage, &error.text)),
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
