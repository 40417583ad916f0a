//! Host ports that lead to another container already.

use cnikit_skel::{Error, Result, log};

use super::mapping::{Mapping, OnPortConflict, PortMap};

/// A mapping whose host port leads to another container already.
pub(super) struct Conflict {
    pub(super) mapping: Mapping,
    /// The other container, for messages.
    pub(super) holder: String,
}

/// Refuses the conflicts, or logs that the ports stay with the other containers, as configured.
pub(super) fn refuse_or_log(map: &PortMap, conflicts: &[Conflict]) -> Result<()> {
    for Conflict { mapping: Mapping { protocol, host_port, .. }, holder } in conflicts {
        let text = format!("{protocol} {host_port} of the host leads to {holder} already");
        match map.on_conflict {
            OnPortConflict::Refuse => {
                return Err(Error::conflict(text).hint(
                    "choose another hostPort, or remove that container: if it has ended, its DEL or a GC releases the port",
                ));
            }
            OnPortConflict::KeepFirst => log::warn(format_args!("{text}, and stays with it")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_refused_by_name_unless_the_first_container_keeps_the_port() {
        let mut map = PortMap::tried([10, 1, 0, 2].into());
        let conflicts = [Conflict { mapping: map.mappings[0].clone(), holder: "c-other".into() }];
        let refused = refuse_or_log(&map, &conflicts).unwrap_err().to_string();
        assert!(refused.contains("tcp 1 of the host leads to c-other already"), "{refused}");
        refuse_or_log(&map, &[]).unwrap();
        map.on_conflict = OnPortConflict::KeepFirst;
        refuse_or_log(&map, &conflicts).unwrap();
    }
}
