//! A small client of the Kubernetes API: HTTP/2 over TLS, JSON, credentials from files that are read again because they rotate.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::super::EngineError;

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection on which nothing is heard for so long is tested, and given up after [`SILENT`].
const PROBE: Duration = Duration::from_secs(10);
const SILENT: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes: a page of a list.
const LONGEST: usize = 16 << 20;
/// The longest token, in bytes.
const LONGEST_TOKEN: usize = 64 << 10;

/// How to reach an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// `https://` with host and port.
    pub server: String,
    /// The certificates that the server's is verified by, in PEM.
    pub ca: PathBuf,
    /// Who asks.
    pub credentials: ApiCredentials,
}

/// Credentials, in files that may be replaced at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiCredentials {
    /// A bearer token, such as that of a service account. It is read for each request.
    Token(PathBuf),
    /// A certificate and its key in PEM. They are read for each connection.
    Certificate(PathBuf, PathBuf),
}

/// The connection to the API server.
pub(super) struct ApiClient {
    server: ApiServer,
    host: String,
    port: u16,
    timeout: Duration,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// An answer.
pub(super) struct ApiAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl ApiAnswer {
    /// Why the request failed, for messages.
    pub(super) fn reason(&self) -> String {
        let message = self.body["message"].as_str().unwrap_or_default();
        format!("{}: {message}", self.status)
    }
}

fn failed(what: impl std::fmt::Display, is_open: bool) -> EngineError {
    EngineError { text: what.to_string(), is_open }
}

impl ApiClient {
    /// # Errors
    /// The server is not an `https://` address with a host.
    pub(super) fn new(server: ApiServer, timeout: Duration) -> Result<ApiClient, cnikit_pool::Error> {
        let parsed: Option<Uri> = server.server.parse().ok();
        let parsed =
            parsed.filter(|uri| uri.scheme_str() == Some("https") && uri.path() == "/" && uri.query().is_none());
        let Some((host, port)) = parsed.and_then(|uri| Some((uri.host()?.to_owned(), uri.port_u16().unwrap_or(443))))
        else {
            return Err(cnikit_pool::Error {
                text: format!("{:?} is not an API server", server.server),
                hint: Some("write https:// with host and port, and no path".into()),
            });
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(ApiClient { server, host, port, timeout, connection: Mutex::new(None) })
    }

    pub(super) fn name(&self) -> &str {
        &self.server.server
    }

    async fn connected(&self) -> Result<SendRequest<Full<Bytes>>, EngineError> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = connection.as_ref()
            && !open.is_closed()
        {
            return Ok(open.clone());
        }
        let what = format!("connect to {}", self.name());
        let opened = match tokio::time::timeout(CONNECT, self.connect()).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(failed(format!("{what}: {error}"), false)),
            Err(_) => return Err(failed(format!("{what}: no answer within {CONNECT:?}"), false)),
        };
        *connection = Some(opened.clone());
        Ok(opened)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let config = tls_config(&self.server)?;
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(self.host.clone())?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err("the server does not speak HTTP/2".into());
        }
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PROBE)
            .keep_alive_timeout(SILENT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(tls))
            .await?;
        // It ends with the last user of the connection; its failures are those of the requests.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn request(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Request<Full<Bytes>>, EngineError> {
        let uri = format!("{}{path}", self.name().trim_end_matches('/'));
        let mut request = Request::builder().method(method).uri(uri).header(ACCEPT, "application/json");
        if let ApiCredentials::Token(path) = &self.server.credentials {
            let mut header = hyper::header::HeaderValue::from_str(&format!("Bearer {}", token(path)?))
                .map_err(|_| failed(format!("{}: it is no token", path.display()), false))?;
            header.set_sensitive(true);
            request = request.header(AUTHORIZATION, header);
        }
        let bytes = match body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        request.body(Full::new(bytes)).map_err(|error| failed(error, false))
    }

    async fn sent(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, EngineError> {
        let request = self.request(method, path, body)?;
        let mut sender = self.connected().await?;
        match sender.send_request(request).await {
            Ok(response) => Ok(response),
            Err(error) => {
                self.connection.lock().await.take();
                Err(failed(format!("{method} {path}: {}: {error}", self.name()), true))
            }
        }
    }

    /// Sends a request, and waits for the whole answer. What fails is open if the server may have executed it.
    pub(super) async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<ApiAnswer, EngineError> {
        let call = async {
            let response = self.sent(&method, path, body).await?;
            let status = response.status();
            let text =
                read_all(response.into_body()).await.map_err(|why| failed(format!("{method} {path}: {why}"), true))?;
            let body = serde_json::from_slice(&text).unwrap_or(Value::Null);
            Ok(ApiAnswer { status, body })
        };
        if let Ok(answer) = tokio::time::timeout(self.timeout, call).await {
            return answer;
        }
        self.connection.lock().await.take();
        let text = format!("{method} {path}: {}: no answer within {:?}", self.name(), self.timeout);
        Err(failed(text, true))
    }

    /// Begins a request whose answer has no end, such as a watch.
    pub(super) async fn stream(&self, path: &str) -> Result<Incoming, EngineError> {
        let response = match tokio::time::timeout(self.timeout, self.sent(&Method::GET, path, None)).await {
            Ok(response) => response?,
            Err(_) => return Err(failed(format!("{path}: no answer within {:?}", self.timeout), false)),
        };
        if response.status() != StatusCode::OK {
            return Err(failed(format!("{path}: {}", response.status()), false));
        }
        Ok(response.into_body())
    }
}

async fn read_all(mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        if let Some(data) = frame.data_ref() {
            if text.len() + data.len() > LONGEST {
                return Err(format!("the answer has more than {LONGEST} bytes"));
            }
            text.extend_from_slice(data);
        }
    }
    Ok(text)
}

fn unreadable(path: &Path, why: impl std::fmt::Display) -> EngineError {
    failed(format!("read {}: {why}", path.display()), false)
}

fn token(path: &Path) -> Result<String, EngineError> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, error))?;
    let token = text.trim();
    if token.is_empty() || token.len() > LONGEST_TOKEN {
        return Err(unreadable(path, "it is no token"));
    }
    Ok(token.to_owned())
}

fn tls_config(server: &ApiServer) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&read(&server.ca)?) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err(format!("{}: it has no certificate", server.ca.display()).into());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match &server.credentials {
        ApiCredentials::Token(_) => config.with_no_client_auth(),
        ApiCredentials::Certificate(certificate, key) => {
            let chain = CertificateDer::pem_slice_iter(&read(certificate)?).collect::<Result<Vec<_>, _>>()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&read(key)?)?)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
