//! Checks of names (specification, section 2; limits as measured with upstream).

/// The maximum length of an interface name, in bytes.
#[doc(alias = "IFNAMSIZ")]
const LONGEST_IFNAME: usize = 15;

/// Checks a container id. It consists of letters, digits, `_`, `.` and `-`, begins with a letter or digit, and has any length.
///
/// # Errors
/// The id is empty or has another character.
pub fn check_container_id(id: &str) -> Result<(), String> {
    match id {
        "" => Err("missing container ID".into()),
        id if is_word(id) => Ok(()),
        _ => Err("invalid characters in containerID".into()),
    }
}

/// Checks the name of a network. The rules are those of a container id.
///
/// # Errors
/// The name is empty or has another character.
pub fn check_network_name(name: &str) -> Result<(), String> {
    match name {
        "" => Err("missing network name".into()),
        name if is_word(name) => Ok(()),
        _ => Err("invalid characters found in network name".into()),
    }
}

/// Checks the name of an interface.
///
/// # Errors
/// The kernel refuses the name: it is empty, longer than 15 bytes, `.` or `..`, or has `/`, `:` or white space. Or it has a `%`,
/// with which the kernel would interpret it as a template, or a control character.
pub fn check_ifname(name: &str) -> Result<(), String> {
    match name {
        "" => Err("interface name is empty".into()),
        name if name.len() > LONGEST_IFNAME => Err("interface name is too long".into()),
        "." | ".." => Err("interface name is . or ..".into()),
        name if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) => {
            Err("interface name contains / or : or whitespace characters".into())
        }
        name if name.contains(|c: char| c == '%' || c.is_control()) => {
            Err("interface name contains % or control characters".into())
        }
        _ => Ok(()),
    }
}

/// Checks the name of a plugin (`type`), which is the name of a file and never a path. The rules are those of a container id.
///
/// # Errors
/// The name is empty or has another character, such as `/`.
pub fn check_plugin_name(name: &str) -> Result<(), String> {
    match name {
        "" => Err("no plugin name provided".into()),
        name if is_word(name) => Ok(()),
        name => Err(format!("invalid plugin name: {name:?}")),
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}
