//! What a benchmark has measured: JSON lines while it runs, then the table of medians and a run of
//! the history.

use std::path::{Path, PathBuf};

use host::progress;

use super::{history::History, measurement::Measurement, report};
use crate::json_lines::JsonLines;

/// See the module documentation.
pub struct Results {
    json: JsonLines,
    measured: Vec<Measurement>,
}

impl Results {
    /// None so far; each will be written to the file `json`, if there is one.
    pub fn new(json: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self { json: JsonLines::new(json)?, measured: Vec::new() })
    }

    /// Adds what was measured.
    pub fn record(&mut self, measured: Vec<Measurement>) -> anyhow::Result<()> {
        measured.iter().try_for_each(|one| self.json.add(one))?;
        self.measured.extend(measured);
        Ok(())
    }

    /// Prints the table, and under it `note` if that has something to say of the results; then
    /// appends the medians to the history.
    pub fn finish(self, history: Option<PathBuf>, note: impl FnOnce(&[Measurement]) -> Option<&'static str>) {
        let lines = report::lines(&self.measured);
        println!("{}", report::table(&lines));
        if let Some(note) = note(&self.measured) {
            println!("{note}");
        }
        if let Some(path) = self.json.path() {
            println!("all measurements: {}", path.display());
        }
        // The measurements stand above in any case.
        match History::at(history).and_then(|history| history.append(lines)) {
            Ok(number) => println!("saved as run {number} of the history; to compare: stria bench compare"),
            Err(error) => progress::tell(format_args!("cannot add the run to the history: {error:#}")),
        }
    }
}
