//! E2 with tuners: whether they find the best of the numbers that the sweep compares, with real
//! servers and clients.
//!
//! A *cell* is a load (clients and threads on each, writing or reading). It runs with fixed numbers
//! and with tuners: of the server (clients keep as many requests in flight as they do by default),
//! of the clients (the server limits nothing), and of both. `contract` says what must come out;
//! `course` is one run.

pub mod contract;
pub mod course;

use course::{Access, MOST, Number, Plan, REQUEST_BYTES, Stage};

use super::e2::{FINE, Load};

/// Virtual seconds of a run with tuners: the search, and what follows.
pub const TUNED_SECONDS: usize = 60;
/// Virtual seconds of a run with fixed numbers.
pub const FIXED_SECONDS: usize = 25;
/// Virtual seconds of a load that changes into another one.
pub const STAGE_SECONDS: usize = 60;
/// Where tuners begin.
pub const STARTS: [u16; 2] = [1, MOST];
/// As shipped: more service threads than anything here needs.
const SHIPPED: Setting = Setting { threads: Number::Fixed(256), in_flight: Number::Fixed(64) };

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Clients and threads on each.
    pub load: Load,
    /// What they do.
    pub access: Access,
}

/// What is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Service threads.
    Server,
    /// Requests in flight.
    Clients,
    /// Both.
    Both,
}

/// Numbers of the server and of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Service threads of `ost_io`.
    pub threads: Number,
    /// Requests in flight from each client to each OST.
    pub in_flight: Number,
}

/// A run of one or several loads, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The loads: one, or what it changes into.
    pub cells: Vec<Cell>,
    /// The numbers.
    pub setting: Setting,
}

impl Cell {
    /// Its name: `8x16 write`.
    pub fn name(self) -> String {
        let access = if self.access == Access::Write { "write" } else { "read" };
        format!("{} {access}", self.load.name())
    }
}

impl Subject {
    /// All of them.
    pub const ALL: [Subject; 3] = [Subject::Server, Subject::Clients, Subject::Both];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Server => "server",
            Subject::Clients => "clients",
            Subject::Both => "both",
        }
    }

    /// The fixed settings that its tuners are compared with.
    pub fn fixed(self) -> Vec<Setting> {
        let fixed =
            |threads, in_flight| Setting { threads: Number::Fixed(threads), in_flight: Number::Fixed(in_flight) };
        match self {
            Subject::Server => FINE.map(|threads| fixed(threads, MOST)).to_vec(),
            Subject::Clients => FINE.map(|in_flight| fixed(MOST, in_flight)).to_vec(),
            Subject::Both => {
                FINE.into_iter().flat_map(|one| [fixed(one, MOST), fixed(MOST, one), fixed(one, one)]).collect()
            }
        }
    }

    /// The settings from which its tuners begin.
    pub fn tuned(self) -> Vec<Setting> {
        let (fixed, tuned) = (Number::Fixed(MOST), Number::Tuned);
        match self {
            Subject::Server => STARTS.map(|start| Setting { threads: tuned(start), in_flight: fixed }).to_vec(),
            Subject::Clients => STARTS.map(|start| Setting { threads: fixed, in_flight: tuned(start) }).to_vec(),
            Subject::Both => {
                let with =
                    |threads| STARTS.map(|in_flight| Setting { threads: tuned(threads), in_flight: tuned(in_flight) });
                STARTS.into_iter().flat_map(with).collect()
            }
        }
    }
}

impl Setting {
    /// Its name: `s=12 c=20`, where what is tuned has its start and an arrow.
    pub fn name(self) -> String {
        let number = |number| match number {
            Number::Fixed(count) => count.to_string(),
            Number::Tuned(start) => format!("{start}->"),
        };
        format!("s={} c={}", number(self.threads), number(self.in_flight))
    }

    /// Whether all that is tuned begins with the most.
    fn begins_with_most(self) -> bool {
        [self.threads, self.in_flight].iter().all(|number| !matches!(number, Number::Tuned(start) if *start < MOST))
    }

    /// Whether a tuner changes any of them.
    pub fn is_tuned(self) -> bool {
        [self.threads, self.in_flight].iter().any(|number| matches!(number, Number::Tuned(_)))
    }
}

impl Run {
    /// Its name.
    pub fn name(&self) -> String {
        let cells: Vec<String> = self.cells.iter().map(|cell| cell.name()).collect();
        format!("{}, {}", cells.join(" then "), self.setting.name())
    }

    /// How it is run.
    pub fn plan(&self) -> Option<Plan> {
        let seconds = match (self.cells.len(), self.setting.is_tuned()) {
            (1, false) => FIXED_SECONDS,
            (1, true) => TUNED_SECONDS,
            _ => STAGE_SECONDS,
        };
        let access = self.cells.first()?.access;
        let stage = |cell: &Cell| Stage { seconds, load: cell.load, request_bytes: REQUEST_BYTES };
        Some(Plan {
            stripes: 1,
            access,
            stages: self.cells.iter().map(stage).collect(),
            threads: self.setting.threads,
            in_flight: self.setting.in_flight,
        })
    }
}
