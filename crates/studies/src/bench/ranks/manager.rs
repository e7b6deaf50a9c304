//! A process manager: starts this program once for each worker, and serves PMI-1 ([`super::pmi`])
//! to the processes.
//!
//! ```text
//!   thread per process: lines --> one owner of the job's state --> replies
//! ```
//!
//! A process that ends before it said that all is done ends the job: the others are told to stop.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    sync::mpsc,
};

use anyhow::{Context, bail};
use rustix::io::FdFlags;

use super::pmi::{FD, LINE_BYTES_MAX, RANK, SIZE, field};
use crate::bench::leftovers::{Server, clean_up_on_signals};

/// Name of the space in which values are.
const SPACE: &str = "stria";
/// Longest value of a key, of which the reply has to be one line.
const VALUE_BYTES_MAX: usize = 4096;

/// Runs this program's command line in so many processes.
pub fn run(ranks: usize) -> anyhow::Result<()> {
    clean_up_on_signals()?;
    let (mut processes, mut connections) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let (own, its) = UnixStream::pair()?;
        let process = start(rank, ranks, its.into());
        processes.push(process.with_context(|| format!("cannot start process {rank} of {ranks}"))?);
        connections.push(own);
    }
    if let Err(failed) = serve(&connections) {
        // Rank 0 last: the others are clients of what it has started.
        while processes.pop().is_some() {}
        return Err(failed);
    }
    for (rank, process) in processes.iter_mut().enumerate() {
        let status = process.wait()?;
        anyhow::ensure!(status.success(), "process {rank} of {ranks} ended with {status}");
    }
    Ok(())
}

fn start(rank: usize, ranks: usize, connection: OwnedFd) -> anyhow::Result<Server> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's executable")?);
    command.args(std::env::args_os().skip(1)).stdin(Stdio::null());
    let descriptor = connection.as_raw_fd();
    command.env(FD, descriptor.to_string()).env(RANK, rank.to_string()).env(SIZE, ranks.to_string());
    // SAFETY: fcntl is async-signal-safe, and the descriptor is open until the process has started.
    unsafe {
        command.pre_exec(move || Ok(rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(descriptor), FdFlags::empty())?));
    }
    Ok(Server::start(&mut command)?)
}

/// Serves a job until all ranks have said that all is done, or one has failed.
fn serve(connections: &[UnixStream]) -> anyhow::Result<()> {
    let served = serve_all(connections);
    // Threads that listen end, and ranks that still wait.
    connections.iter().for_each(|connection| drop(connection.shutdown(Shutdown::Both)));
    served
}

fn serve_all(connections: &[UnixStream]) -> anyhow::Result<()> {
    let mut job = Job { ranks: connections.len(), ..Job::default() };
    let (tell, told) = mpsc::channel();
    for (rank, connection) in connections.iter().enumerate() {
        let input = BufReader::new(connection.try_clone()?);
        let tell = tell.clone();
        std::thread::spawn(move || listen(input, |said| tell.send((rank, said)).is_ok()));
    }
    while job.done.len() < job.ranks {
        match told.recv()? {
            (rank, Some(line)) => {
                let replies = job.said(rank, &line).with_context(|| format!("process {rank}"))?;
                for (to, reply) in replies {
                    // One that has ended is heard of next.
                    let _ = (&connections[to]).write_all(format!("{reply}\n").as_bytes());
                }
            }
            (rank, None) if !job.done.contains(&rank) => bail!("process {rank} has failed; see above"),
            (_, None) => {}
        }
    }
    Ok(())
}

/// Passes on each line, and that there are no more.
fn listen(mut input: BufReader<UnixStream>, mut pass_on: impl FnMut(Option<String>) -> bool) {
    loop {
        let mut line = String::new();
        let ended = !matches!(input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line), Ok(1..));
        if !pass_on((!ended).then_some(line)) || ended {
            return;
        }
    }
}

/// What ranks have said.
#[derive(Default)]
struct Job {
    ranks: usize,
    values: BTreeMap<String, String>,
    /// Ranks that wait for the others.
    at_barrier: Vec<usize>,
    done: Vec<usize>,
}

