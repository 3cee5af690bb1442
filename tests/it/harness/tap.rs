//! A tap on the wire between a service and its database, which counts statements by the names they open with.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::spawn;

/// A place to connect to in the stead of a database.
pub struct Tap {
    /// The URL for the service to be watched.
    pub url: String,
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    /// Ends all connections that there are.
    cut: Arc<Mutex<CancellationToken>>,
    /// Silences all connections that there are.
    silence: Arc<Mutex<CancellationToken>>,
    gate: Arc<Mutex<Option<Gate>>>,
}

/// Which commit is to be stopped, and who is told of it.
struct Gate {
    statements: &'static [&'static str],
    arrived: oneshot::Sender<AtGate>,
}

/// A commit that was stopped on its way, by a transaction that holds its locks.
pub struct AtGate(oneshot::Sender<()>);

impl AtGate {
    /// Lets it go on.
    pub fn through(self) {
        let _ = self.0.send(());
    }

    /// Cuts its connection on both sides: it never comes to the database, and its sender does not know.
    pub fn cut(self) {
        drop(self.0);
    }
}

impl Tap {
    /// Taps the way to this database of the shared server.
    pub async fn on(database_url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (socket, name) = socket_and_name(database_url);
        let counts = Arc::new(Mutex::new(BTreeMap::new()));
        let tap = Self {
            url: format!("postgres://roadstead@127.0.0.1:{port}/{name}?sslmode=disable"),
            counts: Arc::clone(&counts),
            cut: Arc::default(),
            silence: Arc::default(),
            gate: Arc::default(),
        };
        let (cut, silence, gate) = (Arc::clone(&tap.cut), Arc::clone(&tap.silence), Arc::clone(&tap.gate));
        spawn(async move {
            while let Ok((service, _)) = listener.accept().await {
                let server = UnixStream::connect(&socket).await.unwrap();
                let (mut from_service, mut to_service) = service.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let counts = Arc::clone(&counts);
                let cut = cut.lock().unwrap().child_token();
                let (this, gate) = (cut.clone(), Arc::clone(&gate));
                let silence = silence.lock().unwrap().clone();
                let silenced = silence.clone();
                spawn(cut.clone().run_until_cancelled_owned(async move {
                    let answers = tokio::io::copy(&mut from_server, &mut to_service);
                    until_silenced(&silenced, answers).await;
                }));
                spawn(cut.run_until_cancelled_owned(async move {
                    let (mut prepared, mut since_begin) = (HashMap::new(), Vec::new());
                    let mut started = false;
                    let questions = async {
                        // A message is its kind, but for the very first, its length and the rest.
                        while let Some((whole, kind, rest)) = message(&mut from_service, started).await {
                            started = true;
                            since_begin.extend(count(kind, &rest, &mut prepared, &counts));
                            if kind == b'Q' && !pass(&gate, &rest, &mut since_begin).await {
                                this.cancel();
                                break;
                            }
                            if to_server.write_all(&whole).await.is_err() {
                                break;
                            }
                        }
                    };
                    until_silenced(&silence, questions).await;
                }));
            }
        });
        tap
    }

    /// Cuts all connections that there are, on both sides; new ones can be made.
    pub fn cut(&self) {
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }

    /// Swallows from now on what is said on the connections that there are, either way, and leaves them open: a network
    /// that forgot them. New ones can be made.
    pub fn silence(&self) {
        std::mem::take(&mut *self.silence.lock().unwrap()).cancel();
    }

    /// Stops the next commit of a transaction that has executed one of these statements, and tells of it.
    pub fn gate(&self, statements: &'static [&'static str]) -> oneshot::Receiver<AtGate> {
        let (arrived, told) = oneshot::channel();
        *self.gate.lock().unwrap() = Some(Gate { statements, arrived });
        told
    }

    /// How often this statement has been executed.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    /// How often each statement has been executed.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap().clone()
    }
}

/// Passes on what is said until it is to be swallowed. From then on it does not end, so that what it borrows stays open.
async fn until_silenced<T>(silence: &CancellationToken, passing_on: impl Future<Output = T>) {
    if silence.run_until_cancelled(passing_on).await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Whether this question may go on, which begins or ends a transaction: a commit that is waited for at the gate when it is
/// let through.
async fn pass(gate: &Mutex<Option<Gate>>, question: &[u8], since_begin: &mut Vec<String>) -> bool {
    let executed = std::mem::take(since_begin);
    let mut stopped = None;
    if question.starts_with(b"COMMIT") {
        let waited_for = |gate: &mut Gate| executed.iter().any(|name| gate.statements.contains(&name.as_str()));
        stopped = gate.lock().unwrap().take_if(waited_for);
    }
    let Some(Gate { arrived, .. }) = stopped else { return true };
    let (go, goes) = oneshot::channel();
    // Nobody waits for it any more: then it goes on.
    arrived.send(AtGate(go)).is_err() || goes.await.is_ok()
}

/// Parse tells what a prepared statement is, Bind executes it; answers with its name then.
fn count(
    kind: u8,
    rest: &[u8],
    prepared: &mut HashMap<Vec<u8>, String>,
    counts: &Mutex<BTreeMap<String, u64>>,
) -> Option<String> {
    let mut texts = rest.split(|byte| *byte == 0);
    let (first, second) = (texts.next()?, texts.next()?);
    match kind {
        b'P' => {
            let query = String::from_utf8_lossy(second);
            let name = query.strip_prefix("/* ").and_then(|query| query.split_once(" */"));
            prepared.insert(first.to_vec(), name.map_or_else(|| query.to_string(), |(name, _)| name.to_owned()));
        }
        b'B' => {
            let name = prepared.get(second).cloned().unwrap_or_default();
            *counts.lock().unwrap().entry(name.clone()).or_default() += 1;
            return Some(name);
        }
        _ => {}
    }
    None
}

/// The path of the socket that this URL of the shared server is reached by, and the database's name.
pub fn socket_and_name(database_url: &str) -> (String, &str) {
    let (path, parameters) = database_url.split_once('?').unwrap();
    let folder = parameters.split('&').find_map(|parameter| parameter.strip_prefix("host=")).unwrap();
    let socket = format!("{}/.s.PGSQL.5432", percent_decode_str(folder).decode_utf8().unwrap());
    (socket, path.rsplit('/').next().unwrap())
}

/// The next message, whole and as its kind and its content. The first that a client says has no kind.
pub async fn message(from: &mut (impl AsyncRead + Unpin), started: bool) -> Option<(Vec<u8>, u8, Vec<u8>)> {
    let mut whole = vec![0; if started { 5 } else { 4 }];
    from.read_exact(&mut whole).await.ok()?;
    let kind = if started { whole[0] } else { 0 };
    let length = u32::from_be_bytes(whole[whole.len() - 4..].try_into().unwrap());
    let mut rest = vec![0; usize::try_from(length).unwrap() - 4];
    from.read_exact(&mut rest).await.ok()?;
    whole.extend(&rest);
    Some((whole, kind, rest))
}
