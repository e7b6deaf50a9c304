//! `stria generate DIR`: manual pages and completions of `stria` and `lfs`, from the definition of
//! their command lines. Packages contain its output; the command is hidden, since only packages
//! need it.
//!
//! ```text
//! DIR/man/man1/     stria.1, a page for each subcommand (stria-ctl-get_param.1), lfs.1, lfs-find.1, ...
//! DIR/man/man8/     mount.fuse.stria.8
//! DIR/completions/  bash/stria, zsh/_stria, fish/stria.fish; the same of lfs
//! ```

mod manual;

use std::{
    fs::{File, create_dir_all},
    path::Path,
};

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use lfs::definition;

use crate::cli::{Cli, GenerateArgs};

/// Name of the file with the completions of a program.
type FileName = fn(&str) -> String;

/// The shells, and what each calls the file of a program's completions.
const SHELLS: [(Shell, &str, FileName); 3] = [
    (Shell::Bash, "bash", |program| program.to_owned()),
    (Shell::Zsh, "zsh", |program| format!("_{program}")),
    (Shell::Fish, "fish", |program| format!("{program}.fish")),
];

/// Runs `stria generate`.
pub fn run(arguments: &GenerateArgs) -> anyhow::Result<()> {
    manual::write(stria(), &arguments.directory.join("man"))?;
    completions(&arguments.directory.join("completions"))
}

/// What people see of the command line of `stria`, with that of `lfs` where clap only knows that
/// something else parses it.
fn stria() -> Command {
    let defined = Cli::command();
    let visible = defined.get_subcommands().filter(|command| !command.is_hide_set());
    let commands = visible.map(|command| match command.get_name() {
        "lfs" => definition::command_line().about(command.get_about().cloned().unwrap_or_default()),
        _ => command.clone(),
    });
    Command::new("stria")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .about(defined.get_about().cloned().unwrap_or_default())
        .after_help(defined.get_after_help().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .subcommands(commands)
}

fn completions(directory: &Path) -> anyhow::Result<()> {
    for (shell, name, file) in SHELLS {
        let directory = directory.join(name);
        create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        for mut program in [stria(), definition::command_line()] {
            let name = program.get_name().to_owned();
            let path = directory.join(file(&name));
            let mut output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
            generate(shell, &mut program, name, &mut output);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::read_to_string;

    use super::*;

    #[test]
    fn shells_complete_every_command_that_people_see() {
        let place = tempfile::tempdir().unwrap();
        run(&GenerateArgs { directory: place.path().to_owned() }).unwrap();
        for (_, shell, file) in SHELLS {
            let of =
                |program| read_to_string(place.path().join("completions").join(shell).join(file(program))).unwrap();
            let (stria, lfs) = (of("stria"), of("lfs"));
            for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(stria.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            for (command, _) in definition::commands() {
                assert!(lfs.contains(command) && stria.contains(command), "{shell}: {command}");
            }
            assert!(lfs.contains("stripe-count") && stria.contains("missing-only"), "{shell}");
            let hidden = stria.contains("__generate") || stria.contains("Write manual pages");
            assert!(!hidden, "{shell}: hidden commands are not offered");
        }
    }
}
