//! A file of results as JSON lines, each written as soon as it is known.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::Serialize;

/// See the module documentation.
pub struct JsonLines(Option<(PathBuf, File)>);

impl JsonLines {
    /// Into this file, which is made anew; `None`: nowhere.
    pub fn new(path: Option<&Path>) -> anyhow::Result<Self> {
        let create = |path: &Path| {
            let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            anyhow::Ok((path.to_owned(), file))
        };
        Ok(Self(path.map(create).transpose()?))
    }

    /// Adds a line.
    pub fn add(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let Some((path, file)) = &mut self.0 else { return Ok(()) };
        writeln!(file, "{}", serde_json::to_string(line)?).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The file.
    pub fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(|(path, _)| path.as_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_result_and_errors_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let mut lines = JsonLines::new(Some(&path)).unwrap();
        lines.add(&(1, "a")).unwrap();
        lines.add(&[2]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[1,\"a\"]\n[2]\n");
        assert_eq!(lines.path(), Some(path.as_path()));
        let mut none = JsonLines::new(None).unwrap();
        none.add(&1).unwrap();
        assert_eq!(none.path(), None);
        let error = JsonLines::new(Some(directory.path())).err().unwrap().to_string();
        assert!(error.starts_with("cannot create "), "{error}");
    }
}
