//! Clients that go away in the middle: a request written by hand on a socket of its own, and then nothing more.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::Client;

/// A connection with a request on its way.
pub struct Raw(TcpStream);

impl Raw {
    /// Connects and sends a whole request, except its last `but` bytes.
    pub async fn send(client: &Client, path: &str, body: &Value, but: usize) -> Self {
        let address = client.url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(&request.as_bytes()[..request.len() - but]).await.unwrap();
        Self(stream)
    }

    /// Connects and says this, which need not be a request or the whole of one.
    pub async fn say(client: &Client, text: &str) -> Self {
        let address = client.url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        Self(stream)
    }

    /// The same from a client that takes very little before it is read from.
    pub async fn say_and_not_listen(client: &Client, text: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(client.url().strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        Self(stream)
    }

    /// Whether the other side, on this machine, has said more than was taken: by the system's table of connections.
    pub fn awaits_reading(&self) -> bool {
        let [here, there] =
            [self.0.local_addr(), self.0.peer_addr()].map(|address| format!(":{:04X}", address.unwrap().port()));
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().any(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            columns[1].ends_with(&there) && columns[2].ends_with(&here) && !columns[4].starts_with("00000000:")
        })
    }

    /// Says more, unless the other side has gone.
    pub async fn go_on(&mut self, text: &str) -> bool {
        self.0.write_all(text.as_bytes()).await.is_ok()
    }

    /// All that is answered until the other side closes the connection, which it must within 10 seconds.
    pub async fn read_to_end(&mut self) -> String {
        let mut answer = Vec::new();
        // A reset is an end as well.
        let read = tokio::time::timeout(Duration::from_secs(10), self.0.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "the connection stays open; so far: {}", String::from_utf8_lossy(&answer));
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Goes away after this time without having read anything: politely, or as a process that was killed does.
    pub async fn vanish_after(self, patience: Duration, politely: bool) {
        tokio::time::sleep(patience).await;
        if !politely {
            // No lingering: whatever is on its way is answered with a reset.
            self.0.set_zero_linger().unwrap();
        }
        drop(self.0);
    }
}

/// A sequence of numbers that looks random and is the same each time.
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below this one.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
