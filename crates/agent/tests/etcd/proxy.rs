//! A proxy in front of the engine, which can lose the answers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Where the proxy listens.
pub(crate) const PROXY: &str = "127.0.0.1:9999";
/// How long it waits for a connection to the engine.
const CONNECT: Duration = Duration::from_secs(1);

const ALL: usize = usize::MAX;

/// A running proxy.
pub(crate) struct Proxy {
    /// How many more pieces of answers arrive; [`ALL`]: none is lost.
    passes: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts one in the namespace of this thread.
    pub(crate) fn start(to: &str) -> Proxy {
        let passes = Arc::new(AtomicUsize::new(ALL));
        let flag = Arc::clone(&passes);
        let listener = TcpListener::bind(PROXY).unwrap();
        let to: SocketAddr = to.parse().unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let flag = Arc::clone(&flag);
                std::thread::spawn(move || serve(client, to, &flag));
            }
        });
        Proxy { passes }
    }

    pub(crate) fn lose_answers(&self, loses: bool) {
        self.passes.store(if loses { 0 } else { ALL }, Ordering::SeqCst);
    }

    /// From now on so many pieces of answers arrive, and then none. An answer is one piece or a few.
    pub(crate) fn lose_answers_after(&self, pieces: usize) {
        self.passes.store(pieces, Ordering::SeqCst);
    }
}

fn serve(client: TcpStream, to: SocketAddr, passes: &AtomicUsize) {
    let Ok(server) = TcpStream::connect_timeout(&to, CONNECT) else { return };
    let (Ok(from), Ok(into)) = (client.try_clone(), server.try_clone()) else { return };
    std::thread::spawn(move || copy(from, into, None));
    copy(server, client, Some(passes));
}

fn copy(mut from: TcpStream, mut into: TcpStream, passes: Option<&AtomicUsize>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count > 0
            && let Some(passes) = passes
        {
            let next = |left: usize| if left == ALL { Some(ALL) } else { left.checked_sub(1) };
            if passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_err() {
                continue;
            }
        }
        if count == 0 || into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = into.shutdown(Shutdown::Both);
}
