//! The configuration file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_pool::{AGENT_SOCKET, EngineKeys, Error, check_node_name};
use cnikit_store::Directory;
use cnikit_types::{document, limit, read};
use serde::Deserialize;

use crate::engine::{ApiCredentials, ApiServer, EngineSettings, EtcdSettings, EtcdTls, KubernetesSettings};

/// The default path of the configuration file.
pub const CONFIG: &str = "/etc/cnikit/agent.json";
/// The largest file that is read, in bytes: of the configuration, and of certificates and keys.
const LARGEST: usize = 1 << 20;

/// Where a pod finds the API server, and its service account.
const SERVICE: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How to reach the Kubernetes API. Without any of these, as a pod does: by its service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubernetesConfig {
    /// `https://` with host and port.
    pub server: Option<String>,
    /// The certificates that the server's is verified by, in PEM.
    pub ca: Option<PathBuf>,
    /// A bearer token.
    pub token: Option<PathBuf>,
    /// The certificate of this node, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its key, in PEM: a file that only its owner can read.
    pub key: Option<PathBuf>,
}

/// The configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentConfig {
    /// The members of etcd: `https://etcd-1.example:2379`.
    pub endpoints: Vec<String>,
    /// The prefix of the keys.
    pub prefix: String,
    /// The certificates that those of the members are verified by, in PEM.
    pub ca: Option<PathBuf>,
    /// The certificate of this node, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its key, in PEM: a file that only its owner can read.
    pub key: Option<PathBuf>,
    /// The Kubernetes API, instead of etcd.
    pub kubernetes: Option<KubernetesConfig>,
    /// The node's name. Default: the host's name.
    pub node: Option<String>,
    /// The directory of the plugin's reservations.
    pub data_dir: PathBuf,
    /// The socket for plugins.
    pub socket: PathBuf,
    /// Where Prometheus reads figures: an address of the loopback interface with a port, or the path of a socket. Default: nowhere.
    pub metrics: Option<String>,
    /// How long to wait for one answer of etcd, in milliseconds.
    pub timeout: u64,
    /// How long the session outlives the agent, in seconds.
    pub session: u32,
    /// How long a block is without use before it is given back, in seconds.
    pub grace: u64,
    /// How often the files are compared with the engine, in seconds.
    pub compare: u64,
}

impl Default for AgentConfig {
    fn default() -> AgentConfig {
        AgentConfig {
            endpoints: Vec::new(),
            prefix: EngineKeys::PREFIX.to_owned(),
            ca: None,
            certificate: None,
            key: None,
            kubernetes: None,
            node: None,
            data_dir: "/var/lib/cni/networks".into(),
            socket: AGENT_SOCKET.into(),
            metrics: None,
            timeout: 3_000,
            session: 20,
            grace: 300,
            compare: 600,
        }
    }
}

fn failed(path: &Path, why: impl std::fmt::Display) -> Error {
    Error { text: format!("read {}: {why}", path.display()), hint: None }
}

/// A file of its directory, with the bits of its mode.
fn file(path: &Path) -> Result<(Vec<u8>, u32), Error> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(failed(path, "it is not the path of a file"));
    };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let directory = Directory::open(above).map_err(|error| failed(path, error))?;
    let mode = std::fs::metadata(path).map_err(|error| failed(path, error))?.mode();
    match directory.read(name, LARGEST) {
        Ok(Some((content, _))) => Ok((content, mode)),
        Ok(None) => Err(failed(path, "there is no such file")),
        // A secret of Kubernetes is a symbolic link.
        Err(error) if error.is_misplaced() || error.is_garbage() => {
            let resolved = path.canonicalize().map_err(|error| failed(path, error))?;
            if resolved == path { Err(failed(path, error)) } else { file(&resolved) }
        }
        Err(error) => Err(failed(path, error)),
    }
}

/// A file that only its owner can read.
fn secret_file(path: &Path) -> Result<Vec<u8>, Error> {
    let (secret, mode) = file(path)?;
    if mode & 0o077 != 0 {
        return Err(Error {
            text: format!("{}: other users can read this key: its mode is {:o}", path.display(), mode & 0o7777),
            hint: Some(format!("chmod 600 {}", path.display())),
        });
    }
    Ok(secret)
}

impl KubernetesConfig {
    fn validate(&self) -> Result<(), Error> {
        let has_certificate = self.certificate.is_some();
        if has_certificate != self.key.is_some() || (has_certificate && self.token.is_some()) {
            return Err(Error {
                text: "kubernetes: `certificate` and `key` come together, and without `token`".into(),
                hint: Some("docs/agent.md has an example".into()),
            });
        }
        Ok(())
    }

