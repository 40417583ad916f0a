//! The JSON Schemas that `cnitool schema` prints, for configurations that the tests use.

use std::process::Command;

use jsonschema::Validator;
use serde_json::Value;

/// The schema of a plugin's configuration, or without a plugin that of network lists.
pub struct Schema(Validator);

impl Schema {
    /// Runs `cnitool schema`.
    pub fn of(plugin: Option<&str>) -> Schema {
        let output = Command::new(crate::program("cnitool")).arg("schema").args(plugin).output().unwrap();
        assert!(output.status.success(), "cnitool schema {plugin:?}: {}", String::from_utf8_lossy(&output.stderr));
        let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(jsonschema::meta::is_valid(&schema), "the schema of {plugin:?} is not a JSON Schema");
        Schema(jsonschema::validator_for(&schema).unwrap())
    }

    /// The errors in a configuration, one per line; empty if it is valid.
    pub fn errors(&self, conf: &Value) -> String {
        let lines = self.0.iter_errors(conf).map(|error| format!("{}: {error}\n", error.instance_path()));
        lines.collect()
    }
}
