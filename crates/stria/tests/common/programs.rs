//! Running other programs: their output, their exit status, and a clear failure if they are not
//! installed.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// What a program printed and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit status; of a program ended by a signal, 128 and its number, as a shell says.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A program with its arguments, to be run once.
pub struct Program(pub Command);

impl Program {
    /// Adds arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(mut self, arguments: I) -> Self {
        self.0.args(arguments);
        self
    }

    /// Adds one argument.
    pub fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    /// Sets the working directory.
    pub fn within(mut self, directory: &Path) -> Self {
        self.0.current_dir(directory);
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs it to its end.
    pub fn output(mut self) -> Output {
        use std::os::unix::process::ExitStatusExt;
        let output = self.0.output().unwrap_or_else(|error| panic!("cannot run {:?}: {error}", self.0));
        let status = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
        Output {
            status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs it; it must succeed. Returns what it printed.
    pub fn succeed(self) -> String {
        let text = format!("{:?}", self.0);
        let output = self.output();
        assert!(output.status == 0, "{text} ended with {}:\n{}{}", output.status, output.stdout, output.stderr);
        output.stdout
    }
}

/// A program that must be installed.
pub fn program(name: &str) -> Program {
    Program(Command::new(installed(name)))
}

/// Makes a copy of the binary under test that anybody may run. Not by this process: children that
/// other tests start would hold the copy open for writing until they execute their program, and it
/// could not be run.
pub fn copy_program(to: &Path) {
    program("install").args(["-m", "755", env!("CARGO_BIN_EXE_stria")]).arg(to).succeed();
}

/// A line for the shell.
pub fn shell(line: &str) -> Program {
    program("bash").args(["-c", line])
}

/// Where a program is. It may be one of the tools that `./test` builds.
pub fn installed(name: &str) -> PathBuf {
    if name.contains('/') {
        return name.into();
    }
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([tools, "/usr/sbin".into(), "/sbin".into()]);
    places
        .find_map(|directory| Some(directory.join(name)).filter(|path| path.is_file()))
        .unwrap_or_else(|| panic!("the program '{name}' is missing; ./test installs what the tests need"))
}