    /// The API server with what it needs. The files are read when they are needed, because they are replaced from time to time.
    fn api_server(&self) -> Result<ApiServer, Error> {
        let server = if let Some(server) = &self.server {
            server.clone()
        } else {
            #[expect(clippy::disallowed_methods, reason = "it is how a pod learns where the API server is")]
            let [Ok(host), Ok(port)] = SERVICE.map(std::env::var) else {
                return Err(Error {
                    text: "kubernetes: no `server`, and this is no pod".into(),
                    hint: Some("write \"server\": \"https://\" with the API server's host and port".into()),
                });
            };
            if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
        };
        let account = |name: &str| Path::new(ACCOUNT).join(name);
        let credentials = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                secret_file(key)?;
                ApiCredentials::Certificate(certificate.clone(), key.clone())
            }
            _ => ApiCredentials::Token(self.token.clone().unwrap_or_else(|| account("token"))),
        };
        Ok(ApiServer { server, ca: self.ca.clone().unwrap_or_else(|| account("ca.crt")), credentials })
    }
}

impl AgentConfig {
    /// Reads and validates a configuration file.
    ///
    /// # Errors
    /// It cannot be read, is not JSON, or a value is invalid.
    pub fn read(path: &Path) -> Result<AgentConfig, Error> {
        let (text, _) = file(path)?;
        let document = document::parse(&text).map_err(|error| failed(path, error))?;
        limit::check(&document).map_err(|error| failed(path, error))?;
        let config: AgentConfig = read(&document).map_err(|error| failed(path, error))?;
        config.validate().map_err(|error| Error { text: format!("{}: {}", path.display(), error.text), ..error })?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), Error> {
        let invalid = |text: String, hint: &str| Err(Error { text, hint: Some(hint.to_owned()) });
        if let Some(kubernetes) = &self.kubernetes {
            if !self.endpoints.is_empty() {
                return invalid("endpoints, kubernetes: both".into(), "a node has one engine: remove one of them");
            }
            kubernetes.validate()?;
        } else if self.endpoints.is_empty() {
            return invalid("endpoints: none".into(), "name the members of etcd: [\"https://etcd-1.example:2379\"]");
        }
        let tls = self.endpoints.iter().filter(|endpoint| endpoint.starts_with("https://")).count();
        let plain = self.endpoints.iter().filter(|endpoint| endpoint.starts_with("http://")).count();
        if tls + plain != self.endpoints.len() || (tls > 0 && plain > 0) {
            return invalid(
                "endpoints: not all of them https://, or all http://".into(),
                "write scheme, host and port",
            );
        }
        if (tls > 0) != self.ca.is_some() || self.certificate.is_some() != self.key.is_some() {
            return invalid(
                "ca, certificate, key: https needs `ca`; `certificate` and `key` come together".into(),
                "docs/agent.md has an example",
            );
        }
        if let Some(metrics) = &self.metrics {
            let is_loopback = metrics.parse::<std::net::SocketAddr>().is_ok_and(|address| address.ip().is_loopback());
            if !is_loopback && !metrics.starts_with('/') {
                return invalid(
                    format!("metrics: {metrics:?} is neither an address of the loopback interface nor a path"),
                    "write 127.0.0.1:9465, or /run/cnikit/metrics.sock",
                );
            }
        }
        let in_range = (1..=86_400).contains(&self.session)
            && (10..=600_000).contains(&self.timeout)
            && (1..=86_400).contains(&self.compare)
            && self.grace <= 604_800;
        if !in_range || self.session < 3 {
            return invalid(
                "timeout, session, grace, compare: out of range".into(),
                "timeout: 10 to 600000 ms; session: 3 to 86400 s; compare: 1 to 86400 s; grace: at most a week",
            );
        }
        Ok(())
    }

    /// The node's name.
    ///
    /// # Errors
    /// It is invalid, or the host's name cannot be read.
    pub fn node_name(&self) -> Result<String, Error> {
        let name = if let Some(name) = &self.node {
            name.clone()
        } else {
            let path = Path::new("/proc/sys/kernel/hostname");
            let name = std::fs::read_to_string(path).map_err(|error| failed(path, error))?;
            name.trim().to_owned()
        };
        check_node_name(&name)?;
        Ok(name)
    }

    /// What is needed to reach the engine.
    ///
    /// # Errors
    /// A file cannot be read, or a key can be read by other users.
    pub fn engine(&self) -> Result<EngineSettings, Error> {
        let Some(kubernetes) = &self.kubernetes else { return Ok(self.etcd()?.into()) };
        Ok(EngineSettings::Kubernetes(KubernetesSettings {
            server: kubernetes.api_server()?,
            timeout: Duration::from_millis(self.timeout),
            session: Duration::from_secs(self.session.into()),
        }))
    }

