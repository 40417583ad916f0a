//! Attaches a container to its loopback and to any number of networks, and prints its interfaces.
//!
//!     attach BIN CONF STATE NETNS NETWORK...

use std::error::Error;
use std::io::{Write, stdout};

use cnikit_libcni::{Attachment, Cache, Networks, Runtime, load};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, bin, conf, state, netns, names @ ..] = &args[..] else {
        return Err("four arguments are needed, then the names of networks".into());
    };
    let mut networks = Networks::new(Runtime::new(bin, Cache::below(state.as_ref()))).with_loopback();
    for name in names {
        networks = networks.with(load(conf.as_ref(), name)?);
    }
    for merged in networks.setup(&Attachment::new("web-1", netns))?.interfaces {
        writeln!(stdout(), "{} {} {:?}", merged.network, merged.interface.name, merged.ips)?;
    }
    Ok(())
}
