//! A proxy between the service and the database that fails in chosen ways.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use spend_ledger::boot::SERVICE_LOGIN;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::server::{TestDatabase, server};

/// What the proxy does with what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Everything passes.
    Fair,
    /// Connections are cut, and no new one is made.
    Down,
    /// Nothing passes and nothing is cut.
    Stalled,
    /// What is asked passes; what is answered is lost.
    Deaf,
}

/// A running proxy. It ends with the test.
pub struct Proxy {
    weather: watch::Sender<Weather>,
    cuts: watch::Sender<u64>,
    connections: Arc<()>,
    directory: tempfile::TempDir,
}

impl Proxy {
    /// In front of the server of the run.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
        let upstream = tokio::task::spawn_blocking(|| server().socket_dir().join(".s.PGSQL.5432")).await.unwrap();
        let (weather, seen) = watch::channel(Weather::Fair);
        let (cuts, cut) = watch::channel(0);
        let connections = Arc::new(());
        tokio::spawn(accept(listener, upstream, seen, cut, Arc::downgrade(&connections)));
        Self { weather, cuts, connections, directory }
    }

    /// The database through the proxy, as the service connects.
    pub fn url(&self, database: &TestDatabase) -> String {
        let name = database.service_url.split(['/', '?']).nth(3).unwrap();
        format!("postgres://{SERVICE_LOGIN}@localhost/{name}?host={}&sslmode=disable", self.directory.path().display())
    }

    /// From now on it is like this.
    pub async fn set(&self, weather: Weather) {
        self.weather.send(weather).unwrap();
        if weather == Weather::Down {
            self.cut().await;
        }
    }

    /// Cuts every connection that there is, and waits until they are gone.
    pub async fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
        for _ in 0..1000 {
            if Arc::strong_count(&self.connections) == 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("connections could not be cut");
    }
}

async fn accept(
    listener: UnixListener,
    upstream: PathBuf,
    weather: watch::Receiver<Weather>,
    cuts: watch::Receiver<u64>,
    connections: Weak<()>,
) {
    while let Ok((client, _)) = listener.accept().await {
        if *weather.borrow() == Weather::Down {
            continue;
        }
        let Ok(server) = UnixStream::connect(&upstream).await else { continue };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let mut asked = tokio::spawn(pass(from_client, to_server, weather.clone(), false));
        let mut answered = tokio::spawn(pass(from_server, to_client, weather.clone(), true));
        let Some(counted) = connections.upgrade() else { return };
        let mut cut = cuts.clone();
        cut.mark_unchanged();
        // Either end gone, or a cut, and both halves go.
        tokio::spawn(async move {
            tokio::select! {
                _ = &mut asked => {}
                _ = &mut answered => {}
                _ = cut.changed() => {}
            }
            asked.abort();
            answered.abort();
            drop(counted);
        });
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut weather: watch::Receiver<Weather>, answers: bool) {
    let mut bytes = vec![0_u8; 16 * 1024];
    while let Ok(read) = from.read(&mut bytes).await {
        if read == 0 || weather.wait_for(|weather| *weather != Weather::Stalled).await.is_err() {
            return;
        }
        let lost = answers && *weather.borrow() == Weather::Deaf;
        if !lost && to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
