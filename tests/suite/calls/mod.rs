//! Calls: each paid request is admitted before it is sent, counted from then on,
//! and ends.

mod admitting;
mod ending;
mod extending;
mod keys;
mod late;
mod listing;
