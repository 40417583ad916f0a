//! The valid attachments of a GC.

use cnikit_types::{NetConf, ValidAttachment, Wrong};

fn conf(text: &str) -> NetConf {
    NetConf::parse(text.as_bytes()).unwrap()
}

#[test]
fn both_names_of_the_key_are_read_and_their_lists_add_up() {
    let new = r#""cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]"#;
    let old = r#""cni.dev/attachments":[{"containerID":"b","ifname":"eth1"}]"#;
    let of = |text: String| conf(&text).valid_attachments().unwrap().unwrap();
    let a = ValidAttachment { container_id: "a".into(), ifname: "eth0".into() };
    let b = ValidAttachment { container_id: "b".into(), ifname: "eth1".into() };
    assert_eq!(of(format!("{{{new}}}")), vec![a.clone()]);
    assert_eq!(of(format!("{{{old}}}")), std::slice::from_ref(&b));
    assert_eq!(of(format!("{{{old},{new}}}")), [a.clone(), b.clone()]);
    assert_eq!(of(format!(r#"{{{old},"cni.dev/valid-attachments":null}}"#)), [b], "a null takes nothing away");
    assert_eq!(of(format!(r#"{{"cni.dev/attachments":null,{new}}}"#)), [a], "a null takes nothing away");
}

#[test]
fn null_and_an_empty_list_mean_no_valid_attachment() {
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        for value in ["null", "[]"] {
            let conf = conf(&format!(r#"{{"{key}":{value}}}"#));
            assert_eq!(conf.valid_attachments().unwrap(), Some(Vec::new()), "{key} {value}");
        }
    }
    let both = conf(r#"{"cni.dev/valid-attachments":null,"cni.dev/attachments":null}"#);
    assert_eq!(both.valid_attachments().unwrap(), Some(Vec::new()));
    assert_eq!(conf("{}").valid_attachments().unwrap(), None);
}

#[test]
fn a_wrong_list_is_an_error_and_never_an_empty_one() {
    for (text, what, path) in [
        (r#"{"cni.dev/attachments":{}}"#, Wrong::Type, "cni.dev/attachments"),
        (r#"{"cni.dev/valid-attachments":[],"cni.dev/attachments":{}}"#, Wrong::Type, "cni.dev/attachments"),
        (r#"{"cni.dev/attachments":[null]}"#, Wrong::Type, "cni.dev/attachments[0]"),
        (r#"{"cni.dev/attachments":[{"containerID":"a"}]}"#, Wrong::Value, "cni.dev/attachments[0].ifname"),
    ] {
        let error = conf(text).valid_attachments().unwrap_err();
        assert_eq!((error.what, error.path.as_str()), (what, path), "{text}");
    }
}
