//! A user at work in one directory: a thread with credentials of its own that executes
//! [commands](super::commands), one after the other, and keeps files open from one to the next.

use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

use super::commands::Workplace;

/// A user with its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Name in failures.
    pub name: &'static str,
    /// User and own group.
    pub id: u32,
    /// Supplementary groups.
    pub groups: &'static [u32],
}

/// Root.
pub const ROOT: User = User { name: "root", id: 0, groups: &[] };

/// See the module documentation. Ends when it is dropped; what it has open is closed.
pub struct Agent {
    commands: Option<Sender<String>>,
    answers: Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts a thread of this user, whose commands are relative to `root`.
    pub fn start(root: impl Into<PathBuf>, user: User) -> Self {
        let (commands, incoming) = channel::<String>();
        let (outgoing, answers) = channel();
        let root = root.into();
        let work = move || {
            become_user(user);
            let mut workplace = Workplace::new(root);
            for line in incoming {
                if outgoing.send(workplace.execute(&line)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(user.name.to_owned()).spawn(work).expect("a thread");
        Self { commands: Some(commands), answers, thread: Some(thread) }
    }

    /// Executes one command; what it said.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        self.begin(line);
        self.answer()
    }

    /// Begins to execute one command, whose answer is to be taken by [`Agent::answer`].
    pub fn begin(&self, line: &str) {
        let commands = self.commands.as_ref().expect("it is there until it is dropped");
        commands.send(line.to_owned()).expect("the thread runs until the end");
    }

    /// What the command that was begun said.
    #[track_caller]
    pub fn answer(&self) -> String {
        self.answers.recv().expect("commands do not panic")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported, and the test fails because of it.
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread, and only it, the credentials of a user.
fn become_user(user: User) {
    if user.id == 0 {
        return;
    }
    let (groups, id) = (user.groups, user.id);
    // SAFETY: the system calls themselves change this thread only (the C library's functions would
    // change all).
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, id, id, id), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, id, id, id), 0);
    }
}
