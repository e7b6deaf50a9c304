//! The daemons of this host and their file systems: which daemons are asked, and which file system
//! is meant where only one is allowed.
//!
//! Two file systems can have the same name (`stria up` twice, without `--fsname`), so they are
//! distinguished by the identity of the first metadata target. A daemon that has not reached its
//! management service yet does not know it, and counts as part of the file system whose service has
//! the configured address.

use std::{
    io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};

use super::{
    protocol::{CtlReply, CtlRequest, DaemonInfo},
    socket,
};

/// How long a daemon may take to say what it is, which it knows: long enough for a busy host.
const DESCRIPTION_TIMEOUT: Duration = Duration::from_secs(5);

/// A daemon that answers.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Process id.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
    /// What it says of itself.
    pub info: DaemonInfo,
}

impl Daemon {
    /// File system and process, for people.
    pub fn label(&self) -> String {
        format!("{}: {}, process {}", self.info.source, self.info.role, self.pid)
    }

    /// Its answer; an error if there is none or it refuses.
    fn ask(&self, request: &CtlRequest) -> anyhow::Result<CtlReply> {
        self.answer(request).and_then(accepted)
    }

    fn answer(&self, request: &CtlRequest) -> anyhow::Result<CtlReply> {
        socket::ask(&self.path, request).map_err(|error| no_answer(&self.path, &error))
    }

    /// Whether both are of one file system.
    pub fn is_of_the_same(&self, other: &Daemon) -> bool {
        let (one, other) = (&self.info, &other.info);
        let same = match (&one.file_system, &other.file_system) {
            (Some(one), Some(other)) => one == other,
            _ => share_address(one.mgs.as_deref(), other.mgs.as_deref()),
        };
        one.fsname == other.fsname && same
    }
}

/// Whether two lists of addresses, separated by commas, have one in common.
fn share_address(one: Option<&str>, other: Option<&str>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    one.split(',').any(|address| other.split(',').any(|known| known == address))
}

/// An error if the daemon refused what it was asked.
fn accepted(reply: CtlReply) -> anyhow::Result<CtlReply> {
    match reply {
        CtlReply::Error(problem) => bail!(problem),
        reply => Ok(reply),
    }
}

/// The daemons of this host, by file system; never empty.
pub struct Daemons {
    file_systems: Vec<Vec<Daemon>>,
    /// Processes that are there and do not say what they are, unless a file system is named: each
    /// may be of the one that is meant.
    silent: Vec<u32>,
}

impl Daemons {
    /// Those that answer in `run_dir`, of the file system `wanted` if one is named.
    pub fn find(run_dir: &Path, wanted: Option<&str>) -> anyhow::Result<Self> {
        let sockets =
            socket::daemons(run_dir).with_context(|| format!("cannot look for daemons in {}", run_dir.display()))?;
        let (mut daemons, mut silent) = (Vec::new(), Vec::new());
        // At once: one that is stopped keeps nobody waiting for longer than its own answer would
        // take.
        let described = thread::scope(|scope| {
            let asked: Vec<_> =
                sockets.into_iter().map(|(pid, path)| (pid, scope.spawn(move || described(pid, path)))).collect();
            let answer = |(pid, asked): (u32, thread::ScopedJoinHandle<'_, Described>)| {
                (pid, asked.join().unwrap_or_else(|panic| resume_unwind(panic)))
            };
            asked.into_iter().map(answer).collect::<Vec<_>>()
        });
        for (pid, described) in described {
            match described {
                Described::As(daemon) => daemons.push(daemon),
                Described::Silent => silent.push(pid),
                Described::Gone => {}
            }
        }
        let found = Self { file_systems: by_file_system(daemons), silent };
        if found.file_systems.is_empty() {
            bail!("no stria daemon answers in {}; is one running, with another --run-dir?", run_dir.display());
        }
        wanted.map_or(Ok(()), |wanted| found.refuse_unknown(wanted, run_dir))?;
        let is_wanted = |daemons: &Vec<Daemon>| wanted.is_none_or(|wanted| is_named(daemons, wanted));
        let silent = if wanted.is_some() { Vec::new() } else { found.silent };
        Ok(Self { file_systems: found.file_systems.into_iter().filter(is_wanted).collect(), silent })
    }

