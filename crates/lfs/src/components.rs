//! `lfs setstripe --component-add` and `--component-del`: changes of a file's components.

use std::{ffi::OsStr, path::Path};

use layout::{ComponentId, Form, Layout, LayoutSpec, text};
use rpc::message::{control::ControlRequest, mdt::LayoutChange};

use super::{
    channel::{self, CallError, Errno, strerror, when_free},
    component_filter::FlagMatch,
    layout_options::usage_error,
    options::Parsed,
    outcome::{Failure, Outcome},
    setstripe,
};

/// How often a change is tried again because the file grew between the question and the change.
const ATTEMPTS_MAX: usize = 16;

/// Adds components after the last one.
pub fn add(operand: &OsStr, spec: &LayoutSpec) -> Outcome {
    let LayoutSpec::Composite(components) = spec else {
        return Err(usage_error("--component-add needs components, which begin with -E"));
    };
    let (directory, subject, layout) =
        setstripe::layout_of(Path::new(operand)).map_err(|error| setstripe::failure(operand, &error))?;
    let Some(layout) = layout.filter(|layout| layout.form == Form::Composite) else {
        let problem = format!("lfs setstripe setstripe: '{}' not a composite file", operand.display());
        return Err(Failure::new(libc::EINVAL, problem));
    };
    let first = components.first().map_or(0, |component| component.end);
    if layout.end() >= first {
        let problem = format!("first extent [0, {first}) not adjacent with extent end {}", layout.end());
        let message = format!("lfs setstripe setstripe: {problem}\nerror: lfs setstripe: invalid layout");
        return Err(Failure::new(libc::EINVAL, message));
    }
    let change = ControlRequest::ChangeLayout(subject, LayoutChange::Add(components.clone()));
    channel::ask(&directory, &change)
        .map(drop)
        .map_err(|error| setstripe::explained(operand, spec, setstripe::failure(operand, &error)))
}

/// Deletes components.
pub fn delete(operand: &OsStr, parsed: &Parsed) -> Outcome {
    let choice = Choice::new(parsed)?;
    let fail = |error: &CallError| {
        let Errno(errno) = error.errno();
        let which = choice.text();
        let problem = format!("cannot delete component {which} from '{}': {}", operand.display(), strerror(errno));
        Failure::new(1, format!("lfs setstripe setstripe: {problem}"))
    };
    for _ in 0..ATTEMPTS_MAX {
        let found = setstripe::layout_of(Path::new(operand)).map_err(|error| fail(&error))?;
        let (directory, subject, Some(layout)) = found else {
            return Err(fail(&Errno(libc::EINVAL).into()));
        };
        let components = choice.components(&layout);
        if components.is_empty() || layout.form == Form::Plain {
            return Err(fail(&Errno(libc::EINVAL).into()));
        }
        let change = LayoutChange::Delete { components, generation: layout.generation };
        let change = ControlRequest::ChangeLayout(subject, change);
        match when_free(false, || channel::ask(&directory, &change)) {
            Ok(_) => return Ok(()),
            Err(error) if error.errno() == Errno(libc::EAGAIN) => continue,
            Err(error) => return Err(fail(&error)),
        }
    }
    Err(fail(&Errno(libc::EAGAIN).into()))
}

/// Which components to delete.
enum Choice {
    Id(u32),
    Flags(FlagMatch),
}

impl Choice {
    fn new(parsed: &Parsed) -> Result<Self, Failure> {
        match (parsed.value("component-id"), parsed.value("component-flags")) {
            (Some(id), None) => {
                let id = id.parse().map_err(|_| usage_error(format_args!("invalid component ID '{id}'")))?;
                Ok(Choice::Id(id))
            }
            (None, Some(flags)) => {
                let invalid = |flag: String| usage_error(format_args!("invalid component flag '{flag}'"));
                FlagMatch::parse(flags, false).map(Choice::Flags).map_err(invalid)
            }
            _ => Err(usage_error("--component-del needs either -I or --component-flags")),
        }
    }

    /// As an error shows it.
    fn text(&self) -> String {
        match self {
            Choice::Id(id) => format!("{id:#x}"),
            Choice::Flags(_) => "0".to_owned(),
        }
    }

    fn components(&self, layout: &Layout) -> Vec<ComponentId> {
        let rows = text::rows(layout);
        let chosen = rows.iter().filter(|row| match self {
            Choice::Id(id) => row.id == Some(ComponentId(*id)),
            Choice::Flags(flags) => flags.matches(row),
        });
        chosen.filter_map(|row| row.id).collect()
    }
}
