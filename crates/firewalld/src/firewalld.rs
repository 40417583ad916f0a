//! The zones of firewalld.

use cnikit_process::Deadline;
use ipnetwork::IpNetwork;

use crate::bus::Bus;
use crate::message::{Call, Value};
use crate::{Cause, Error, Result};

/// Where the system's bus is if the environment does not say it.
const SYSTEM_BUS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// The name of firewalld on the bus.
const NAME: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const ZONES: &str = "org.fedoraproject.FirewallD1.zone";

/// A source that is there already: in this zone by the first code, in any by the second.
const TAKEN: [&str; 2] = ["ZONE_ALREADY_SET", "ZONE_CONFLICT"];
/// A source that is not in this zone: in none, in another, in none that there is.
const ELSEWHERE: [&str; 3] = ["UNKNOWN_SOURCE", "NOT_ENABLED", "ZONE_CONFLICT"];

/// A connection to the system's bus, by which firewalld is told the sources of its zones.
///
/// What it is told holds until firewalld is reloaded or ends: it is no part of its kept configuration. A network stands there
/// as it was written; `10.0.0.2/32` and `10.0.0.2` are two.
#[derive(Debug)]
pub struct Firewalld {
    bus: Bus,
}

impl Firewalld {
    /// Connects to the bus; `None` if none listens, which says that there is no firewalld either.
    ///
    /// `address` is what `DBUS_SYSTEM_BUS_ADDRESS` says: addresses with semicolons between them, of which `unix:path=` and
    /// `unix:abstract=` are tried in their order. `deadline` holds for all that is done with this connection.
    ///
    /// # Errors
    /// The socket is not of a bus, the bus refuses us, or it does not answer before the deadline.
    #[doc(alias = "DBUS_SYSTEM_BUS_ADDRESS")]
    pub fn connect(address: Option<&str>, deadline: Deadline) -> Result<Option<Self>> {
        Ok(Bus::connect(address.unwrap_or(SYSTEM_BUS), deadline)?.map(|bus| Self { bus }))
    }

    /// Whether firewalld runs. It is not started by this, nor by any other function here.
    ///
    /// # Errors
    /// The bus does not answer before the deadline or closes the connection, or its answer cannot be parsed.
    pub fn is_running(&mut self) -> Result<bool> {
        match self.bus.ask("GetNameOwner", &[NAME]) {
            Ok(_) => Ok(true),
            Err(error) if error.is_absent() => Ok(false),
            Err(error) => Err(error.during("ask whether firewalld runs")),
        }
    }

    /// Makes this network a source of the zone, if it is not yet. The zone `""` is firewalld's default.
    ///
    /// # Errors
    /// The network is a source of another zone: [`Cause::InZone`] names it. The zone is not there. firewalld does not run
    /// ([`Error::is_absent`]).
    pub fn add_source(&mut self, zone: &str, network: IpNetwork) -> Result<()> {
        let deed = format!("add the source {network} to zone \"{zone}\" of firewalld");
        let error = match self.zone("addSource", &[zone, &network.to_string()]) {
            Err(error) if error.is_exception(&TAKEN) => error,
            added => return added.map(drop).map_err(|error| error.during(deed)),
        };
        if self.query_source(zone, network)? {
            return Ok(());
        }
        let told = self.zone("getZoneOfSource", &[&network.to_string()]);
        Err(match told.map_err(|error| error.during(deed.as_str()))? {
            Value::Text(other) if !other.is_empty() => Error::new(deed, Cause::InZone(other)),
            _ => error.during(deed),
        })
    }

    /// Has this network no longer be a source of the zone; where it is none, nothing is to be done. That of another zone stays.
    ///
    /// # Errors
    /// firewalld does not run ([`Error::is_absent`]), or refuses.
    pub fn remove_source(&mut self, zone: &str, network: IpNetwork) -> Result<()> {
        match self.zone("removeSource", &[zone, &network.to_string()]) {
            Err(error) if error.is_exception(&ELSEWHERE) => Ok(()),
            removed => removed.map(drop).map_err(|error| {
                error.during(format!("remove the source {network} from zone \"{zone}\" of firewalld"))
            }),
        }
    }

    /// Whether this network is a source of the zone.
    ///
    /// # Errors
    /// The zone is not there, or firewalld does not run ([`Error::is_absent`]).
    pub fn query_source(&mut self, zone: &str, network: IpNetwork) -> Result<bool> {
        let deed = || format!("ask firewalld whether {network} is a source of zone \"{zone}\"");
        match self.zone("querySource", &[zone, &network.to_string()]).map_err(|error| error.during(deed()))? {
            Value::Truth(is) => Ok(is),
            _ => Err(Error::new(deed(), Cause::Unreadable("it answered neither yes nor no".to_owned()))),
        }
    }

    fn zone(&mut self, member: &str, arguments: &[&str]) -> Result<Value> {
        self.bus.call(&Call { destination: NAME, path: PATH, interface: ZONES, member, arguments })
    }
}