    /// What is needed to reach etcd: reads certificates and keys.
    ///
    /// # Errors
    /// One cannot be read, or the key can be read by other users.
    pub fn etcd(&self) -> Result<EtcdSettings, Error> {
        let mut tls = None;
        if let Some(ca) = &self.ca {
            let mut found = EtcdTls { ca: file(ca)?.0, identity: None };
            if let (Some(certificate), Some(key)) = (&self.certificate, &self.key) {
                found.identity = Some((file(certificate)?.0, secret_file(key)?));
            }
            tls = Some(found);
        }
        Ok(EtcdSettings {
            endpoints: self.endpoints.clone(),
            tls,
            prefix: self.prefix.clone(),
            timeout: Duration::from_millis(self.timeout),
            session: self.session.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read_text(text: &str) -> Result<AgentConfig, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.json");
        std::fs::write(&path, text).unwrap();
        AgentConfig::read(&path)
    }

    fn refused(text: &str) -> String {
        read_text(text).unwrap_err().text
    }

    #[test]
    fn a_file_with_endpoints_alone_has_defaults_for_the_rest() {
        let config = read_text(r#"{"endpoints":["http://127.0.0.1:2379"]}"#).unwrap();
        assert_eq!(
            (config.prefix.as_str(), config.session, config.socket.as_path()),
            ("/cnikit/v1/", 20, Path::new(AGENT_SOCKET))
        );
        assert_eq!(config.etcd().unwrap().tls, None);
        assert!(config.node_name().is_ok());
    }

    #[test]
    fn invalid_files_are_refused_with_the_key() {
        for (text, says) in [
            ("{", "EOF"),
            ("{}", "endpoints: none"),
            (r#"{"endpoints":["etcd:2379"]}"#, "endpoints: not all"),
            (r#"{"endpoints":["http://a:1","https://b:1"]}"#, "endpoints: not all"),
            (r#"{"endpoints":["https://a:1"]}"#, "https needs `ca`"),
            (r#"{"endpoints":["http://a:1"],"metrics":"0.0.0.0:1"}"#, "metrics: \"0.0.0.0:1\""),
            (r#"{"endpoints":["http://a:1"],"session":1}"#, "out of range"),
            (r#"{"endpoints":["http://a:1"],"timeout":"1s"}"#, "timeout: "),
        ] {
            assert!(refused(text).contains(says), "{text}: {}", refused(text));
        }
        let name = AgentConfig { node: Some("../x".into()), ..AgentConfig::default() };
        assert!(name.node_name().is_err());
    }

    #[test]
    fn the_kubernetes_api_is_reached_by_a_token_or_a_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, "key").unwrap();
        let read = |kubernetes: &str| read_text(&format!(r#"{{"kubernetes":{kubernetes}}}"#));
        let config = read(r#"{"server":"https://a:6443","ca":"/ca","token":"/token"}"#).unwrap();
        let EngineSettings::Kubernetes(settings) = config.engine().unwrap() else { panic!("it is etcd") };
        assert_eq!(
            settings.server,
            ApiServer {
                server: "https://a:6443".into(),
                ca: "/ca".into(),
                credentials: ApiCredentials::Token("/token".into()),
            }
        );
        let account = read(r#"{"server":"https://a:6443"}"#).unwrap().engine().unwrap();
        assert!(format!("{account:?}").contains("serviceaccount/token"), "{account:?}");
        let certificate = format!(r#"{{"server":"https://a","certificate":"/c","key":"{}"}}"#, key.display());
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(read(&certificate).unwrap().engine().unwrap_err().text.contains("other users can read this key"));
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        read(&certificate).unwrap().engine().unwrap();
        assert!(read("{}").unwrap().engine().unwrap_err().text.contains("this is no pod"));
        for (text, says) in [
            (r#"{"kubernetes":{"certificate":"/c"}}"#, "come together"),
            (r#"{"kubernetes":{"certificate":"/c","key":"/k","token":"/t"}}"#, "without `token`"),
            (r#"{"kubernetes":{},"endpoints":["http://a:1"]}"#, "endpoints, kubernetes: both"),
        ] {
            assert!(refused(text).contains(says), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(dir.path().join(name));
        for name in ["ca", "cert", "key"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let config =
            AgentConfig { ca: path("ca"), certificate: path("cert"), key: path("key"), ..AgentConfig::default() };
        let mode = |mode| std::fs::set_permissions(dir.path().join("key"), PermissionsExt::from_mode(mode)).unwrap();
        mode(0o640);
        assert!(config.etcd().unwrap_err().text.contains("other users can read this key"));
        mode(0o600);
        let tls = config.etcd().unwrap().tls.unwrap();
        assert_eq!(tls.identity, Some((b"cert".to_vec(), b"key".to_vec())));
        assert!(!format!("{tls:?}").contains("key"));
    }
}
