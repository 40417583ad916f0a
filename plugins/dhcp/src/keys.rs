//! The keys under `ipam`, and their validation.

use std::time::Duration;

use cnikit::types::Args;
use cnikit::{Error, Result};
use cnikit_dhcp::v4::{ClientOptions, client_id, option_code};
use cnikit_dhcp_daemon::{LeaseFamily, LeaseOwner};
use serde::Deserialize;

use crate::DhcpPlugin;
use crate::daemon::Daemon;

/// How long ADD waits by default, in seconds. Runtimes wait a minute or more.
const TIMEOUT: u32 = 50;

/// The keys under `ipam`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DhcpKeys {
    /// Where addresses come from: `v4`, `v6` (DHCP for IPv6), `slaac` (router advertisements). Default: `v4`.
    families: Families,
    /// The socket of the daemon. Default: `/run/cni/dhcp.sock`. DEL and GC read it too.
    daemon_socket_path: String,
    /// The directory in which the daemon records leases. Default: `/var/lib/cni/dhcp`. DEL reads it too.
    data_dir: String,
    /// `auto`: ADD starts the daemon if none runs. Default: the daemon is started by something else, such as systemd.
    daemon: DaemonKey,
    /// The metric of every route of the lease; 0: the kernel's default.
    priority: u32,
    /// How long ADD waits for a lease, in seconds. Default, and 0: 50.
    timeout: u32,
    /// Options that are sent to the server. Default: only those that the protocol needs.
    provide: Vec<ProvidedOption>,
    /// Options that the server is asked for, before the usual ones. Default: only the usual ones.
    request: Vec<RequestedOption>,
}

impl From<DhcpKeys> for DhcpPlugin {
    fn from(keys: DhcpKeys) -> DhcpPlugin {
        let seconds = if keys.timeout == 0 { TIMEOUT } else { keys.timeout };
        DhcpPlugin {
            families: keys.families,
            daemon: Daemon::new(&keys.daemon_socket_path, &keys.data_dir),
            starts_daemon: keys.daemon == DaemonKey::Auto,
            timeout: Duration::from_secs(seconds.into()),
            priority: if keys.priority == 0 { None } else { Some(keys.priority) },
            provide: keys.provide,
            request: keys.request,
        }
    }
}

/// `families`: the sources of addresses that an ADD has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
    pub(crate) slaac: bool,
}

impl Default for Families {
    fn default() -> Families {
        Families { v4: true, v6: false, slaac: false }
    }
}

impl TryFrom<Vec<String>> for Families {
    type Error = String;

    fn try_from(words: Vec<String>) -> Result<Families, String> {
        if words.is_empty() {
            return Ok(Families::default());
        }
        let mut families = Families { v4: false, v6: false, slaac: false };
        for word in &words {
            match word.as_str() {
                "v4" => families.v4 = true,
                "v6" => families.v6 = true,
                "slaac" => families.slaac = true,
                other => {
                    let hint = "name each source of addresses that every ADD has to have";
                    return Err(format!("{other:?} is not \"v4\", \"v6\" or \"slaac\"; hint: {hint}"));
                }
            }
        }
        Ok(families)
    }
}

impl Families {
    /// Those that the daemon has leases of.
    pub(crate) fn leased(self) -> Vec<LeaseFamily> {
        let mut leased = Vec::new();
        if self.v4 {
            leased.push(LeaseFamily::V4);
        }
        if self.v6 {
            leased.push(LeaseFamily::V6);
        }
        leased
    }
}

/// `daemon`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
enum DaemonKey {
    #[default]
    Elsewhere,
    Auto,
}

impl TryFrom<String> for DaemonKey {
    type Error = String;

    fn try_from(word: String) -> Result<DaemonKey, String> {
        match word.as_str() {
            "" => Ok(DaemonKey::Elsewhere),
            "auto" => Ok(DaemonKey::Auto),
            other => {
                let hint = "remove the key if systemd or something else starts the daemon";
                Err(format!("{other:?} is not \"auto\"; hint: {hint}"))
            }
        }
    }
}

/// One of `provide`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProvidedOption {
    /// The option's name or number: required.
    option: OptionName,
    /// Its value, as text.
    #[serde(default)]
    value: String,
    /// Its value, in hexadecimal digits, for a value that is not text. It precedes `value`.
    #[serde(default)]
    hex_value: HexBytes,
    /// The key of `CNI_ARGS` that has the value, as text. If it is there, it precedes the other two.
    #[serde(default)]
    from_arg: String,
}

impl ProvidedOption {
    fn bytes(&self, args: &Args) -> Vec<u8> {
        if !self.from_arg.is_empty()
            && let Some(value) = args.get(&self.from_arg)
        {
            return value.as_bytes().to_vec();
        }
        if self.hex_value.0.is_empty() { self.value.as_bytes().to_vec() } else { self.hex_value.0.clone() }
    }
}

/// One of `request`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RequestedOption {
    /// The option's name or number; empty: the entry only has `skipDefault`.
    option: OptionalName,
    /// The usual options are not asked for. It counts for the whole list.
    skip_default: bool,
}

/// The name or number of an option.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct OptionName {
    code: u8,
    text: String,
}

impl TryFrom<String> for OptionName {
    type Error = String;

    fn try_from(text: String) -> Result<OptionName, String> {
        match option_code(&text) {
            Some(code) => Ok(OptionName { code, text }),
            None => Err(format!(
                "{text:?} is no option: write its number, from 0 to 255, or a name such as host-name or user-class"
            )),
        }
    }
}