    fn refuse_unknown(&self, wanted: &str, run_dir: &Path) -> anyhow::Result<()> {
        if self.file_systems.iter().any(|daemons| is_named(daemons, wanted)) {
            return Ok(());
        }
        bail!(
            "no daemon in {} belongs to file system '{wanted}'; running here:{}",
            run_dir.display(),
            self.candidates()
        )
    }

    /// All of them.
    pub fn all(&self) -> Vec<&Daemon> {
        self.file_systems.iter().flatten().collect()
    }

    /// Whether they are of more than one file system.
    pub fn are_of_several(&self) -> bool {
        self.file_systems.len() > 1
    }

    /// Those of the only file system there is, of the name `fsname` if that is known. What changes
    /// something may not guess which one is meant.
    pub fn of_one(&self, command: &str, fsname: Option<&str>) -> anyhow::Result<Vec<&Daemon>> {
        let is_named = |daemons: &&Vec<Daemon>| fsname.is_none_or(|name| daemons[0].info.fsname == name);
        let meant: Vec<&Vec<Daemon>> = self.file_systems.iter().filter(is_named).collect();
        match (&meant[..], fsname) {
            ([_], _) if !self.silent.is_empty() => {
                let silent: Vec<String> = self.silent.iter().map(u32::to_string).collect();
                bail!(
                    "{command}: a daemon that does not answer (process {}) may belong to another file system; select \
                     one with --fs or --run-dir:{}",
                    silent.join(", "),
                    self.candidates()
                )
            }
            ([only], _) => Ok(only.iter().collect()),
            ([], fsname) => bail!("no daemon on this host belongs to file system '{}'", fsname.unwrap_or_default()),
            _ => bail!(
                "{command}: daemons of several file systems run here; select one with --fs or --run-dir:{}",
                self.candidates()
            ),
        }
    }

    /// How to name each file system, and its daemons.
    fn candidates(&self) -> String {
        let names: Vec<&str> = self.file_systems.iter().map(|daemons| &*daemons[0].info.fsname).collect();
        let name = |info: &DaemonInfo| match names.iter().filter(|name| **name == info.fsname).count() {
            1 => info.fsname.clone(),
            _ => info.source.clone(),
        };
        let width = self.file_systems.iter().map(|daemons| name(&daemons[0].info).len()).max().unwrap_or_default();
        let lines = self.file_systems.iter().map(|daemons| {
            let all: Vec<String> =
                daemons.iter().map(|daemon| format!("{}, process {}", daemon.info.role, daemon.pid)).collect();
            format!("\n  --fs {:<width$}  {}", name(&daemons[0].info), all.join("; "))
        });
        lines.collect()
    }
}

/// Whether `wanted` is the name of the file system of these daemons, or what one of them mounts.
fn is_named(daemons: &[Daemon], wanted: &str) -> bool {
    daemons.iter().any(|daemon| daemon.info.fsname == wanted || daemon.info.source == wanted)
}

/// What a process says when it is asked what it is.
enum Described {
    /// It is this daemon.
    As(Daemon),
    /// It is there, and does not answer.
    Silent,
    /// It ended meanwhile.
    Gone,
}

/// Asks a daemon what it is. One that does not answer is left out with a warning; one of another
/// version, which does not understand the question, is of a file system of its own without a name.
fn described(pid: u32, path: PathBuf) -> Described {
    let daemon = Daemon { pid, path, info: DaemonInfo::default() };
    match socket::ask_for(&daemon.path, &CtlRequest::Describe, DESCRIPTION_TIMEOUT) {
        Ok(CtlReply::Daemon(info)) => Described::As(Daemon { info, ..daemon }),
        Ok(_) => {
            let (source, role) = ("unknown".to_owned(), "stria of another version".to_owned());
            Described::As(Daemon { info: DaemonInfo { source, role, ..DaemonInfo::default() }, ..daemon })
        }
        Err(error) => {
            eprintln!("stria: warning: {:#}", no_answer(&daemon.path, &error));
            if error.kind() == io::ErrorKind::TimedOut { Described::Silent } else { Described::Gone }
        }
    }
}

fn no_answer(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!("the daemon at {} does not answer: {error}", path.display())
}

