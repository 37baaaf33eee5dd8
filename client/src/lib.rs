//! What a worker needs to spend within a budget of spend-ledger.
//!
//! A worker that calls a paid provider asks the ledger first. With this library it
//! reserves what a job may cost, has every paid request admitted, and settles what
//! it used; it is told when it must stop; and it survives lost answers, restarts of
//! the service, and its own end in the middle of a request without paying for
//! anything twice or hiding anything that was paid.
//!
//! ```no_run
//! use spend_ledger_client::{Amount, CallError, Client, Failure, Paid, Request};
//!
//! # async fn ask_the_provider(page: u32) -> Result<(u32, String), std::io::Error> { unimplemented!() }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // One for the process. The key has the role `worker`.
//! let client = Client::new("http://127.0.0.1:8080", std::env::var("SPEND_LEDGER_KEY")?)?;
//!
//! // The key is the job's identity: reserved again, it takes nothing more.
//! let request = Request::new("export", Amount::quantities([("formats", 3), ("weight", 12)]));
//! let job = client.reserve("job-123", request).await?;
//!
//! for page in 1..=3 {
//!     // At most 12 units; the closure runs only once the ledger has said yes.
//!     let call = job.call(format!("page-{page}"), 12).extend();
//!     let done = call
//!         .run(|| async move {
//!             let (cost, text) = ask_the_provider(page).await?; // failed: outcome unknown
//!             Ok(Paid::new(cost, text))
//!         })
//!         .await;
//!     match done {
//!         Ok(done) => println!("{}", done.value),
//!         // Cancelled, or taken over by another worker.
//!         Err(CallError::Stopped(_)) => break,
//!         Err(error) => eprintln!("page {page}: {error}"),
//!     }
//! }
//!
//! // The sum of the calls; the rest is available again.
//! job.settle_calls().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it takes care of
//!
//! - **Lost answers.** Every request is repeated byte for byte when no answer came
//!   or the service says that it is in trouble: after growing pauses that differ
//!   from process to process, not before the service asked to be asked again, for
//!   [`retry_for`](Builder::retry_for) in all (or less, if the service asks for more
//!   patience than that). Nothing else is repeated: a refusal is an answer.
//! - **Leases.** While a [`Job`] lives its lease is renewed in the background.
//! - **Stopping.** A job that is cancelled or taken over by another process learns
//!   it when it renews its lease or asks for anything: see [`JobState`],
//!   [`Handle::stopped`]. From then on calls are refused here, without asking.
//! - **Paying once.** A call is paid for at most once under its key. Where this
//!   library cannot be certain that it was not paid for before, as by the process's
//!   own earlier life, it does not pay ([`CallError::AlreadyAdmitted`]).
//! - **Failing.** A paid request that fails, panics, or is dropped with the task
//!   that made it is reported with unknown outcome, and stays charged until
//!   somebody knows better. One that was certainly not sent ([`Failure::NotSent`])
//!   costs nothing.
//! - **Paid results.** What was paid for is handed to the caller even when the
//!   ledger cannot be told ([`Done`], [`Report::Pending`]). The process remembers
//!   what it has cost, also when the job is dropped or lost, and tells the ledger
//!   before the job settles, when it is dropped, or when asked to
//!   ([`Client::deliver_reports`]).
//!
//! # What it does not
//!
//! - It gives nothing back because something failed: a job that was dropped stays
//!   charged until somebody takes it over, fences it, or reserves it again.
//! - It does not wait for budgets: a refusal says whether and when asking again can
//!   help ([`Refusal::retry`]).
//! - It writes nothing down. What is known only to a process, such as what a call
//!   has cost that the ledger could not be told of, ends with the process; the call
//!   stays charged at the most that it may have cost.
//! - It speaks plain HTTP/1.1, directly: no TLS, no proxy, no redirects.
//!
//! # What it keeps in memory
//!
//! The keys of a job's calls, until the job is dropped; how calls ended, until the
//! service knows; and that a job was dropped, until it is seen (by reserving the same
//! job, or looking at its reservation) that another attempt has replaced it or that
//! it has ended. A process that drops jobs and never comes back to them keeps some
//! hundred bytes for each.
//!
//! Where workers call a provider directly (`worker` enforcement) there are no
//! calls: report [`progress`](Handle::progress), [`extend`](Handle::extend) before
//! the ceiling, [`settle`](Job::settle) at what was used in all.
//!
//! Amounts are exact decimals: [`Decimal`], or whole numbers.

mod amount;
mod call;
mod client;
mod endpoint;
mod error;
mod held;
mod inner;
mod job;
mod keep;
mod list;
mod request;
mod untold;
mod view;
pub mod wire;

pub use rust_decimal::Decimal;

pub use amount::{Amount, Usage};
pub use call::{Call, CallError, Done, Failure, Paid, Report};
pub use client::{Builder, Client};
pub use endpoint::{EndpointError, Key, ServiceUrl};
pub use error::{BuildError, Error, Refusal, Retry};
pub use job::{Handle, Job, JobState, Unsettled};
pub use request::{Evidence, Request, TakeOver};
pub use view::{Attempt, CallItem, CallState, CallView, Enforcement, Reservation, ReservationState};
