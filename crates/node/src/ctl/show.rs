//! The output of `stria ctl`: lines like those of lctl, under a heading for each daemon if it might
//! be unclear which daemon they come from; or JSON lines, each with the daemon and its file system.

use std::{
    fmt::Display,
    io::{Write, stdout},
};

use serde::Serialize;

use super::{
    daemons::Daemon,
    protocol::{Parameter, PoolLine, TargetLine},
};

/// How answers are shown.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// JSON lines.
    pub json: bool,
    /// For people: whether answers have headings.
    pub headings: Headings,
}

/// When a heading says which daemon answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headings {
    /// Only values are wanted.
    Never,
    /// If several daemons answer.
    OfSeveral,
    /// Also if only one answers: there are others, of other file systems.
    Always,
}

/// A line of JSON: an answer and whose it is.
#[derive(Serialize)]
struct Answer<'a, T> {
    fsname: &'a str,
    source: &'a str,
    role: &'a str,
    pid: u32,
    #[serde(flatten)]
    answer: T,
}

/// A parameter.
#[derive(Serialize)]
pub struct Entry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    writable: bool,
    doc: &'a str,
    min: Option<u64>,
    max: Option<u64>,
    default: Option<&'a str>,
}

impl<'a> Entry<'a> {
    /// With its value.
    pub fn valued(parameter: &'a Parameter) -> Self {
        Self { value: Some(parameter.value.trim_end()), ..Self::named(parameter) }
    }

    /// Without.
    pub fn named(parameter: &'a Parameter) -> Self {
        let Parameter { name, writable, doc, min, max, default, .. } = parameter;
        Self { name, value: None, writable: *writable, doc, min: *min, max: *max, default: default.as_deref() }
    }
}

/// A pool and its OSTs.
#[derive(Serialize)]
pub struct Pool<'a> {
    pool: &'a str,
    osts: &'a [String],
}

impl<'a> From<&'a PoolLine> for Pool<'a> {
    fn from(pool: &'a PoolLine) -> Self {
        Self { pool: &pool.name, osts: &pool.members }
    }
}

impl Style {
    /// Says that something was done: programs see it by the exit status.
    pub fn tell(self, done: impl Display) {
        if !self.json {
            println!("{done}");
        }
    }

    /// Prints the answers of each daemon: for programs as `json` makes them, for people as `text`
    /// does. Daemons without an answer are left out.
    pub fn print<'a, T: 'a, J: Serialize>(
        self,
        answers: &'a [(&Daemon, Vec<T>)],
        json: fn(&'a T) -> J,
        text: impl Fn(&'a T) -> String,
    ) -> anyhow::Result<()> {
        let mut output = stdout().lock();
        let answers = || answers.iter().filter(|(_, items)| !items.is_empty());
        if self.json {
            for (daemon, item) in answers().flat_map(|(daemon, items)| items.iter().map(move |item| (daemon, item))) {
                let info = &daemon.info;
                let (fsname, source, role, pid) = (&*info.fsname, &*info.source, &*info.role, daemon.pid);
                let line = Answer { fsname, source, role, pid, answer: json(item) };
                writeln!(output, "{}", serde_json::to_string(&line)?)?;
            }
            return Ok(());
        }
        let has_headings = match self.headings {
            Headings::Never => false,
            Headings::OfSeveral => answers().count() > 1,
            Headings::Always => true,
        };
        for (number, (daemon, items)) in answers().enumerate() {
            if has_headings {
                writeln!(output, "{}# {}", if number > 0 { "\n" } else { "" }, daemon.label())?;
            }
            for item in items {
                writeln!(output, "{}", text(item))?;
            }
        }
        Ok(())
    }
}

/// The bare value.
pub fn value(parameter: &Parameter) -> String {
    parameter.value.trim_end().to_owned()
}

/// The name; with `mark`, one that can be set ends with `=`.
pub fn name(parameter: &Parameter, mark: bool) -> String {
    format!("{}{}", parameter.name, if mark && parameter.writable { "=" } else { "" })
}

/// `name=value`; a value of several lines stands below its name, as in lctl.
pub fn assignment(parameter: &Parameter) -> String {
    let value = parameter.value.trim_end();
    format!("{}={}{value}", parameter.name, if value.contains('\n') { "\n" } else { "" })
}

/// Name, meaning, range and default.
pub fn description(parameter: &Parameter) -> String {
    let Parameter { name, writable, doc, min, max, default, .. } = parameter;
    let range = match (min, max) {
        (Some(min), Some(max)) => format!("; {min} to {max}"),
        _ => String::new(),
    };
    let default = match default.as_deref() {
        None => String::new(),
        Some("") => "; default: empty".to_owned(),
        Some(default) => format!("; default {default}"),
    };
    let access = if *writable { "can be set" } else { "read only" };
    format!("{name}\n    {doc}\n    {access}{range}{default}")
}

/// Lines of `dl`, numbered through, with names in a column.
pub fn targets(answers: &[(&Daemon, Vec<TargetLine>)]) -> impl Fn(&TargetLine) -> String {
    let width = answers.iter().flat_map(|(_, targets)| targets).map(|target| target.name.len()).max().unwrap_or(0);
    let number = std::cell::Cell::new(0);
    move |target| {
        let TargetLine { state, kind, name, address } = target;
        let line = format!("{:>3} {state:<7} {kind:<10} {name:<width$} {address}", number.get());
        number.set(number.get() + 1);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(writable: bool, range: Option<(u64, u64)>, default: Option<&str>) -> Parameter {
        Parameter {
            name: "lod.stria-MDT0000-mdtlov.stripecount".to_owned(),
            value: "1".to_owned(),
            writable,
            doc: "stripes".to_owned(),
            min: range.map(|(min, _)| min),
            max: range.map(|(_, max)| max),
            default: default.map(str::to_owned),
        }
    }

    #[test]
    fn descriptions_say_what_can_be_set_to_what() {
        let rest = |parameter: &Parameter| description(parameter).lines().last().unwrap().trim().to_owned();
        let number = parameter(true, Some((1, 2000)), Some("4"));
        let expected = "lod.stria-MDT0000-mdtlov.stripecount\n    stripes\n    can be set; 1 to 2000; default 4";
        assert_eq!(description(&number), expected);
        assert_eq!(rest(&parameter(true, None, Some(""))), "can be set; default: empty");
        assert_eq!(rest(&parameter(true, None, None)), "can be set");
        assert_eq!(rest(&parameter(false, None, None)), "read only");
    }

    #[test]
    fn long_values_stand_below_their_names() {
        let mut shown = parameter(true, None, None);
        assert_eq!(assignment(&shown), "lod.stria-MDT0000-mdtlov.stripecount=1");
        shown.value = "a 1\nb 2\n".to_owned();
        assert_eq!(assignment(&shown), "lod.stria-MDT0000-mdtlov.stripecount=\na 1\nb 2");
    }
}
