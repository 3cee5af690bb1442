//! The verbs, one file each: reading this list is learning the product.
//!
//! Every change follows *lock, decide, save*: the store locks and reads, a rule in [`crate::domain`] decides, and the
//! store's one writer saves the transition. Each runs in a task of its own, so that a caller who goes away cannot cut
//! a transaction in half.

// What dispatchers and people do.
pub mod again;
pub mod cancel;
pub mod dispatch;
pub mod events;
pub mod feed;
pub mod list;
pub mod runs;

// What workers do.
pub mod ack;
pub mod deregister;
pub mod drain;
pub mod heartbeat;
pub mod poll;
mod redispatch;
pub mod register;
pub mod release;
pub mod renew;
pub mod report;
pub mod workers;

// What time does, and what a parked poll is given.
pub mod claim;
mod start;
pub mod sweep;

// What the verbs share, and who may use them.
mod alarm;
pub mod bounds;
mod catalog;
mod clock;
pub mod error;
mod expiry;
mod family;
mod handover;
mod holder;
mod namespaces;
mod neglect;
mod record;
mod settle;
mod shared;
mod signs;
mod watch;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::config;
use crate::ids::{NamespaceId, SelectorNo};
use crate::matchmaker::Matchmaker;
pub use crate::store::Class;
use crate::store::Db;

pub use error::Error;
use error::Fault;

/// How long readiness waits for the database: less than the second after which probes give up by default, so that they
/// are told why.
const READY_WITHIN: Duration = Duration::from_millis(800);

/// How long a caller waits for the database: a little longer than it lets a statement run. One that holds the connection
/// and does not answer is as good as away, and only we can tell.
const PATIENCE: Duration = Duration::from_secs(12);

/// How long the work of a verb may go on that nobody waits for any more. All its statements together take less, unless
/// the network has swallowed one: then it would wait for as long as the system tries to be heard, a quarter of an hour.
const LONGEST: Duration = Duration::from_secs(30);

/// The service without its front door: what HTTP and the background loops call. Cheap to clone.
#[derive(Clone)]
pub struct Coordinator(Arc<Parts>);

