//! Shows what is attached on a node and what is wrong with it, and removes what no living container holds.
//!
//!     node BIN CONF STATE NETWORK CONTAINER...

use std::error::Error;
use std::io::{Write, stdout};

use cnikit_libcni::{Cache, Runtime, ValidAttachment, load};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, bin, conf, state, network, living @ ..] = &args[..] else { return Err("four arguments are needed".into()) };
    let runtime = Runtime::new(bin, Cache::below(state.as_ref()));
    for kept in runtime.cache.attachments()? {
        let (container, ifname) = (&kept.at.container_id, &kept.at.ifname);
        writeln!(stdout(), "{container} {ifname} {:?} {} s", kept.addresses(), kept.age().as_secs())?;
        kept.broken.iter().try_for_each(|what| writeln!(stdout(), "  {what}"))?;
    }
    let valid = |id: &String| ValidAttachment { container_id: id.clone(), ifname: "eth0".to_owned() };
    let valid: Vec<ValidAttachment> = living.iter().map(valid).collect();
    let report = runtime.gc(&load(conf.as_ref(), network)?, &valid)?;
    report.warnings.iter().try_for_each(|warning| writeln!(stdout(), "{warning}"))?;
    Ok(())
}
