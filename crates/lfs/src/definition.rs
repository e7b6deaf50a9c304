//! The command line of `lfs` in the forms that others need: for completions a [`clap::Command`],
//! for manual pages the text of its help. `lfs` itself parses with [`super::options`], as
//! getopt_long(3) would.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, ValueHint};

use super::{
    COMMANDS, dispatch,
    options::{NOT, OptionSpec, Takes, long_option},
    usage,
};

/// Names of the commands that work, and what each does, in one line.
pub fn commands() -> impl Iterator<Item = (&'static str, &'static str)> {
    COMMANDS.iter().map(|command| (command.name, command.purpose))
}

/// What `lfs --help` says, or `lfs NAME --help`.
pub fn help(name: Option<&str>) -> String {
    let Some(name) = name else { return usage() };
    let mut text = Vec::new();
    match dispatch(&[OsString::from(name), "--help".into()], &mut text) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(failure) => failure.message,
    }
}

/// Commands, options and operands, without their meaning.
pub fn command_line() -> Command {
    let command = Command::new("lfs").about("Layouts and space of mounted StriaFS file systems");
    let subcommands = COMMANDS.iter().map(|known| {
        // The negation is no option, and all have --help, some without a table.
        let is_own = |spec: &&OptionSpec| ![NOT, HELP.long[0]].contains(&spec.long[0]);
        let specs = known.options.iter().copied().flatten().filter(is_own).chain([&HELP]);
        let paths = Arg::new("PATH").num_args(0..).value_hint(ValueHint::AnyPath);
        // `df -h` is an option of Lustre's: clap's own help may not take its letter.
        Command::new(known.name).about(known.purpose).disable_help_flag(true).args(specs.map(argument)).arg(paths)
    });
    command.disable_help_subcommand(true).subcommands(subcommands)
}

const HELP: OptionSpec = long_option(&["help"], Takes::Nothing);

fn argument(spec: &OptionSpec) -> Arg {
    let argument = Arg::new(spec.long[0]).long(spec.long[0]).visible_aliases(spec.long[1..].iter().copied());
    let argument = match spec.short {
        Some(letter) => argument.short(letter),
        None => argument,
    };
    match spec.takes {
        Takes::Nothing => argument.action(ArgAction::SetTrue),
        Takes::Value => argument.action(ArgAction::Append),
        Takes::OptionalValue => argument.action(ArgAction::Append).num_args(0..=1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_has_every_command_and_no_contradictions() {
        let definition = command_line();
        definition.clone().debug_assert();
        for (name, _) in commands() {
            assert!(definition.find_subcommand(name).is_some());
            assert!(help(Some(name)).contains(&format!("usage: lfs {name}")), "{name}");
        }
        let find = definition.find_subcommand("find").expect("there is one");
        assert!(find.get_arguments().any(|argument| argument.get_long() == Some("stripe-count")));
        assert!(!find.get_arguments().any(|argument| argument.get_long() == Some(NOT)));
    }
}
