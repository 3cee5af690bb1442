//! Clients that go away in the middle: a request written by hand on a socket of its own, and then nothing more.

use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

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
