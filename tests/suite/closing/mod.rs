//! Finance ends what nobody else will, or can, and looks at what came too late.

mod calls;
mod late_usage;
mod reservations;