struct Parts {
    db: Db,
    settings: config::Coordinator,
    catalog: catalog::Catalog,
    clock: clock::Clock,
    matchmaker: Matchmaker<poll::GivenTask>,
    watch: watch::Watch,
    feeds: feed::Feeds,
    alarm: alarm::Alarm,
    beats: shared::Queue<Arc<heartbeat::Saying>>,
    suspects: Mutex<HashSet<(NamespaceId, SelectorNo)>>,
    stamped: Mutex<HashMap<NamespaceId, Instant>>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Coordinator {
    /// A coordinator on this database.
    #[must_use]
    pub fn new(db: Db, settings: config::Coordinator) -> Self {
        Self(Arc::new(Parts {
            db,
            settings,
            catalog: catalog::Catalog::default(),
            clock: clock::Clock::default(),
            matchmaker: Matchmaker::default(),
            watch: watch::Watch::default(),
            feeds: feed::Feeds::default(),
            alarm: alarm::Alarm::default(),
            beats: shared::Queue::default(),
            suspects: Mutex::default(),
            stamped: Mutex::default(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        }))
    }

    /// The settings it works by.
    #[must_use]
    pub fn settings(&self) -> &config::Coordinator {
        &self.0.settings
    }

    /// Whether the database answers and the service is not closing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Overloaded`].
    pub async fn ready(&self) -> Result<(), Error> {
        if self.0.closing.is_cancelled() {
            return Err(Error::Overloaded);
        }
        let read = async {
            let mut conn = self.0.db.conn().await?;
            crate::store::sweep::now(&mut conn).await
        };
        match tokio::time::timeout(READY_WITHIN, read).await {
            Ok(read) => read.map(drop).map_err(|error| Fault::from(error).into()),
            Err(_) => Err(Error::Unavailable(format!("no answer within {READY_WITHIN:?}"))),
        }
    }

    /// Watches whether the database is there, for ever: while it is not, nobody waits for it.
    pub async fn watch_database(&self) {
        self.0.db.watch().await;
    }

    /// Ends every wait: parked polls answer empty, waiting reads answer what there is. Later calls do not wait.
    pub fn close(&self) {
        self.0.closing.cancel();
    }

    /// Whether the service is closing: waits end at once, and streams with them.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.0.closing.is_cancelled()
    }

    /// Waits until every transaction under way has ended. To be called after [`Self::close`].
    pub async fn finished(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Runs a verb's work in a task that a caller who goes away does not cancel, and again from the start when two
    /// transactions stood in each other's way.
    async fn shielded<T, F, R>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(Self) -> R + Send + 'static,
        R: Future<Output = Result<T, Fault>> + Send,
    {
        let coordinator = self.clone();
        let work = async move {
            let mut tries = 0;
            loop {
                match work(coordinator.clone()).await {
                    Err(Fault::Store(crate::store::Error::Conflict(_))) if tries < 3 => tries += 1,
                    done => return done,
                }
            }
        };
        // In the span of the request: what it did is logged under its id.
        let work = tokio::time::timeout(LONGEST, work);
        let task = self.0.tasks.spawn(Class::current().scope(work.in_current_span()));
        match tokio::time::timeout(PATIENCE, task).await {
            Ok(Ok(Ok(done))) => done.map_err(Error::from),
            Ok(Ok(Err(_))) => Err(Error::Unavailable(format!("no answer within {LONGEST:?}"))),
            Ok(Err(panic)) => Err(Error::Internal(format!("a verb's task ended without an answer: {panic}"))),
            // The work goes on; what becomes of it, a repeat will find.
            Err(_) => Err(self.unanswered(PATIENCE)),
        }
    }

    /// Nothing was heard of the database for so long, though it lets no statement run that long: the network has
    /// swallowed the question or the answer, and may have cut every other connection as well.
    pub(crate) fn unanswered(&self, patience: Duration) -> Error {
        self.0.db.distrust();
        Error::Unavailable(format!("no answer within {patience:?}"))
    }

    /// Tells the sweeper that something is due now.
    fn sweep_soon(&self) {
        self.0.alarm.set(Duration::ZERO);
    }

    /// Tells the sweeper that a selector may have expired tasks although something fits it.
    fn suspect(&self, namespace: NamespaceId, no: SelectorNo) {
        self.0.suspects.lock().unwrap_or_else(PoisonError::into_inner).insert((namespace, no));
        self.sweep_soon();
    }

    /// Takes the suspects of a namespace.
    fn suspects(&self, namespace: NamespaceId) -> Vec<SelectorNo> {
        let mut suspects = self.0.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.extract_if(|(of, _)| *of == namespace).map(|(_, no)| no).collect()
    }

    /// Completes after this time, or when something falls due before, as far as this replica has made it.
    pub async fn something_due(&self, at_most: Duration) {
        self.0.alarm.wait(at_most).await;
    }

    /// Tells parked polls that a task of a selector may be claimable.
    fn wake(&self, namespace: NamespaceId, fitting: &[i64]) {
        self.0.matchmaker.wake(namespace, fitting);
    }
}

/// Reads as long as a database that is there may take.
fn patiently<T, E: Into<Fault>>(
    read: impl Future<Output = Result<T, E>> + Send,
) -> impl Future<Output = Result<T, Error>> + Send {
    // On the heap: it would be in the future of every caller otherwise.
    let read = Box::pin(read);
    async move {
        match tokio::time::timeout(PATIENCE, read).await {
            Ok(read) => read.map_err(|error| error.into().into()),
            Err(_) => Err(Error::Unavailable(format!("no answer within {PATIENCE:?}"))),
        }
    }
}
