//! A job ends otherwise than by its holder's own settlement: cancelled, fenced, or
//! settled with something still outstanding.

mod cancelling;
mod fencing_calls;
mod fencing_workers;
mod outstanding;
mod settling_stopped;
