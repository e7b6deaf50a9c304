//! `get_param`, `list_param` and `set_param`.

use anyhow::bail;
use rt::parameters::near;

use crate::absent_parameters;

use super::{
    daemons::{Daemon, ask_all, done_by_any},
    protocol::{CtlReply, CtlRequest, Parameter},
    show::{Entry, Style, assignment},
};

/// What is asked of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Their values.
    Values,
    /// Which there are.
    Names,
}

/// Shows what matches, daemon by daemon. Patterns that match nothing are errors, after what the
/// others have found.
pub fn show(
    daemons: &[&Daemon],
    patterns: &[String],
    question: Question,
    style: Style,
    text: impl Fn(&Parameter) -> String,
) -> anyhow::Result<()> {
    let mut found: Vec<(&Daemon, Vec<Parameter>)> = daemons.iter().map(|daemon| (*daemon, Vec::new())).collect();
    let mut unknown = Vec::new();
    for pattern in patterns {
        let request = match question {
            Question::Values => CtlRequest::Get { pattern: pattern.clone() },
            Question::Names => CtlRequest::List { pattern: pattern.clone() },
        };
        let mut matches = 0;
        for (daemon, parameters) in of_parameters(ask_all(daemons, &request)?) {
            matches += parameters.len();
            let (_, known) = found.iter_mut().find(|(known, _)| known.path == daemon.path).expect("it was asked");
            known.extend(parameters);
        }
        if matches == 0 {
            unknown.push(pattern);
        }
    }
    match question {
        Question::Values => style.print(&found, Entry::valued, text)?,
        Question::Names => style.print(&found, Entry::named, text)?,
    }
    let Some((last, others)) = unknown.split_last() else { return Ok(()) };
    for pattern in others {
        eprintln!("stria: {}", no_match(daemons, pattern));
    }
    Err(no_match(daemons, last))
}

/// Shows the permanent parameters. All daemons of a file system know the same: one answers.
pub fn show_permanent(daemons: &[&Daemon], style: Style, text: impl Fn(&Parameter) -> String) -> anyhow::Result<()> {
    let mut found: Vec<(&Daemon, Vec<Parameter>)> = Vec::new();
    for (daemon, parameters) in of_parameters(ask_all(daemons, &CtlRequest::Permanent)?) {
        if !found.iter().any(|(known, _)| known.is_of_the_same(daemon)) {
            found.push((daemon, parameters));
        }
    }
    style.print(&found, Entry::valued, text)
}

/// Removes a permanent parameter; what is set now stays until the daemons end.
pub fn remove_permanent(daemons: &[&Daemon], name: &str) -> anyhow::Result<()> {
    done_by_any(daemons, &CtlRequest::RemovePermanent { name: name.to_owned() })
}

/// Carries out `NAME=VALUE` on daemons of one file system, and shows what has changed.
pub fn set(daemons: &[&Daemon], assigned: &str, permanent: bool, style: Style) -> anyhow::Result<()> {
    let Some((name, value)) = assigned.split_once('=') else {
        bail!("'{assigned}': expected NAME=VALUE");
    };
    let (name, value) = (name.to_owned(), value.to_owned());
    if permanent && value.is_empty() {
        return remove_permanent(daemons, &name);
    }
    let changed = of_parameters(ask_all(daemons, &CtlRequest::Set { pattern: name.clone(), value: value.clone() })?);
    match (permanent, changed.iter().all(|(_, parameters)| parameters.is_empty())) {
        (false, true) => Err(no_match(daemons, &name)),
        (false, false) => style.print(&changed, Entry::valued, assignment),
        (true, unknown) => {
            // The value was good for this host's daemons; other hosts may have parameters that
            // these do not.
            done_by_any(daemons, &CtlRequest::SetPermanent { name: name.clone(), value })?;
            if unknown {
                eprintln!("stria: no daemon on this host has '{name}'; it was stored for other hosts");
            }
            Ok(())
        }
    }
}

/// That nothing has such a name, with what may be meant.
fn no_match(daemons: &[&Daemon], pattern: &str) -> anyhow::Error {
    if let Some(reason) = absent_parameters::reason(pattern) {
        return anyhow::anyhow!("there is no '{pattern}': {reason}");
    }
    let everything = ask_all(daemons, &CtlRequest::List { pattern: "*".to_owned() }).unwrap_or_default();
    let names: Vec<String> = of_parameters(everything)
        .into_iter()
        .flat_map(|(_, parameters)| parameters.into_iter().map(|parameter| parameter.name))
        .collect();
    let near = near(pattern, names.iter().map(String::as_str));
    let meant = if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) };
    anyhow::anyhow!("no parameter matches '{pattern}'{meant}; see: stria ctl list_param")
}

fn of_parameters(replies: Vec<(&Daemon, CtlReply)>) -> Vec<(&Daemon, Vec<Parameter>)> {
    let parameters = |(daemon, reply)| match reply {
        CtlReply::Parameters(parameters) => Some((daemon, parameters)),
        _ => None,
    };
    replies.into_iter().filter_map(parameters).collect()
}