impl Job {
    /// What a line of a rank leads to: lines for ranks.
    fn said(&mut self, rank: usize, line: &str) -> io::Result<Vec<(usize, String)>> {
        let one = |reply: String| Ok(vec![(rank, reply)]);
        match field(line, "cmd") {
            Some("init") => one("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned()),
            Some("get_maxes") => one(format!("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={VALUE_BYTES_MAX}")),
            Some("get_my_kvsname") => one(format!("cmd=my_kvsname kvsname={SPACE}")),
            Some("put") => {
                let (Some(key), Some(value)) = (field(line, "key"), field(line, "value")) else {
                    return Err(refused(line));
                };
                self.values.insert(key.to_owned(), value.to_owned());
                one("cmd=put_result rc=0 msg=success".to_owned())
            }
            Some("get") => match field(line, "key").and_then(|key| self.values.get(key)) {
                Some(value) => one(format!("cmd=get_result rc=0 msg=success value={value}")),
                None => one("cmd=get_result rc=-1 msg=key_not_found".to_owned()),
            },
            Some("barrier_in") => {
                self.at_barrier.push(rank);
                match self.at_barrier.len() == self.ranks {
                    true => Ok(self.at_barrier.drain(..).map(|rank| (rank, "cmd=barrier_out".to_owned())).collect()),
                    false => Ok(Vec::new()),
                }
            }
            Some("finalize") => {
                self.done.push(rank);
                one("cmd=finalize_ack".to_owned())
            }
            _ => Err(refused(line)),
        }
    }
}

fn refused(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it said '{}'", line.trim_end()))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{super::pmi::Pmi, *};

    /// Ranks that do this, and what the process manager says.
    fn job(ranks: usize, work: impl Fn(Pmi) -> io::Result<()> + Sync) -> anyhow::Result<()> {
        let pairs: Vec<_> = (0..ranks).map(|_| UnixStream::pair().unwrap()).collect();
        let (own, its): (Vec<_>, Vec<_>) = pairs.into_iter().map(|(own, its)| (own, OwnedFd::from(its))).unzip();
        let own: Vec<UnixStream> = own;
        thread::scope(|scope| {
            let work = &work;
            for (rank, connection) in its.into_iter().enumerate() {
                scope.spawn(move || {
                    let ended = work(Pmi::begin(connection, rank, ranks)?);
                    ended.unwrap_or_else(|error| eprintln!("rank {rank}: {error}"));
                    io::Result::Ok(())
                });
            }
            serve(&own)
        })
    }

    #[test]
    fn ranks_tell_each_other_what_they_have_to_say_before_a_barrier() {
        let ended = job(3, |mut pmi| {
            let (rank, size) = (pmi.rank(), pmi.size());
            for round in 0..4 {
                for other in (0..size).filter(|other| *other != rank) {
                    pmi.give_to(other, &format!("round {round}: {rank} = ä to\n{other}"))?;
                }
                pmi.barrier()?;
                for other in (0..size).filter(|other| *other != rank) {
                    assert_eq!(pmi.value_from(other)?, format!("round {round}: {other} = ä to\n{rank}"));
                }
            }
            let nothing = pmi.value_from(rank).unwrap_err().to_string();
            assert!(nothing.contains("key_not_found"), "{nothing}");
            let long = pmi.give_to(0, &"x".repeat(VALUE_BYTES_MAX)).unwrap_err().to_string();
            assert!(long.contains("passes on 2048"), "{long}");
            pmi.finalize()
        });
        ended.unwrap();
    }

    #[test]
    fn no_rank_passes_a_barrier_before_all_have_come() {
        let came = std::sync::atomic::AtomicUsize::new(0);
        job(4, |mut pmi| {
            for round in 1..=8 {
                came.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                pmi.barrier()?;
                assert!(came.load(std::sync::atomic::Ordering::SeqCst) >= 4 * round, "round {round}");
                pmi.barrier()?;
            }
            pmi.finalize()
        })
        .unwrap();
    }

    #[test]
    fn a_rank_that_ends_early_ends_the_job() {
        let failed = job(2, |mut pmi| match pmi.rank() {
            // The other one waits, and is told by the end of its connection.
            0 => {
                let ended = pmi.barrier().unwrap_err();
                assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
                Ok(())
            }
            _ => Ok(()),
        });
        assert_eq!(failed.unwrap_err().to_string(), "process 1 has failed; see above");
        let mut job = Job { ranks: 1, ..Job::default() };
        for line in ["cmd=put kvsname=stria key=a", "cmd=spawn", "", "cmd"] {
            assert!(job.said(0, line).is_err(), "{line}");
        }
    }
}
