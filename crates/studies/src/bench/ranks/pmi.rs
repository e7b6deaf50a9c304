//! A rank's side of PMI-1, the protocol by which process managers such as MPICH's Hydra let the
//! processes that they start find each other. Requests and replies are lines of `name=value`, on
//! the descriptor that `PMI_FD` names:
//!
//! ```text
//!   cmd=init pmi_version=1 pmi_subversion=1     cmd=response_to_init ... rc=0
//!   cmd=get_maxes                               cmd=maxes kvsname_max=.. keylen_max=.. vallen_max=..
//!   cmd=get_my_kvsname                          cmd=my_kvsname kvsname=..
//!   cmd=put kvsname=.. key=.. value=..          cmd=put_result rc=0 msg=..
//!   cmd=barrier_in                              cmd=barrier_out, when all ranks are in
//!   cmd=get kvsname=.. key=..                   cmd=get_result rc=0 msg=.. value=..
//!   cmd=finalize                                cmd=finalize_ack
//! ```
//!
//! What a rank has put, others get after the next barrier. Values have no blanks on the wire: they
//! are sent as hexadecimal digits.
//!
//! Life cycle: a rank that ends without `finalize` has failed, and its process manager ends the
//! others.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use anyhow::{Context, ensure};
use rustix::io::FdFlags;

/// Descriptor of the connection.
pub const FD: &str = "PMI_FD";
/// Number of this process, from 0 on.
pub const RANK: &str = "PMI_RANK";
/// Number of processes.
pub const SIZE: &str = "PMI_SIZE";
/// More than any process manager sends in a line.
pub const LINE_BYTES_MAX: u64 = 16 << 10;

/// The connection of this process to its process manager.
pub struct Pmi {
    lines: BufReader<File>,
    rank: usize,
    size: usize,
    /// Of the space in which this job's values are.
    space: String,
    value_bytes_max: usize,
    /// Barriers so far: keys are never used again.
    barriers: u64,
}

impl Pmi {
    /// That of this process, once; `None` if no process manager has started it.
    pub fn from_environment() -> anyhow::Result<Option<Self>> {
        let number = |name: &str| -> anyhow::Result<Option<RawFd>> {
            let Ok(text) = std::env::var(name) else { return Ok(None) };
            text.parse().map(Some).with_context(|| format!("the process manager set {name} to '{text}'"))
        };
        let (Some(fd), Some(rank), Some(size)) = (number(FD)?, number(RANK)?, number(SIZE)?) else { return Ok(None) };
        ensure!(fd > 2 && (0..size).contains(&rank), "the process manager set {RANK} to {rank}, {SIZE} to {size}");
        // SAFETY: only asked whether it is open, and kept from the processes that this one starts.
        rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::CLOEXEC)
            .with_context(|| format!("{FD}={fd} is not open: does mpirun use the protocol PMI-1?"))?;
        // SAFETY: it is open, and the process manager made it for this code alone.
        let connection = unsafe { OwnedFd::from_raw_fd(fd) };
        let pmi = Self::begin(connection, rank as usize, size as usize);
        pmi.context("cannot speak to the process manager").map(Some)
    }

    /// Begins to speak as this rank.
    pub fn begin(connection: OwnedFd, rank: usize, size: usize) -> io::Result<Self> {
        let lines = BufReader::new(File::from(connection));
        let mut pmi = Self { lines, rank, size, space: String::new(), value_bytes_max: 0, barriers: 0 };
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = pmi.ask("cmd=get_maxes", "maxes")?;
        pmi.value_bytes_max = required(&maxes, "vallen_max")?.parse().map_err(io::Error::other)?;
        let named = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        pmi.space = required(&named, "kvsname")?.to_owned();
        Ok(pmi)
    }

    /// Number of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Tells a rank something, once before each barrier; it knows after that.
    pub fn give_to(&mut self, rank: usize, text: &str) -> io::Result<()> {
        let mut value = String::with_capacity(text.len() * 2);
        text.bytes().for_each(|byte| write!(value, "{byte:02x}").expect("writing to a string"));
        // One byte is for its end.
        if value.len() >= self.value_bytes_max {
            return Err(io::Error::other(format!(
                "{} bytes for rank {rank}; the process manager passes on {}",
                text.len(),
                self.value_bytes_max / 2
            )));
        }
        let key = self.key(self.barriers, self.rank, rank);
        self.ask(&format!("cmd=put kvsname={} key={key} value={value}", self.space), "put_result").map(drop)
    }

    /// Waits until all ranks are here.
    pub fn barrier(&mut self) -> io::Result<()> {
        self.ask("cmd=barrier_in", "barrier_out")?;
        self.barriers += 1;
        Ok(())
    }

    /// What a rank told this one before the last barrier.
    pub fn value_from(&mut self, rank: usize) -> io::Result<String> {
        let key = self.key(self.barriers.saturating_sub(1), rank, self.rank);
        let reply = self.ask(&format!("cmd=get kvsname={} key={key}", self.space), "get_result")?;
        let digits = required(&reply, "value")?.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| unexpected(&reply))
    }

    /// All is done.
    pub fn finalize(mut self) -> io::Result<()> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }

    fn key(&self, barrier: u64, from: usize, to: usize) -> String {
        format!("stria.{barrier}.{from}.{to}")
    }

    /// A request, and its reply, which has to be of this kind.
    fn ask(&mut self, request: &str, kind: &str) -> io::Result<String> {
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut reply = String::new();
        if self.lines.by_ref().take(LINE_BYTES_MAX).read_line(&mut reply)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process manager has ended the job"));
        }
        let is_good = field(&reply, "rc").is_none_or(|code| code == "0");
        match field(&reply, "cmd") == Some(kind) && is_good {
            true => Ok(reply),
            false => Err(unexpected(&reply)),
        }
    }
}

/// The value of a name in a line.
pub fn field<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn required<'l>(line: &'l str, name: &str) -> io::Result<&'l str> {
    field(line, name).ok_or_else(|| unexpected(line))
}

fn unexpected(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the process manager answered '{}'", line.trim_end()))
}
