//! All that passes between a worker's process and the ledger and the provider,
//! watched, so that a signal can be sent to a process at a chosen instant.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What becomes of bytes whose sender is killed while they are under way. Those of
/// one that is stopped arrive, at once or late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    Lost,
    /// When another process of the job is at work.
    Late,
}

/// The instant at which a signal is sent.
#[derive(Debug, Clone, Copy)]
pub enum When {
    /// As this passes for the `nth` time, counted from 0: for example `admit asked`,
    /// or `pay answered`; empty for anything. What passes is in hand, and the signal
    /// is sent before it is passed on.
    InHand { what: &'static str, nth: usize, fate: Fate },
    /// So long after this was passed on.
    Passed { what: &'static str, nth: usize, after: Duration },
    /// So long after the first that passes.
    After(Duration),
}

/// A signal, and when it is sent: to the worker, or to whom it says.
#[derive(Debug, Clone, Copy)]
pub struct Stroke {
    pub when: When,
    pub signal: Signal,
    pub whom: Option<u32>,
}

/// Between one process of a worker and the others.
pub struct Relay {
    /// In the place of the ledger.
    pub ledger: SocketAddr,
    /// In the place of the provider.
    pub provider: SocketAddr,
    watching: Arc<Watching>,
    listening: Vec<JoinHandle<()>>,
}

struct Watching {
    stroke: Option<Stroke>,
    /// What has passed so far.
    passed: Mutex<Vec<String>>,
    pid: watch::Sender<Option<u32>>,
    struck: watch::Sender<Option<String>>,
    /// Rises as processes of the job get to work.
    at_work: watch::Sender<u64>,
    connections: Mutex<Vec<JoinHandle<()>>>,
}

impl Relay {
    /// To the real ones. `at_work` is shared by all processes of a job.
    pub async fn start(
        ledger: SocketAddr,
        provider: SocketAddr,
        stroke: Option<Stroke>,
        at_work: watch::Sender<u64>,
    ) -> Self {
        let watching = Arc::new(Watching {
            stroke,
            passed: Mutex::default(),
            pid: watch::Sender::new(None),
            struck: watch::Sender::new(None),
            at_work,
            connections: Mutex::default(),
        });
        let (ledger, to_ledger) = listen(ledger, &watching).await;
        let (provider, to_provider) = listen(provider, &watching).await;
        Self { ledger, provider, watching, listening: vec![to_ledger, to_provider] }
    }

    /// Says which process it is.
    pub fn watch(&self, pid: u32) {
        self.watching.pid.send_replace(Some(pid));
    }

    /// Waits until the signal has been sent, and says at what.
    pub async fn struck(&self) -> String {
        let mut struck = self.watching.struck.subscribe();
        let struck = struck.wait_for(Option::is_some).await.unwrap();
        struck.clone().unwrap()
    }

    /// Waits until everything under way has arrived, or can no more.
    pub async fn close(self) {
        self.listening.iter().for_each(JoinHandle::abort);
        loop {
            let Some(connection) = self.watching.connections.lock().unwrap().pop() else { return };
            connection.await.unwrap();
        }
    }
}

async fn listen(upstream: SocketAddr, watching: &Arc<Watching>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let watching = Arc::clone(watching);
    let listening = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let carried = tokio::spawn(carry(client, upstream, Arc::clone(&watching)));
            watching.connections.lock().unwrap().push(carried);
        }
    });
    (address, listening)
}

impl Watching {
    /// Notes that this passes, and says whether the signal is to be sent now.
    fn passes(self: &Arc<Self>, what: &str) -> Option<When> {
        let mut passed = self.passed.lock().unwrap();
        passed.push(what.to_owned());
        let Stroke { when, .. } = self.stroke?;
        let (wanted, nth) = match when {
            When::InHand { what, nth, .. } | When::Passed { what, nth, .. } => (what, nth),
            When::After(time) => {
                if passed.len() == 1 {
                    self.strike_later("a while", time);
                }
                return None;
            }
        };
        let matches = |what: &str| wanted.is_empty() || wanted == what;
        let hit = matches(what) && passed.iter().filter(|what| matches(what)).count() == nth + 1;
        hit.then_some(when)
    }

