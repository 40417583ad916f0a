//! Lists the attachments of a node with their problems, and removes those of containers that no longer exist.
//!
//!     node BIN CONF STATE NETWORK CONTAINER...

use std::error::Error;
use std::io::{Write, stdout};

use cnikit_libcni::{Attachment, Cache, Runtime, ValidAttachment, load};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, bin, conf, state, network, living @ ..] = &args[..] else { return Err("four arguments are needed".into()) };
    let runtime = Runtime::new(bin, Cache::below(state.as_ref()));
    for cached in runtime.cache.attachments()? {
        let Attachment { container_id, ifname, .. } = &cached.at;
        writeln!(stdout(), "{container_id} {ifname} {:?} {} s", cached.addresses(), cached.age().as_secs())?;
        for problem in &cached.problems {
            writeln!(stdout(), "  {problem}")?;
        }
    }
    let mut valid = Vec::new();
    for id in living {
        valid.push(ValidAttachment { container_id: id.clone(), ifname: "eth0".to_owned() });
    }
    let report = runtime.gc(&load(conf.as_ref(), network)?, &valid)?;
    for warning in &report.warnings {
        writeln!(stdout(), "{warning}")?;
    }
    Ok(())
}
