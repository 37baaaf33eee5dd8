//! What all tests share.

mod books;
mod clock;
mod fake;

use std::future::Future;
use std::time::Duration;

use spend_ledger_client::{Builder, Client, Job, Paid, Request};
use tokio::sync::oneshot;

pub use books::Books;
pub use clock::Clock;
pub use fake::{Fake, Trouble};

/// How long anything that must happen may take, whatever the test's clock says.
pub const LONGEST: Duration = Duration::from_secs(120);

/// Waits until this has happened, but not for ever.
pub async fn in_time<T>(happens: impl Future<Output = T>) -> T {
    let (over, bound) = oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(LONGEST);
        over.send(())
    });
    tokio::select! {
        biased;
        happened = happens => happened,
        _ = bound => panic!("it has not happened"),
    }
}

/// A client that is not patient, so that a lost answer costs little time.
pub fn builder(fake: &Fake) -> Builder {
    Client::builder(&fake.url, "sl_test").try_timeout(Duration::from_millis(200))
}

pub fn client(fake: &Fake) -> Client {
    builder(fake).build().unwrap()
}

pub fn bulk(units: u32) -> Request {
    Request::new("bulk", units)
}

/// A job of this many units, on a service of its own.
pub async fn job(units: u32) -> (Fake, Client, Job) {
    let fake = Fake::start().await;
    let client = client(&fake);
    let job = client.reserve("job-1", bulk(units)).await.unwrap();
    (fake, client, job)
}

/// The paid request of tests that have none of their own: costs 5.
pub async fn five() -> Result<Paid<&'static str>, spend_ledger_client::Failure<std::io::Error>> {
    Ok(Paid::new(5, "value"))
}

/// The paid request that must not be made.
pub async fn never() -> Result<Paid<()>, spend_ledger_client::Failure<std::io::Error>> {
    panic!("paid for");
}

/// An error of a provider.
pub fn broken() -> std::io::Error {
    std::io::Error::other("connection reset")
}
