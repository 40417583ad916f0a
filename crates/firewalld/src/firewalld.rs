//! The sources of firewalld's zones.

use cnikit_process::Deadline;
use ipnetwork::IpNetwork;

use crate::bus::Bus;
use crate::message::{Call, Value};
use crate::{Cause, Error, Result};

/// The address of the system bus if the environment does not have one.
const SYSTEM_BUS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// The name of firewalld on the bus.
const NAME: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const ZONES: &str = "org.fedoraproject.FirewallD1.zone";

/// The codes for a source that already exists: in this zone, or in any zone.
const TAKEN: [&str; 2] = ["ZONE_ALREADY_SET", "ZONE_CONFLICT"];
/// The codes for a source that is not in this zone: it is in no zone, or in another one.
const ELSEWHERE: [&str; 3] = ["UNKNOWN_SOURCE", "NOT_ENABLED", "ZONE_CONFLICT"];

/// A connection to the system bus for reading and changing the sources of firewalld's zones.
///
/// Changes are made in the runtime configuration of firewalld, not in the permanent one: they last until firewalld is reloaded or
/// ends. firewalld compares sources as texts; `10.0.0.2/32` and `10.0.0.2` are two different ones.
#[derive(Debug)]
pub struct Firewalld {
    bus: Bus,
}

impl Firewalld {
    /// Connects to the bus; `None` if no bus listens, so that there is no firewalld either.
    ///
    /// `address` is the value of `DBUS_SYSTEM_BUS_ADDRESS`: addresses separated by semicolons, of which `unix:path=` and
    /// `unix:abstract=` are tried in order. `deadline` holds for all calls of this connection together.
    ///
    /// # Errors
    /// The socket does not belong to a bus, the bus refuses the connection, or it does not answer before the deadline.
    #[doc(alias = "DBUS_SYSTEM_BUS_ADDRESS")]
    pub fn connect(address: Option<&str>, deadline: Deadline) -> Result<Option<Self>> {
        Ok(Bus::connect(address.unwrap_or(SYSTEM_BUS), deadline)?.map(|bus| Self { bus }))
    }

    /// Whether firewalld runs. Neither this nor any other function here starts it.
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

    /// Adds this network as a source to the zone, unless the zone has it already. The zone `""` is firewalld's default zone.
    ///
    /// # Errors
    /// The network is a source of another zone, which [`Cause::InZone`] names; the zone does not exist; or firewalld does not run
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

    /// Removes this network from the sources of the zone. It is not an error if the zone does not have it; a source of another
    /// zone is left alone.
    ///
    /// # Errors
    /// firewalld does not run ([`Error::is_absent`]), or refuses the call.
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
    /// The zone does not exist, or firewalld does not run ([`Error::is_absent`]).
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
