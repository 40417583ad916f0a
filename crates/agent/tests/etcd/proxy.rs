//! A proxy in front of etcd, which can lose the answers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the proxy listens.
pub(crate) const PROXY: &str = "http://127.0.0.1:9999";

/// A running proxy.
pub(crate) struct Proxy {
    /// Whether answers are lost from now on.
    loses: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts one in the namespace of this thread.
    pub(crate) fn start(to: &'static str) -> Proxy {
        let loses = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&loses);
        let listener = TcpListener::bind("127.0.0.1:9999").unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(to) else { continue };
                let (from, into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || copy(from, into, None));
                let flag = Arc::clone(&flag);
                std::thread::spawn(move || copy(server, client, Some(&flag)));
            }
        });
        Proxy { loses }
    }

    pub(crate) fn lose_answers(&self, loses: bool) {
        self.loses.store(loses, Ordering::SeqCst);
    }
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
