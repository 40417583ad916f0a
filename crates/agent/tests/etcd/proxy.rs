//! A proxy in front of the engine, which can lose the answers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where the proxy listens.
pub(crate) const PROXY: &str = "127.0.0.1:9999";
/// How long it waits for a connection to the engine.
const CONNECT: Duration = Duration::from_secs(1);

/// A running proxy.
pub(crate) struct Proxy {
    /// Whether answers are lost from now on.
    loses: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts one in the namespace of this thread.
    pub(crate) fn start(to: &str) -> Proxy {
        let loses = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&loses);
        let listener = TcpListener::bind(PROXY).unwrap();
        let to: SocketAddr = to.parse().unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let flag = Arc::clone(&flag);
                std::thread::spawn(move || serve(client, to, &flag));
            }
        });
        Proxy { loses }
    }

    pub(crate) fn lose_answers(&self, loses: bool) {
        self.loses.store(loses, Ordering::SeqCst);
    }
}

fn serve(client: TcpStream, to: SocketAddr, loses: &AtomicBool) {
    let Ok(server) = TcpStream::connect_timeout(&to, CONNECT) else { return };
    let (Ok(from), Ok(into)) = (client.try_clone(), server.try_clone()) else { return };
    std::thread::spawn(move || copy(from, into, None));
    copy(server, client, Some(loses));
}

fn copy(mut from: TcpStream, mut into: TcpStream, loses: Option<&AtomicBool>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count > 0 && loses.is_some_and(|loses| loses.load(Ordering::SeqCst)) {
            continue;
        }
        if count == 0 || into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = into.shutdown(Shutdown::Both);
}
