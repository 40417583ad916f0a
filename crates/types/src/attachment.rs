//! The valid attachments of a GC.

use serde::Deserialize;

use crate::{NetConf, ReadError, read};

/// One attachment that is still valid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct ValidAttachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface inside it.
    pub ifname: String,
}

/// The keys of the list: that of the current specification, then that of the published 1.1.0.
const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

impl NetConf {
    /// The attachments that GC must leave alone; `None` if neither key is present, which is not the same as an empty list.
    ///
    /// The lists of both keys are merged: an attachment that is in either is valid. `null` is an empty list; a runtime sends it
    /// when no container is left.
    ///
    /// # Errors
    /// A list or a member of it has the wrong type, or a member lacks a key. The error's path names it.
    pub fn valid_attachments(&self) -> Result<Option<Vec<ValidAttachment>>, ReadError> {
        let mut valid: Vec<ValidAttachment> = Vec::new();
        for key in KEYS {
            if let Some(list) = self.get(key) {
                let listed: Vec<ValidAttachment> = read(list).map_err(|error| of_runtime(error, key))?;
                valid.extend(listed);
            }
        }
        Ok(KEYS.into_iter().any(|key| self.has(key)).then_some(valid))
    }
}

/// An error of a list that the runtime wrote, not the author of the configuration.
fn of_runtime(error: ReadError, key: &str) -> ReadError {
    let hint = "the runtime must list attachments here, each with `containerID` and `ifname`";
    ReadError { hint: Some(hint.to_owned()), ..error.under(key) }
}
