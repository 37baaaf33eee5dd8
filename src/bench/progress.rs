//! What the run is doing: on stderr, and only where somebody can see it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Progress {
    steps: ProgressBar,
}

impl Progress {
    /// A bar for so many measurements.
    pub(super) fn new(measurements: u64) -> Self {
        // Draws nothing when stderr is no terminal.
        let steps = ProgressBar::with_draw_target(Some(measurements), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} measurements  {elapsed}  {msg}") {
            steps.set_style(style);
        }
        steps.enable_steady_tick(Duration::from_secs(1));
        Self { steps }
    }

    /// What is being done now.
    pub(super) fn doing(&self, what: &str) {
        self.steps.set_message(what.to_owned());
    }

    /// One measurement is done.
    pub(super) fn step(&self) {
        self.steps.inc(1);
    }

    pub(super) fn end(&self) {
        self.steps.finish_and_clear();
    }
}
