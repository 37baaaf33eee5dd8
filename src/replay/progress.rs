//! The progress bar: on stderr, and only where somebody can see it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::summary::Summary;

pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar for so many rows; for as many as come, if that is unknown.
    pub(super) fn new(rows: Option<u64>) -> Self {
        // Draws nothing when stderr is no terminal.
        let bar = ProgressBar::with_draw_target(rows, ProgressDrawTarget::stderr());
        let template = match rows {
            Some(_) => "{bar:30} {pos}/{len} rows  {per_sec}  {msg}  {eta} left",
            None => "{spinner} {pos} rows  {per_sec}  {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn row_ended(&self, summary: &Summary) {
        self.0.inc(1);
        if !self.0.is_hidden() {
            let refused: u64 = summary.refused.values().sum();
            let trouble = match summary.failed {
                0 => String::new(),
                failed => format!(", {failed} failed"),
            };
            self.0.set_message(format!("{} admitted, {refused} refused{trouble}", summary.admitted));
        }
    }

    /// A line for whoever watches.
    pub(super) fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
