//! E2 with tuners: whether they find the best of the numbers that the sweep compares, with real
//! servers and clients.
//!
//! A *cell* is a load (clients and threads on each, writing or reading a file of some stripes). It
//! runs with fixed numbers and with tuners: of the server (clients keep as many requests in flight
//! as they do by default), of the clients (the server limits nothing), and of both. `contract` says
//! what must come out; `course` is one run.

pub mod contract;
pub mod course;

use course::{Access, IN_FLIGHT_MOST, Number, Plan, REQUEST_BYTES, Stage, THREADS_MOST};

use super::e2::{FINE, IN_FLIGHT, Load, SERVICE_THREADS};

/// Virtual seconds of a load: the search, and what follows.
pub const STAGE_SECONDS: usize = 40;
/// Where tuners begin.
pub const STARTS: [u16; 2] = [1, 64];
/// Service threads if the clients are tuned: the most of the sweep.
const THREADS_FOR_CLIENTS: u16 = 64;
/// As shipped.
const SHIPPED: Setting = Setting { threads: Number::Fixed(THREADS_MOST), in_flight: Number::Fixed(IN_FLIGHT_MOST) };

/// Loads of the study, from few to many streams, on files of one stripe.
pub const CELLS: [Cell; 6] = [
    Cell::new(Load(1, 1), Access::Write),
    Cell::new(Load(1, 16), Access::Write),
    Cell::new(Load(8, 1), Access::Write),
    Cell::new(Load(8, 16), Access::Write),
    Cell::new(Load(8, 1), Access::Read),
    Cell::new(Load(8, 8), Access::Read),
];
/// Loads that change into others, and back: the clients and their threads, and the requests.
pub const CHANGES: [[Cell; 3]; 2] = [[CELLS[2], CELLS[1], CELLS[2]], [CELLS[2], SMALL, CELLS[2]]];
/// Requests of a quarter.
const SMALL: Cell = Cell { request_bytes: REQUEST_BYTES / 4, ..CELLS[2] };

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Clients and threads on each.
    pub load: Load,
    /// What they do.
    pub access: Access,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Stripes of the file.
    pub stripes: u32,
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
    /// The loads: one, or what it changes into. They use the same file.
    pub cells: Vec<Cell>,
    /// The numbers.
    pub setting: Setting,
}

/// What must be run for these loads, and for those that change.
pub fn runs(cells: &[Cell], changes: &[Run]) -> Vec<Run> {
    let of_cell = |cell: Cell| {
        let settings = Subject::ALL.into_iter().flat_map(|subject| subject.fixed().into_iter().chain(subject.tuned()));
        settings.map(move |setting| Run { cells: vec![cell], setting })
    };
    let fixed_of = |run: &Run| -> Vec<Run> {
        let cells = run.cells.iter();
        cells
            .flat_map(|cell| Subject::Both.fixed().into_iter().map(|setting| Run { cells: vec![*cell], setting }))
            .collect()
    };
    let mut all: Vec<Run> = Vec::new();
    let wanted =
        cells.iter().copied().flat_map(of_cell).chain(changes.iter().flat_map(fixed_of)).chain(changes.to_vec());
    for run in wanted {
        if !all.contains(&run) {
            all.push(run);
        }
    }
    all
}

impl Cell {
    const fn new(load: Load, access: Access) -> Self {
        Self { load, access, request_bytes: REQUEST_BYTES, stripes: 1 }
    }

    /// The same load on a file of so many stripes.
    pub fn with_stripes(self, stripes: u32) -> Self {
        Self { stripes, ..self }
    }

