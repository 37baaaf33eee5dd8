//! What the words mean: amounts, periods, cost maps, the policy, reservations
//! and the reasons for a refusal.
//!
//! Everything here is pure: no I/O, no clock, no SQL, no HTTP. Times and
//! balances come in as values; decisions go out as values.

pub mod admission;
pub mod amount;
pub mod call;
pub mod cost;
pub mod evidence;
pub mod liability;
pub mod name;
pub mod period;
pub mod policy;
pub mod refusal;
pub mod request;
pub mod reservation;
pub mod role;

pub use amount::Units;
pub use name::Name;
pub use policy::Policy;
pub use refusal::{Refusal, Retry};
