//! Time that passes only when a test says so.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::time::advance;

use super::LONGEST;

/// Keeps paused time from passing by itself while sockets are being waited for.
pub struct Clock {
    _stands_still: mpsc::Sender<()>,
}

impl Clock {
    /// For a test with `start_paused`.
    pub fn stopped() -> Self {
        let (sender, receiver) = mpsc::channel::<()>();
        // Paused time runs ahead to the next timer whenever nothing is to be done,
        // and waiting for a socket is nothing. It does not while this is going on.
        tokio::task::spawn_blocking(move || receiver.recv());
        Self { _stands_still: sender }
    }

    /// Lets time pass, in small steps, until this has happened; but not for ever.
    pub async fn until<T>(&self, happens: impl Future<Output = T>) -> T {
        let mut happens = pin!(happens);
        let started = Instant::now();
        while started.elapsed() < LONGEST {
            let real = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
            tokio::select! {
                biased;
                happened = &mut happens => return happened,
                _ = real => advance(Duration::from_millis(50)).await,
            }
        }
        panic!("it has not happened")
    }

    /// Lets this much time pass.
    pub async fn pass(&self, time: Duration) {
        self.until(tokio::time::sleep(time)).await;
    }
}