    /// Its name: `8x16 write k1`, where 1 is the number of stripes.
    pub fn name(self) -> String {
        let access = if self.access == Access::Write { "write" } else { "read" };
        let size = match self.request_bytes {
            REQUEST_BYTES => String::new(),
            bytes => format!(" of {} KiB", bytes >> 10),
        };
        format!("{} {access}{size} k{}", self.load.name(), self.stripes)
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

    /// The fixed settings that its tuners are compared with: each number of the finer sweep while
    /// the other one limits nothing, and the default; for both also the study's sweep.
    pub fn fixed(self) -> Vec<Setting> {
        let fixed =
            |(threads, in_flight)| Setting { threads: Number::Fixed(threads), in_flight: Number::Fixed(in_flight) };
        let server = FINE.into_iter().chain([THREADS_MOST]).map(|threads| (threads, IN_FLIGHT_MOST));
        let clients = FINE.map(|in_flight| (THREADS_FOR_CLIENTS, in_flight));
        match self {
            Subject::Server => server.map(fixed).collect(),
            Subject::Clients => clients.map(fixed).to_vec(),
            Subject::Both => {
                let study = SERVICE_THREADS.into_iter().flat_map(|threads| IN_FLIGHT.map(|count| (threads, count)));
                server.chain(clients).chain(study).map(fixed).collect()
            }
        }
    }

    /// What it has unless it is changed.
    pub fn default(self) -> Setting {
        match self {
            Subject::Server | Subject::Both => SHIPPED,
            Subject::Clients => Setting { threads: Number::Fixed(THREADS_FOR_CLIENTS), ..SHIPPED },
        }
    }

    /// The settings from which its tuners begin: each from each of the starts, and the server also
    /// from the default.
    pub fn tuned(self) -> Vec<Setting> {
        let (fixed, tuned) = (Number::Fixed, Number::Tuned);
        let setting = |threads, in_flight| Setting { threads, in_flight };
        match self {
            Subject::Server => {
                let starts = STARTS.into_iter().chain([THREADS_MOST]);
                starts.map(|start| setting(tuned(start), fixed(IN_FLIGHT_MOST))).collect()
            }
            Subject::Clients => STARTS.map(|start| setting(fixed(THREADS_FOR_CLIENTS), tuned(start))).to_vec(),
            Subject::Both => {
                let with = |threads| STARTS.map(|in_flight| setting(tuned(threads), tuned(in_flight)));
                let default = setting(tuned(THREADS_MOST), tuned(IN_FLIGHT_MOST));
                STARTS.into_iter().flat_map(with).chain([default]).collect()
            }
        }
    }
}

impl Setting {
    /// Its name: `s=12 c=20`, where `12..` is what a tuner begins with.
    pub fn name(self) -> String {
        let number = |number| match number {
            Number::Fixed(count) => count.to_string(),
            Number::Tuned(start) => format!("{start}.."),
        };
        format!("s={} c={}", number(self.threads), number(self.in_flight))
    }

    /// Whether a tuner changes any of them.
    pub fn is_tuned(self) -> bool {
        [self.threads, self.in_flight].iter().any(|number| matches!(number, Number::Tuned(_)))
    }

    /// Whether what is tuned begins with the defaults, as it does unless another number was set.
    fn is_from_default(self) -> bool {
        matches!(self.threads, Number::Tuned(THREADS_MOST) | Number::Fixed(_))
            && matches!(self.in_flight, Number::Tuned(IN_FLIGHT_MOST) | Number::Fixed(_))
    }
}

impl Run {
    /// A load that changes, with servers and clients tuned: from few and from the defaults.
    pub fn of_change(cells: &[Cell; 3]) -> Vec<Run> {
        let both =
            |threads, in_flight| Setting { threads: Number::Tuned(threads), in_flight: Number::Tuned(in_flight) };
        let settings = [both(STARTS[0], STARTS[0]), both(THREADS_MOST, IN_FLIGHT_MOST)];
        settings.map(|setting| Run { cells: cells.to_vec(), setting }).to_vec()
    }

    /// Its name.
    pub fn name(&self) -> String {
        let cells: Vec<String> = self.cells.iter().map(|cell| cell.name()).collect();
        format!("{}, {}", cells.join(" then "), self.setting.name())
    }

    /// How it is run.
    pub fn plan(&self) -> Option<Plan> {
        let Cell { access, stripes, .. } = *self.cells.first()?;
        let stage = |cell: &Cell| Stage { seconds: STAGE_SECONDS, load: cell.load, request_bytes: cell.request_bytes };
        Some(Plan {
            stripes,
            access,
            stages: self.cells.iter().map(stage).collect(),
            threads: self.setting.threads,
            in_flight: self.setting.in_flight,
        })
    }
}
