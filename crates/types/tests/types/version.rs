//! Versions as texts and as numbers.

use cnikit_types::{Release, Version};
use serde_json::json;

#[test]
fn a_version_is_known_by_its_exact_spelling() {
    for version in Version::ALL {
        assert_eq!(Version::exact(version.as_str()), Some(version));
        assert_eq!(version.to_string(), version.as_str());
    }
    assert_eq!(Version::exact(""), Some(Version::V0_1_0));
    for text in ["1.1", "v1.1.0", "01.1.0", "1.1.0 ", "1.2.0", "0.5.0"] {
        assert_eq!(Version::exact(text), None, "{text}");
    }
}

#[test]
fn versions_are_listed_oldest_first_and_the_newest_is_last() {
    assert!(Version::ALL.is_sorted());
    assert_eq!(Version::ALL.last(), Some(&Version::NEWEST));
    assert!(Version::ALL.map(Release::from).is_sorted());
    for version in Version::ALL {
        assert_eq!(Release::parse(version.as_str()), Ok(version.into()));
    }
}

#[test]
fn a_version_is_a_text_in_json() {
    assert_eq!(serde_json::to_value(Version::V0_4_0).unwrap(), json!("0.4.0"));
    assert_eq!(cnikit_types::read::<Version>(&json!("0.4.0")).unwrap(), Version::V0_4_0);
    let error = cnikit_types::read::<Version>(&json!("9")).unwrap_err();
    assert_eq!(error.to_string(), "unsupported CNI version \"9\"");
}

#[test]
fn any_text_of_one_to_three_integers_compares_as_numbers() {
    let release = |text: &str| Release::parse(text).unwrap();
    assert_eq!(release(""), Release { major: 0, minor: 1, micro: 0 });
    assert_eq!(release("1.1"), release("1.1.0"));
    assert_eq!(release("01.1.0"), release("+1.1.0"));
    assert_eq!(release("0.-42.0"), Release { major: 0, minor: -42, micro: 0 });
    assert!(release("0.10.0") > release("0.9.9") && release("1") > release("0.99"));
}

#[test]
fn a_text_that_is_no_version_is_an_error_that_names_the_part() {
    for (text, start) in [
        ("x", "failed to convert major version part \"x\": "),
        ("v1.0.0", "failed to convert major version part \"v1\": "),
        ("1.", "failed to convert minor version part \"\": "),
        ("1.0.0-rc1", "failed to convert micro version part \"0-rc1\": "),
        ("1.0.0.0", "invalid version \"1.0.0.0\": too many parts"),
    ] {
        let message = Release::parse(text).unwrap_err();
        assert!(message.starts_with(start), "{text}: {message}");
    }
}