/// Those that know their file system first, so that the others find it.
fn by_file_system(daemons: Vec<Daemon>) -> Vec<Vec<Daemon>> {
    let (known, unknown): (Vec<Daemon>, Vec<Daemon>) =
        daemons.into_iter().partition(|daemon| daemon.info.file_system.is_some());
    let mut file_systems: Vec<Vec<Daemon>> = Vec::new();
    for daemon in known.into_iter().chain(unknown) {
        match file_systems.iter_mut().find(|known| known.iter().any(|known| known.is_of_the_same(&daemon))) {
            Some(known) => known.push(daemon),
            None => file_systems.push(vec![daemon]),
        }
    }
    file_systems.iter_mut().for_each(|daemons| daemons.sort_by_key(|daemon| daemon.pid));
    file_systems.sort_by(|one, other| one[0].info.source.cmp(&other[0].info.source));
    file_systems
}

/// What all daemons answer. One that ended since it was found, or hangs, is left out with a
/// warning: the others, which know nothing of it, can be looked at and set all the same. That none
/// answers is an error, and so is a refusal of any.
pub fn ask_all<'d>(daemons: &[&'d Daemon], request: &CtlRequest) -> anyhow::Result<Vec<(&'d Daemon, CtlReply)>> {
    let mut replies = Vec::new();
    let mut silent = Vec::new();
    for daemon in daemons {
        match daemon.answer(request) {
            Ok(reply) => replies.push((*daemon, accepted(reply)?)),
            Err(error) => silent.push(error),
        }
    }
    if replies.is_empty()
        && let Some(error) = silent.pop()
    {
        return Err(error);
    }
    silent.iter().for_each(|error| eprintln!("stria: warning: {error:#}"));
    Ok(replies)
}

