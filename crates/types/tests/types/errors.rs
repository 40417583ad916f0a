//! The error object.

use cnikit_types::{CniError, code, read};
use serde_json::json;

#[test]
fn an_error_is_written_with_what_is_known_of_it() {
    let mut error = CniError { code: code::INVALID_CONFIG, msg: "no".into(), ..CniError::default() };
    assert_eq!(serde_json::to_string(&error).unwrap(), r#"{"code":7,"msg":"no"}"#);
    assert_eq!(error.to_string(), "no");
    error.cni_version = Some("1.1.0".into());
    error.details = Some("because".into());
    let text = r#"{"cniVersion":"1.1.0","code":7,"msg":"no","details":"because"}"#;
    assert_eq!(serde_json::to_string(&error).unwrap(), text);
    assert_eq!(error.to_string(), "no: because");
}

#[test]
fn an_error_with_missing_members_is_read() {
    assert_eq!(read::<CniError>(&json!({})).unwrap(), CniError::default());
    let error: CniError = read(&json!({"Code": 11, "MSG": "later", "details": null, "other": []})).unwrap();
    assert_eq!(error, CniError { code: code::TRY_AGAIN, msg: "later".into(), ..CniError::default() });
}
