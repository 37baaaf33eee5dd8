//! A proxy between the service and the database that fails in chosen ways.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// As fair, until a statement whose text begins like this is executed: then
    /// what is answered on its connection is lost.
    DeafTo(&'static str),
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

    /// Cuts every connection that there is; those that are made meanwhile are well.
    pub fn cut_those_there_are(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts every connection that there is, and waits until they are gone.
    pub async fn cut(&self) {
        self.cut_those_there_are();
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
        let deaf = Arc::new(AtomicBool::new(false));
        let mut asked = tokio::spawn(ask(from_client, to_server, weather.clone(), Arc::clone(&deaf)));
        let mut answered = tokio::spawn(answer(from_server, to_client, weather.clone(), deaf));
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

async fn ask(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    deaf: Arc<AtomicBool>,
) {
    let mut bytes = vec![0_u8; 16 * 1024];
    let mut asked = Asked::default();
    while let Ok(read) = from.read(&mut bytes).await {
        if read == 0 || weather.wait_for(|weather| *weather != Weather::Stalled).await.is_err() {
            return;
        }
        for executed in asked.executed(&bytes[..read]) {
            // Before the statement is passed on, so that no answer overtakes this.
            if matches!(*weather.borrow(), Weather::DeafTo(beginning) if executed.starts_with(beginning)) {
                deaf.store(true, Ordering::SeqCst);
            }
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn answer(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    deaf: Arc<AtomicBool>,
) {
    let mut bytes = vec![0_u8; 16 * 1024];
    while let Ok(read) = from.read(&mut bytes).await {
        if read == 0 || weather.wait_for(|weather| *weather != Weather::Stalled).await.is_err() {
            return;
        }
        let lost = *weather.borrow() == Weather::Deaf || deaf.load(Ordering::SeqCst);
        if !lost && to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// What one connection has asked so far, in messages of Postgres's protocol.
#[derive(Default)]
struct Asked {
    /// What has come of a message that is not whole yet.
    rest: Vec<u8>,
    /// Whether the start-up message, the only one without a type, has passed.
    started: bool,
    /// The texts of prepared statements by name.
    prepared: HashMap<Vec<u8>, String>,
}

impl Asked {
    /// The texts of the statements that these bytes execute.
    fn executed(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut executed = Vec::new();
        loop {
            let of_type = usize::from(self.started);
            let Some(length) = self.rest.get(of_type..of_type + 4) else { break };
            let length = of_type + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if self.rest.len() < length {
                break;
            }
            let message: Vec<u8> = self.rest.drain(..length).collect();
            if std::mem::replace(&mut self.started, true) {
                let mut texts = message[5..].split(|byte| *byte == 0);
                let mut text = || texts.next().unwrap_or_default();
                match message[0] {
                    // Parse: a name, and the statement.
                    b'P' => {
                        let name = text().to_vec();
                        self.prepared.insert(name, String::from_utf8_lossy(text()).into_owned());
                    }
                    // Bind: a portal, which has no name, and the name of a statement.
                    b'B' => {
                        text();
                        executed.extend(self.prepared.get(text()).cloned());
                    }
                    _ => {}
                }
            }
        }
        executed
    }
}
