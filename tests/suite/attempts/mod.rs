//! Attempts: who holds a job, for how long, and who holds it next.

mod chains;
mod evidence;
mod leases;
mod stale;
mod taking_over;