/// The same, or nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "String")]
struct OptionalName(Option<OptionName>);

impl TryFrom<String> for OptionalName {
    type Error = String;

    fn try_from(text: String) -> Result<OptionalName, String> {
        if text.is_empty() { Ok(OptionalName(None)) } else { OptionName::try_from(text).map(Some).map(OptionalName) }
    }
}

/// Bytes of two hexadecimal digits each. Colons are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "String")]
struct HexBytes(Vec<u8>);

impl TryFrom<String> for HexBytes {
    type Error = String;

    fn try_from(text: String) -> Result<HexBytes, String> {
        let digits: Option<Vec<u8>> = text.chars().filter(|letter| *letter != ':').map(digit).collect();
        match digits {
            Some(digits) if digits.len() % 2 == 0 => {
                Ok(HexBytes(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()))
            }
            _ => Err(format!("{text:?} is not a sequence of bytes of two hexadecimal digits each")),
        }
    }
}

fn digit(letter: char) -> Option<u8> {
    u8::try_from(letter.to_digit(16)?).ok()
}

/// What a client sends and asks for. An option whose value is in no argument of the runtime is not sent: without a value it would
/// mean something else.
pub(crate) fn client_options(
    provide: &[ProvidedOption],
    request: &[RequestedOption],
    owner: &LeaseOwner,
    args: &Args,
) -> Result<ClientOptions> {
    let mut options = ClientOptions::new(client_id(&owner.id()));
    for (n, provided) in provide.iter().enumerate() {
        let OptionName { code, text } = &provided.option;
        let value = provided.bytes(args);
        if !value.is_empty() {
            let refused = |why| Error::config(format!("ipam.provide[{n}] ({text}): {why}"));
            options.provide(*code, value).map_err(refused)?;
        }
    }
    let mut codes = Vec::new();
    for requested in request {
        if let Some(name) = &requested.option.0 {
            codes.push(name.code);
        }
    }
    options.request(&codes, request.iter().any(|requested| requested.skip_default));
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnikit::types::NetConf;
    use serde_json::{Value, json};

    /// The options of a configuration with these keys under `ipam`, as the daemon is told.
    fn sent(keys: &Value, args: &str) -> Result<Value> {
        #[derive(Deserialize)]
        struct Conf {
            ipam: DhcpPlugin,
        }
        let conf: Conf = NetConf::parse(json!({"ipam": keys}).to_string().as_bytes())?.read()?;
        let DhcpPlugin { provide, request, .. } = conf.ipam;
        let owner = LeaseOwner { container: "c".into(), network: "n".into(), ifname: "eth0".into() };
        let options = client_options(&provide, &request, &owner, &Args::parse(args).unwrap())?;
        Ok(serde_json::to_value(options).unwrap())
    }

    #[test]
    fn values_are_text_or_bytes_or_of_an_argument() {
        let keys = json!({"provide": [
            {"option": "host-name", "value": "x", "fromArg": "K8S_POD_NAME"},
            {"option": "60", "value": "x", "fromArg": "NONE"},
            {"option": "user-class", "hexValue": "00:ff0A"}]});
        let sent = sent(&keys, "K8S_POD_NAME=pod;IgnoreUnknown=1").unwrap();
        let provided = &sent["provided"];
        assert_eq!(provided["12"], json!(b"pod"));
        assert_eq!(provided["60"], json!(b"x"));
        assert_eq!(provided["77"], json!([0, 255, 10]));
        assert_eq!(provided["61"], json!(b"\0c/n/eth0"));
    }

    #[test]
    fn what_is_requested_precedes_the_usual_options_or_is_all() {
        let more = json!({"request": [{"option": "66"}]});
        assert_eq!(sent(&more, "").unwrap()["requested"].as_array().unwrap()[..2], [json!(66), json!(121)]);
        let only = json!({"request": [{"option": "routers"}, {"skipDefault": true}]});
        assert_eq!(sent(&only, "").unwrap()["requested"], json!([3]));
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_its_key() {
        for (keys, says) in [
            (json!({"provide": [{"option": "x"}]}), "ipam.provide[0].option: \"x\" is no option"),
            (json!({"provide": [{"option": ""}]}), "ipam.provide[0].option: \"\" is no option"),
            (json!({"provide": [{}]}), "ipam.provide[0].option: is missing"),
            (json!({"request": [{}, {"option": "256"}]}), "ipam.request[1].option: \"256\" is no option"),
            (
                json!({"provide": [{"option": "53", "value": "a"}]}),
                "ipam.provide[0] (53): the DHCP client writes option 53",
            ),
            (
                json!({"provide": [{"option": "12", "value": "a".repeat(256)}]}),
                "ipam.provide[0] (12): the value has 256",
            ),
            (json!({"provide": [{"option": "12", "hexValue": "0"}]}), "ipam.provide[0].hexValue: \"0\" is not a"),
            (json!({"provide": [{"option": "12", "hexValue": "0g"}]}), "ipam.provide[0].hexValue: \"0g\" is not a"),
            (json!({"families": ["v4", "v5"]}), "ipam.families: \"v5\" is not \"v4\""),
            (json!({"daemon": "always"}), "ipam.daemon: \"always\" is not \"auto\""),
        ] {
            let error = sent(&keys, "").unwrap_err();
            assert!(error.msg.starts_with(says) && error.code == 7, "{keys}: {error}");
        }
    }
}
