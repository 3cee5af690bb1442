//! TLS, if there is a certificate.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::Http;

/// How long a client may take to agree on a key.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM of that kind.
    #[error("cannot read {0}: {1}")]
    File(String, #[source] pem::Error),
    /// Certificate and key do not fit each other, or are of a kind that is not known.
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// What agrees on keys with clients; none when TLS is off.
pub(super) fn acceptor(settings: &Http) -> Result<Option<TlsAcceptor>, TlsError> {
    let (Some(cert), Some(key)) = (&settings.tls_cert, &settings.tls_key) else { return Ok(None) };
    let unreadable = |path: &Path| {
        let path = path.display().to_string();
        move |error| TlsError::File(path, error)
    };
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(unreadable(cert))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(unreadable(key))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
