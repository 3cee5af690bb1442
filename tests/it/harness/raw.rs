//! Clients that go away in the middle: a request written by hand on a socket of its own, and then nothing more.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
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

    /// Connects and says this, which need not be a request or the whole of one.
    pub async fn say(client: &Client, text: &str) -> Self {
        let address = client.url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        Self(stream)
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