/// For requests that concern a whole file system: any of its daemons passes them on.
pub fn done_by_any(daemons: &[&Daemon], request: &CtlRequest) -> anyhow::Result<()> {
    let mut last = None;
    for daemon in daemons {
        match daemon.ask(request) {
            Ok(reply) => {
                if let CtlReply::Warned(warning) = reply {
                    eprintln!("stria: warning: {warning}");
                }
                return Ok(());
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("a file system has at least one daemon"))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, sync::Arc, time::Duration};

    use super::{
        super::socket::{ControlSocket, Responder},
        *,
    };

    /// Has no parameters, and refuses everything else.
    struct Plain;

    impl Responder for Plain {
        fn respond(&self, request: CtlRequest) -> CtlReply {
            match request {
                CtlRequest::Get { .. } => CtlReply::Parameters(Vec::new()),
                other => CtlReply::Error(format!("not here: {other:?}")),
            }
        }
    }

    fn at(path: PathBuf) -> Daemon {
        Daemon { pid: 1, path, info: DaemonInfo::default() }
    }

    #[test]
    fn daemons_that_end_while_they_are_asked_are_left_out() {
        let place = tempfile::tempdir().unwrap();
        let _socket = ControlSocket::open(place.path(), Arc::new(Plain)).unwrap();
        let there = at(socket::daemons(place.path()).unwrap().remove(0).1);
        let [gone, dead, mute] = ["1.sock", "2.sock", "3.sock"].map(|name| at(place.path().join(name)));
        drop(UnixListener::bind(&dead.path).unwrap());
        let listener = UnixListener::bind(&mute.path).unwrap();
        let ending = std::thread::spawn(move || drop(listener.accept()));
        let get = CtlRequest::Get { pattern: "*".into() };
        let replies = ask_all(&[&gone, &dead, &mute, &there], &get).unwrap();
        assert!(matches!(replies[..], [(_, CtlReply::Parameters(_))]));
        ending.join().unwrap();
        let error = ask_all(&[&gone, &dead], &get).unwrap_err();
        assert!(format!("{error:#}").contains("does not answer"), "{error:#}");
        let error = ask_all(&[&gone, &there], &CtlRequest::Targets).unwrap_err();
        assert!(error.to_string().contains("not here"), "{error:#}");
    }

    /// A daemon by process id, identity of its file system and address of its management service.
    fn daemon(pid: u32, fsname: &str, file_system: Option<&str>, mgs: Option<&str>) -> Daemon {
        let info = DaemonInfo {
            fsname: fsname.to_owned(),
            file_system: file_system.map(str::to_owned),
            mgs: mgs.map(str::to_owned),
            source: format!("{}:/{fsname}", mgs.unwrap_or("/srv")),
            role: "stria serve".to_owned(),
        };
        Daemon { pid, path: PathBuf::new(), info }
    }

    fn pids(daemons: Vec<Daemon>) -> Vec<Vec<u32>> {
        let grouped = by_file_system(daemons).into_iter();
        grouped.map(|daemons| daemons.iter().map(|daemon| daemon.pid).collect()).collect()
    }

    #[test]
    fn file_systems_are_told_apart_by_their_identity() {
        let one = || daemon(1, "stria", Some("a"), Some("10.0.0.1:988"));
        let by_name = daemon(2, "stria", Some("a"), Some("mgs:988"));
        let other = || daemon(3, "stria", Some("b"), Some("10.0.0.2:988"));
        assert_eq!(pids(vec![by_name, other(), one()]), [vec![1, 2], vec![3]]);
        // One that knows nothing yet belongs where its management service is, and nowhere else.
        let young = |mgs| daemon(4, "stria", None, mgs);
        assert_eq!(pids(vec![young(Some("10.0.0.2:988")), one(), other()]), [vec![1], vec![3, 4]]);
        assert_eq!(pids(vec![young(Some("10.1.0.2:988,10.0.0.2:988")), one(), other()]), [vec![1], vec![3, 4]]);
        assert_eq!(pids(vec![young(Some("10.0.0.3:988")), one()]), [vec![1], vec![4]]);
        assert_eq!(pids(vec![young(None), one()]).len(), 2);
        assert_eq!(pids(vec![daemon(5, "other", None, Some("10.0.0.1:988")), one()]).len(), 2);
    }

    #[test]
    fn what_changes_something_must_name_one_of_several_file_systems() {
        let daemons =
            |file_systems: Vec<Daemon>| Daemons { file_systems: by_file_system(file_systems), silent: vec![] };
        let one = || daemon(1, "stria", Some("a"), Some("10.0.0.1:988"));
        assert_eq!(daemons(vec![one()]).of_one("set_param", None).unwrap().len(), 1);
        let several = daemons(vec![one(), daemon(2, "stria", Some("b"), None), daemon(3, "work", Some("c"), None)]);
        let refused = several.of_one("set_param", None).unwrap_err().to_string();
        let expected = "\
set_param: daemons of several file systems run here; select one with --fs or --run-dir:
  --fs /srv:/stria          stria serve, process 2
  --fs work                 stria serve, process 3
  --fs 10.0.0.1:988:/stria  stria serve, process 1";
        assert_eq!(refused, expected);
        assert_eq!(several.of_one("pool_new", Some("work")).unwrap()[0].pid, 3);
        several.of_one("pool_new", Some("stria")).unwrap_err();
        let unknown = several.of_one("pool_new", Some("none")).unwrap_err().to_string();
        assert_eq!(unknown, "no daemon on this host belongs to file system 'none'");
    }

    /// The one that does not answer may be the only one of the file system that is meant.
    #[test]
    fn nothing_is_changed_by_guess_while_a_daemon_does_not_answer() {
        let one = daemon(1, "stria", Some("a"), Some("10.0.0.1:988"));
        let daemons = Daemons { file_systems: by_file_system(vec![one]), silent: vec![7] };
        let expected = "\
set_param: a daemon that does not answer (process 7) may belong to another file system; select one with --fs or --run-dir:
  --fs stria  stria serve, process 1";
        assert_eq!(daemons.of_one("set_param", None).unwrap_err().to_string(), expected);
        daemons.of_one("pool_new", Some("stria")).unwrap_err();
    }

    #[test]
    fn a_daemon_that_hangs_is_told_from_one_that_ended() {
        let place = tempfile::tempdir().unwrap();
        let hung = place.path().join("7.sock");
        let _listener = UnixListener::bind(&hung).unwrap();
        let begun = std::time::Instant::now();
        let error = socket::ask_for(&hung, &CtlRequest::Describe, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < socket::TIMEOUT);
        let gone = described(8, place.path().join("8.sock"));
        assert!(matches!(gone, Described::Gone));
    }
}
