//! Settings under `http`: where to listen, and how much patience and room there is for whoever connects.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::source::Given;
use super::{INSECURE, LISTEN, as_text, within};

/// Bounds of the waits for a client.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_hours(1));

/// Settings under `http`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Http {
    /// `http.listen`: the address and port to serve on; port 0 takes a free one. Default `127.0.0.1:8080`.
    pub listen: SocketAddr,
    /// `http.insecure`: let everyone in who reaches an address that is not loopback. Default `false`.
    pub insecure: bool,
    /// `http.tls_cert`: a PEM file with the certificate and those that vouch for it. Default: none, which means no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// `http.tls_key`: a PEM file with the certificate's private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// `http.max_connections`: how many may be open at a time, as far as the limit of open files allows. Every parked
    /// poll over HTTP/1.1 is one. Default 16384.
    pub max_connections: usize,
    /// `http.max_connections_per_address`: how many of them one address may have, or one network of 64 bits of IPv6.
    /// This machine's own addresses are not counted. Default 4096; raise it behind a proxy.
    pub max_connections_per_address: usize,
    /// `http.header_read_timeout`: how long a request's head may take, and the first one to begin. Default `10s`.
    #[serde(serialize_with = "as_text")]
    pub header_read_timeout: Duration,
    /// `http.body_read_timeout`: how long a body may take beyond what 8 KiB a second would. Default `10s`.
    #[serde(serialize_with = "as_text")]
    pub body_read_timeout: Duration,
    /// `http.write_timeout`: how long a client may read nothing of its answer. Default `30s`.
    #[serde(serialize_with = "as_text")]
    pub write_timeout: Duration,
    /// `http.keep_alive_timeout`: how long a connection may be idle between two requests. Default `75s`: more than the
    /// minute after which most proxies close theirs, so that none sends a request into a closing connection.
    #[serde(serialize_with = "as_text")]
    pub keep_alive_timeout: Duration,
}

impl Http {
    pub(super) fn take(given: &mut Given) -> Self {
        let mut patience =
            |key, default: u64| given.take(key, Duration::from_secs(default), |text| within(text, PATIENCE));
        let (header_read_timeout, body_read_timeout, write_timeout, keep_alive_timeout) = (
            patience("http.header_read_timeout", 10),
            patience("http.body_read_timeout", 10),
            patience("http.write_timeout", 30),
            patience("http.keep_alive_timeout", 75),
        );
        Self {
            listen: given.take(LISTEN, (Ipv4Addr::LOCALHOST, 8080).into(), listen),
            insecure: given.take(INSECURE, false, truth),
            tls_cert: given.take("http.tls_cert", None, |text| file(text).map(Some)),
            tls_key: given.take("http.tls_key", None, |text| file(text).map(Some)),
            max_connections: given.take("http.max_connections", 16_384, |text| number(text, 1, 1_000_000)),
            max_connections_per_address: given
                .take("http.max_connections_per_address", 4_096, |text| number(text, 1, 1_000_000)),
            header_read_timeout,
            body_read_timeout,
            write_timeout,
            keep_alive_timeout,
        }
    }

    /// What must hold between two settings.
    pub(super) fn check(&self, given: &mut Given) {
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => given.lacks("http.tls_cert", "http.tls_key"),
            (None, Some(_)) => given.lacks("http.tls_key", "http.tls_cert"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    // The one host name that needs no resolver to be right.
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    local
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "is not an address and port; write one such as 127.0.0.1:8080 or [::]:8080".to_owned())
}

fn truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "must be true or false".to_owned())
}

fn file(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("is empty; write the path of a file".to_owned()),
        _ if text.starts_with('~') => Err("begins with `~`; write the path in full".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

/// A whole number within these bounds.
pub(super) fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    let read = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
    read.and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("is not a whole number from {least} to {most}"))
}