    async fn strike(&self, what: &str) {
        let Some(Stroke { signal, whom, .. }) = self.stroke else { return };
        let pid = *self.pid.subscribe().wait_for(Option::is_some).await.unwrap();
        let pid = whom.or(pid).and_then(|pid| Pid::from_raw(pid.try_into().unwrap())).unwrap();
        // It may have ended.
        let _ = kill_process(pid, signal);
        self.struck.send_replace(Some(what.to_owned()));
    }

    fn strike_later(self: &Arc<Self>, what: &str, time: Duration) {
        let (watching, what) = (Arc::clone(self), what.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            watching.strike(&what).await;
        });
    }

    /// Strikes with something in hand, and says whether it is to be passed on.
    async fn strike_in_hand(&self, what: &str, fate: Fate) -> bool {
        let mut at_work = self.at_work.subscribe();
        at_work.mark_unchanged();
        self.strike(what).await;
        if fate == Fate::Late {
            let _ = at_work.changed().await;
        }
        fate != Fate::Lost || !self.kills()
    }

    fn kills(&self) -> bool {
        self.stroke.is_some_and(|stroke| stroke.signal == Signal::KILL)
    }
}

/// One connection. The ledger notices when a worker hangs up; what the provider was
/// asked for it does, and it is waited for.
async fn carry(mut client: TcpStream, upstream: SocketAddr, watching: Arc<Watching>) {
    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
    let (mut asked, mut answered) = (vec![0_u8; 64 * 1024], vec![0_u8; 64 * 1024]);
    let (mut name, mut open) = ("", false);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { break };
                name = name_of(&asked[..read]).unwrap_or(name);
                open = true;
                let what = format!("{name} asked");
                let when = watching.passes(&what);
                let mut alone = false;
                if let Some(When::InHand { fate, .. }) = when {
                    if !watching.strike_in_hand(&what, fate).await {
                        return;
                    }
                    alone = watching.kills();
                }
                if server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
                if let Some(When::Passed { after, .. }) = when {
                    watching.strike_later(&what, after);
                }
                if alone {
                    let _ = server.read(&mut answered).await;
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(read @ 1..) = read else { return };
                open = false;
                let what = format!("{name} answered");
                let when = watching.passes(&what);
                if let Some(When::InHand { fate, .. }) = when
                    && !watching.strike_in_hand(&what, fate).await
                {
                    return;
                }
                if matches!(name, "admit" | "take over") {
                    watching.at_work.send_modify(|count| *count += 1);
                }
                if client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
                if let Some(When::Passed { after, .. }) = when {
                    watching.strike_later(&what, after);
                }
            }
        }
    }
    if open && name == "pay" {
        let _ = server.read(&mut answered).await;
    }
}

/// What a request is for, read from its first line.
fn name_of(bytes: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(bytes);
    let (method, rest) = text.lines().next()?.split_once(' ')?;
    let path = rest.strip_prefix('/')?.split([' ', '?']).next()?;
    let path: Vec<&str> = path.split('/').collect();
    Some(match (method, path.as_slice()) {
        ("POST", ["v1", "reservations"]) => "reserve",
        ("POST", ["v1", "reservations", _, "attempts"]) => "take over",
        ("POST", ["v1", "reservations", _, "calls"]) => "admit",
        ("POST", ["v1", "reservations", _, "calls", _, "settle"]) => "end",
        ("POST", ["v1", "reservations", _, "settle"]) => "settle",
        ("POST", ["v1", "reservations", _, "cancel"]) => "cancel",
        ("POST", ["v1", "reservations", _, "fence"]) => "fence",
        ("POST", ["v1", "reservations", _, "renew"]) => "renew",
        ("GET", ["v1", "reservations", _, "calls"]) => "list",
        ("POST", ["pay"]) => "pay",
        ("GET", ["bill", ..]) => "look",
        ("POST", ["later"]) => "wait",
        _ => return None,
    })
}
