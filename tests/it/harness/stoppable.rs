//! A PostgreSQL of a test's own, to be taken away and brought back.

use roadstead::embedded::{Embedded, Settings};

use super::Folder;

/// The embedded server at an address that stays the same when it is stopped and started.
pub struct Stoppable {
    folder: Folder,
    embedded: Option<Embedded>,
}

impl Stoppable {
    pub async fn start() -> Self {
        let mut stoppable = Self { folder: Folder::new(), embedded: None };
        stoppable.start_again().await;
        stoppable
    }

    pub async fn start_again(&mut self) {
        let embedded = Embedded::start(Settings::new(self.folder.join("data"))).await.unwrap();
        let host = embedded.url().split_once("host=").unwrap().1;
        let host = percent_encoding::percent_decode_str(host).decode_utf8().unwrap().into_owned();
        self.leads_to(&host);
        self.embedded = Some(embedded);
    }

    /// From then on connections are refused, as by a machine on which the server is down.
    pub async fn stop(&mut self) {
        self.embedded.take().unwrap().stop().await;
        let deserted = self.folder.join("deserted");
        if std::fs::create_dir(&deserted).is_ok() {
            drop(std::os::unix::net::UnixListener::bind(format!("{deserted}/.s.PGSQL.5432")).unwrap());
        }
        self.leads_to(&deserted);
    }

    fn leads_to(&self, folder: &str) {
        let link = self.folder.join("here");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(folder, link).unwrap();
    }

    pub fn url(&self) -> String {
        let host = self.folder.join("here").replace('/', "%2F");
        format!("postgres://roadstead@localhost:5432/roadstead?sslmode=disable&host={host}")
    }
}
