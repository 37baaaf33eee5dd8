//! What the run is doing: on stderr, and only where somebody can see it.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Progress {
    bars: MultiProgress,
    steps: ProgressBar,
}

impl Progress {
    /// A bar for so many measurements.
    pub(super) fn new(measurements: u64) -> Self {
        // Draws nothing when stderr is no terminal.
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let steps = bars.add(ProgressBar::new(measurements));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} measurements  {elapsed}  {msg}") {
            steps.set_style(style);
        }
        steps.enable_steady_tick(Duration::from_secs(1));
        Self { bars, steps }
    }

    /// What is being done now.
    pub(super) fn doing(&self, what: &str) {
        self.steps.set_message(what.to_owned());
    }

    /// One measurement is done.
    pub(super) fn step(&self) {
        self.steps.inc(1);
    }

    /// A bar of its own for something long.
    pub(super) fn counting(&self, what: &'static str, length: u64) -> ProgressBar {
        let bar = self.bars.add(ProgressBar::new(length));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}  {per_sec}  {eta} left") {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar
    }

    pub(super) fn end(&self) {
        self.steps.finish_and_clear();
    }
}
