//! The grammar of names (specification, section 2; limits as measured with upstream).

/// The longest name of an interface, in bytes.
#[doc(alias = "IFNAMSIZ")]
const LONGEST_IFNAME: usize = 15;

/// Checks a container id: letters, digits, `_`, `.`, `-`, and a letter or digit first; of any length.
///
/// # Errors
/// An empty id, or one with another character.
pub fn check_container_id(id: &str) -> Result<(), String> {
    match id {
        "" => Err("missing container ID".into()),
        id if is_word(id) => Ok(()),
        _ => Err("invalid characters in containerID".into()),
    }
}

/// Checks the name of a network: the rules are those of a container id.
///
/// # Errors
/// An empty name, or one with another character.
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
/// A name that the kernel refuses: an empty one, one longer than 15 bytes, `.`, `..`, and one with `/`, `:` or white space. And
/// one with `%`, which the kernel would take for a template, or with a control character.
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

/// Checks the name of a plugin, `type`: the name of a file, never a path. The rules are those of a container id.
///
/// # Errors
/// An empty name, or one with another character, such as `/`.
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
