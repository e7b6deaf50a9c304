//! E2, service threads under direct I/O (Han et al., Seoul National University): how many requests
//! a server executes at once and how many a client has in flight, against the rate of writes. One
//! MDS, one OSS with 4 OSTs on RAID 6 of 8 and 2 drives, up to 8 clients.
//!
//! A cell is a load (clients and threads on each), a stripe count and a setting: `s` service
//! threads of `ost_io`, and `c` requests in flight from each client to each OST. The study's `c`
//! are Lustre's client threads for RPCs; StriaFS has none, so the limit is what comes closest
//! (docs/studies.md).

use layout::StripeCount;

use super::{
    Job, Pattern, Scale, Striping, Study,
    shape::{EQUAL_WITHIN, Finding, Rates},
};

/// OSTs of the only OSS.
pub const OSTS: u16 = 4;
/// Cores of the OSS, and of each client.
pub const SERVER_CORES: u32 = 12;
/// See [`SERVER_CORES`].
pub const CLIENT_CORES: u32 = 20;

const MIB: u64 = 1 << 20;
/// Bytes of a call of IOR.
const TRANSFER_BYTES: u64 = 64 * MIB;
/// Bytes of all tasks together, as published: 16 GB for one, 128 MB for each of 128.
const BYTES: u64 = 16 << 30;
/// Least bytes of all tasks together: enough for the rates to be steady.
const BYTES_MIN: u64 = 1 << 30;

/// Service threads of the sweep, ...
pub const SERVICE_THREADS: [u16; 3] = [4, 8, 12];
/// ... and requests in flight from a client.
pub const IN_FLIGHT: [u16; 3] = [4, 8, 20];
/// Numbers of the finer sweep, for both.
pub const FINE: [u16; 7] = [1, 2, 4, 8, 16, 32, 64];
const STRIPES: [u32; 4] = [1, 2, 3, 4];
/// Clients, and threads on each.
const LOADS: [Load; 6] = [Load(1, 1), Load(1, 8), Load(1, 16), Load(8, 1), Load(8, 8), Load(8, 16)];
/// Loads in which the study found large gains.
const GAINING: [Load; 3] = [Load(1, 8), Load(1, 16), Load(8, 1)];

/// One per core: what servers and clients start with.
const DEFAULT: Setting = Setting { service_threads: 12, in_flight: 20 };
/// Two thirds of the server's cores, and a fifth of the client's.
const BEST: Setting = Setting { service_threads: 8, in_flight: 4 };

/// Where the study's writes saturate with one or two stripes, in MiB/s.
const SATURATION: f64 = 800e6 / MIB as f64;
/// How close to the worst is "nearly".
const NEARLY: f64 = 0.10;

/// Clients, and threads on each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load(pub u16, pub u16);

/// What is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Requests that service `ost_io` executes at once.
    pub service_threads: u16,
    /// Requests in flight from a client to an OST.
    pub in_flight: u16,
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Clients and their threads.
    pub load: Load,
    /// Stripes of the file.
    pub stripes: u32,
    /// What is tuned.
    pub setting: Setting,
}

impl Load {
    /// Client hosts.
    pub fn clients(self) -> u16 {
        self.0
    }

    /// Threads of each client.
    pub fn threads(self) -> u16 {
        self.1
    }

    fn tasks(self) -> u32 {
        u32::from(self.0) * u32::from(self.1)
    }

    /// Its name: `8x16`.
    pub fn name(self) -> String {
        format!("{}x{}", self.0, self.1)
    }
}

impl Setting {
    const fn pair(self) -> (u16, u16) {
        (self.service_threads, self.in_flight)
    }

    fn all() -> impl Iterator<Item = Setting> {
        let with = |service_threads| IN_FLIGHT.map(|in_flight| Setting { service_threads, in_flight });
        SERVICE_THREADS.into_iter().flat_map(with)
    }
}

impl Cell {
    fn new(load: Load, stripes: u32, setting: Setting) -> Self {
        Self { load, stripes, setting }
    }

    /// Name of its job: `8x16 k1 s12 c20`.
    fn name(self) -> String {
        let Cell { load, stripes, setting: Setting { service_threads, in_flight } } = self;
        format!("{} k{stripes} s{service_threads} c{in_flight}", load.name())
    }

    /// The cell of a job.
    pub fn of(job: &Job) -> Option<Cell> {
        cells().into_iter().chain(fine_cells()).find(|cell| cell.name() == job.name)
    }
}

/// The sweep, and what the study shows of 1 to 5 clients with the default.
fn cells() -> Vec<Cell> {
    let sweep = LOADS.into_iter().flat_map(|load| {
        STRIPES
            .into_iter()
            .flat_map(move |stripes| Setting::all().map(move |setting| Cell::new(load, stripes, setting)))
    });
    let mut cells: Vec<Cell> = sweep.collect();
    for cell in few().flat_map(|load| STRIPES.map(|stripes| Cell::new(load, stripes, DEFAULT))) {
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells
}

/// All numbers from 1 to 64 (powers of two) with one stripe.
fn fine_cells() -> impl Iterator<Item = Cell> {
    let settings =
        FINE.into_iter().flat_map(|service_threads| FINE.map(|in_flight| Setting { service_threads, in_flight }));
    LOADS.into_iter().flat_map(move |load| settings.clone().map(move |setting| Cell::new(load, 1, setting)))
}

/// 1 to 5 clients with one or two threads.
fn few() -> impl Iterator<Item = Load> {
    (1..=5).flat_map(|clients| [Load(clients, 1), Load(clients, 2)])
}

/// All cells. Where a task would have less than two calls, calls are smaller.
pub fn sweep(scale: Scale) -> Study {
    let jobs = cells().into_iter().map(|cell| job(cell, scale)).collect();
    Study { name: "e2", scale, osts: u32::from(OSTS), jobs, shape }
}

/// The finer sweep. The study has no statement about it.
pub fn fine_sweep(scale: Scale) -> Study {
    let jobs = fine_cells().map(|cell| job(cell, scale)).collect();
    Study { name: "e2 fine", scale, osts: u32::from(OSTS), jobs, shape: |_, _| Vec::new() }
}

/// What the finer sweep found of a load.
pub struct FineTable {
    /// Name of the load.
    pub load: String,
    /// For each number of service threads that was measured, the rate for each number of requests
    /// in flight of [`FINE`]; NaN for what was not.
    pub rows: Vec<(u16, [f64; FINE.len()])>,
}

/// What the finer sweep found. Loads of which nothing was measured are left out.
pub fn fine_tables(rates: &Rates, phase: &'static str) -> Vec<FineTable> {
    let table = Table(rates);
    let of_load = |load: Load| {
        let rate = |service_threads, in_flight| table.get(phase, load, 1, Setting { service_threads, in_flight });
        let rows = FINE.map(|threads| (threads, FINE.map(|in_flight| rate(threads, in_flight))));
        let rows = rows.into_iter().filter(|(_, rates)| !rates.iter().all(|rate| rate.is_nan()));
        FineTable { load: load.name(), rows: rows.collect() }
    };
    LOADS.map(of_load).into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// The same as text: a line for each number of service threads.
pub fn fine_lines(tables: &[FineTable], phase: &str) -> Vec<String> {
    let columns = FINE.map(|in_flight| format!("{:>6}", format!("c={in_flight}"))).concat();
    let mut lines = Vec::new();
    for table in tables {
        lines.push(format!("{:<14}{columns}", format!("{}, {phase}", table.load)));
        for (service_threads, rates) in &table.rows {
            let shown = |rate: f64| if rate.is_nan() { "-".to_owned() } else { format!("{rate:.0}") };
            let row = rates.map(|rate| format!("{:>6}", shown(rate))).concat();
            lines.push(format!("{:<14}{row}", format!("s={service_threads}")));
        }
    }
    lines
}

fn job(cell: Cell, scale: Scale) -> Job {
    let tasks = cell.load.tasks();
    let task_bytes = ((BYTES / scale.bytes).max(BYTES_MIN) / u64::from(tasks)).next_multiple_of(MIB);
    Job {
        name: cell.name(),
        setting: format!("{:?}, {:?}", cell.load, cell.setting),
        striping: Striping::plain(StripeCount::Exactly(cell.stripes), MIB),
        pattern: Pattern::Shared,
        tasks,
        task_bytes,
        transfer_bytes: TRANSFER_BYTES.min((task_bytes / 2).next_multiple_of(MIB)),
    }
}

/// Names of the loads of the sweep.
pub fn loads() -> Vec<String> {
    LOADS.map(Load::name).to_vec()
}

/// Rates of some settings with one stripe, by load: the fewest, the study's best, the default and
/// what is between.
pub fn bars(rates: &Rates, phase: &'static str) -> Vec<(String, Vec<f64>)> {
    let corners = [(4, 4), BEST.pair(), (8, 20), (12, 4), DEFAULT.pair()];
    let settings = corners.map(|(service_threads, in_flight)| Setting { service_threads, in_flight });
    let table = Table(rates);
    let bar = |setting: Setting| {
        let Setting { service_threads, in_flight } = setting;
        let values = LOADS.map(|load| table.get(phase, load, 1, setting)).to_vec();
        (format!("s={service_threads}, c={in_flight}"), values)
    };
    settings.map(bar).to_vec()
}

/// What the study's best setting writes with one stripe, in percent of what the default does, by
/// load.
pub fn of_default(rates: &Rates) -> Vec<f64> {
    LOADS.map(|load| (1.0 + Table(rates).gain(load, 1)) * 100.0).to_vec()
}

/// Rates by cell.
struct Table<'a>(&'a Rates);

impl Table<'_> {
    fn get(&self, phase: &'static str, load: Load, stripes: u32, setting: Setting) -> f64 {
        self.0.get(&Cell::new(load, stripes, setting).name(), phase)
    }

    /// Lowest and highest rate of all settings.
    fn range(&self, phase: &'static str, load: Load, stripes: u32) -> (f64, f64) {
        let names: Vec<String> = Setting::all().map(|setting| Cell::new(load, stripes, setting).name()).collect();
        self.0.range(phase, &names)
    }

    /// What [`BEST`] writes more than [`DEFAULT`], as a part of it.
    fn gain(&self, load: Load, stripes: u32) -> f64 {
        self.get("write", load, stripes, BEST) / self.get("write", load, stripes, DEFAULT) - 1.0
    }
}

fn shape(_: &Study, rates: &Rates) -> Vec<Finding> {
    let table = Table(rates);
    let mut findings = Vec::new();
    for load in GAINING {
        findings.push(default_is_worst(&table, load));
        findings.push(best_is_best(&table, load));
    }
    findings.extend([
        gains(&table, Load(1, 16), (1.13, 1.13)),
        gains(&table, Load(1, 8), (0.53, 0.53)),
        gains(&table, Load(1, 1), (0.0, 0.0)),
        gains(&table, Load(8, 1), (0.40, 0.71)),
        too_few_lose(&table, Load(8, 8)),
        too_few_lose(&table, Load(8, 16)),
    ]);
    findings.extend(GAINING.map(|load| largest_with_one_stripe(&table, load)));
    findings.extend(LOADS.map(|load| reads_do_not_care(&table, load)));
    findings.extend(saturation(&table));
    findings.extend(readers(&table));
    findings
}

/// Whether the setting matters at all: where all are equal, none is the best or the worst.
fn differ(lowest: f64, highest: f64) -> bool {
    highest > lowest * (1.0 + NEARLY)
}

fn default_is_worst(table: &Table<'_>, load: Load) -> Finding {
    let (lowest, highest) = table.range("write", load, 1);
    let default = table.get("write", load, 1, DEFAULT);
    Finding {
        sentence: format!("{}: the default (s=12, c=20) is the worst for writes, or nearly so", load.name()),
        holds: default <= lowest * (1.0 + NEARLY) && differ(lowest, highest),
        results: format!("{default:.0} MiB/s, the worst {lowest:.0}"),
    }
}

fn best_is_best(table: &Table<'_>, load: Load) -> Finding {
    let (lowest, highest) = table.range("write", load, 1);
    let best = table.get("write", load, 1, BEST);
    Finding {
        sentence: format!("{}: s=8, c=4 is best for writes", load.name()),
        holds: best >= highest * (1.0 - EQUAL_WITHIN) && differ(lowest, highest),
        results: format!("{best:.0} MiB/s, the best {highest:.0}"),
    }
}

/// Holds from half of what was published to one and a half times as much.
fn gains(table: &Table<'_>, load: Load, published: (f64, f64)) -> Finding {
    let gain = table.gain(load, 1);
    let (least, most) = (published.0 * 0.5 - NEARLY, published.1 * 1.5 + NEARLY);
    let said = match published {
        (0.0, 0.0) => "about as much as".to_owned(),
        (low, high) if low == high => format!("{:.0}% more than", low * 100.0),
        (low, high) => format!("{:.0} to {:.0}% more than", low * 100.0, high * 100.0),
    };
    Finding {
        sentence: format!("{}: s=8, c=4 writes {said} the default", load.name()),
        holds: (least..=most).contains(&gain),
        results: format!("{:+.0}%; {:+.0} to {:+.0}% hold", gain * 100.0, least * 100.0, most * 100.0),
    }
}

/// With as many service threads as are best.
fn too_few_lose(table: &Table<'_>, load: Load) -> Finding {
    let name = |in_flight| Cell::new(load, 1, Setting { in_flight, ..BEST }).name();
    let (_, most) = table.0.range("write", &IN_FLIGHT.map(name));
    let loss = 1.0 - table.get("write", load, 1, Setting { in_flight: IN_FLIGHT[0], ..BEST }) / most;
    Finding {
        sentence: format!("{}: too few client threads lose up to 12 or 13% (c=4, s=8)", load.name()),
        holds: (0.05..=0.20).contains(&loss),
        results: format!("{:.0}%", loss * 100.0),
    }
}

fn largest_with_one_stripe(table: &Table<'_>, load: Load) -> Finding {
    let gains = STRIPES.map(|stripes| table.gain(load, stripes));
    let shown: Vec<String> = gains.iter().map(|gain| format!("{:+.0}%", gain * 100.0)).collect();
    Finding {
        sentence: format!("{}: the gain is largest with one stripe", load.name()),
        holds: gains[0] > EQUAL_WITHIN && gains[1..].iter().all(|gain| *gain <= gains[0]),
        results: format!("with 1 to 4 stripes {}", shown.join(", ")),
    }
}

fn reads_do_not_care(table: &Table<'_>, load: Load) -> Finding {
    let (lowest, highest) = table.range("read", load, 1);
    Finding {
        sentence: format!("{}: reads do not depend on the setting", load.name()),
        holds: lowest >= highest * (1.0 - NEARLY),
        results: format!("{lowest:.0} to {highest:.0} MiB/s"),
    }
}

/// Of 1 to 5 clients with one or two threads and the default.
fn saturation(table: &Table<'_>) -> [Finding; 2] {
    let most = |stripes: [u32; 2]| {
        let names = few().flat_map(|load| stripes.map(|stripes| Cell::new(load, stripes, DEFAULT).name()));
        table.0.range("write", &names.collect::<Vec<_>>()).1
    };
    let (few, many) = (most([1, 2]), most([3, 4]));
    let results = |rate: f64| format!("{rate:.0} MiB/s at most; 800 MB/s are {SATURATION:.0} MiB/s");
    [
        Finding {
            sentence: "writes saturate near 800 MB/s with 1 or 2 stripes".to_owned(),
            holds: (0.85..=1.15).contains(&(few / SATURATION)),
            results: results(few),
        },
        Finding {
            sentence: "writes pass 800 MB/s with 3 or 4 stripes".to_owned(),
            holds: many > SATURATION * (1.0 + EQUAL_WITHIN) && many > few,
            results: results(many),
        },
    ]
}

fn readers(table: &Table<'_>) -> [Finding; 2] {
    let rate = |clients| table.get("read", Load(clients, 1), 1, DEFAULT);
    let (one, two, five) = (rate(1), rate(2), rate(5));
    let results = format!("1, 2 and 5 clients: {one:.0}, {two:.0} and {five:.0} MiB/s");
    [
        Finding {
            sentence: "two readers are slower than one".to_owned(),
            holds: two < one * (1.0 - EQUAL_WITHIN),
            results: results.clone(),
        },
        Finding {
            sentence: "more than two readers scale again".to_owned(),
            holds: five > two * (1.0 + EQUAL_WITHIN),
            results,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Outcome;

    const GIB: f64 = (1 << 30) as f64;

    /// Outcomes in which every rate is as this says.
    fn outcomes(rate: impl Fn(Cell, &'static str) -> f64) -> Vec<Outcome> {
        let outcome = |cell: Cell, phase| Outcome {
            job: cell.name(),
            phase,
            bytes: 1 << 30,
            operations: 1,
            seconds: GIB / MIB as f64 / rate(cell, phase),
        };
        cells().into_iter().flat_map(|cell| ["write", "read"].map(|phase| outcome(cell, phase))).collect()
    }

    #[test]
    fn every_cell_is_found_by_its_job_and_tasks_have_two_calls() {
        let study = sweep(Scale { bytes: 1024, ..Scale::FULL });
        assert_eq!(study.jobs.len(), 6 * 4 * 9 + 4 * 9, "1x1 is part of the sweep");
        for job in &study.jobs {
            let cell = Cell::of(job).unwrap();
            assert_eq!((cell.name(), cell.load.tasks()), (job.name.clone(), job.tasks));
            assert!(job.bytes() >= BYTES_MIN && job.transfers(0).count() >= 2, "{job:?}");
        }
        let published = sweep(Scale::FULL);
        let of = |name: &str| published.jobs.iter().find(|job| job.name == name).unwrap().task_bytes;
        assert_eq!((of("1x1 k1 s12 c20"), of("8x1 k4 s4 c4"), of("8x16 k2 s8 c8")), (16 << 30, 2 << 30, 128 << 20));
    }

    #[test]
    fn the_finer_sweep_is_shown_as_a_table_for_each_load() {
        let study = fine_sweep(Scale { bytes: 1024, ..Scale::FULL });
        assert!(study.jobs.len() == 6 * 49 && study.indistinguishable().is_empty());
        assert!(study.jobs.iter().all(|job| Cell::of(job).is_some()));
        let rate = |job: &Job| f64::from(Cell::of(job).unwrap().setting.in_flight);
        let outcome = |job: &Job| Outcome {
            job: job.name.clone(),
            phase: "write",
            bytes: 1 << 30,
            operations: 1,
            seconds: 1024.0 / rate(job),
        };
        let outcomes: Vec<Outcome> = study.jobs.iter().map(outcome).collect();
        let lines = fine_lines(&fine_tables(&Rates::of(&outcomes), "write"), "write");
        assert_eq!(lines.len(), 6 * 8);
        assert_eq!(lines[0], "1x1, write       c=1   c=2   c=4   c=8  c=16  c=32  c=64");
        assert_eq!(lines[7], "s=64               1     2     4     8    16    32    64");
    }

    /// As the study has it, or nearly.
    fn published(cell: Cell, phase: &'static str) -> f64 {
        let Cell { load, stripes, setting } = cell;
        if phase == "read" {
            return match (load.tasks(), stripes) {
                (2, _) => 500.0,
                (tasks, _) => 600.0 + 30.0 * f64::from(tasks.min(5)),
            };
        }
        let wide = if stripes > 2 { 900.0 } else { 760.0 };
        let gain = match load {
            Load(1, 16) => 1.13,
            Load(1, 8) => 0.53,
            Load(8, 1) => 0.6,
            _ => 0.0,
        } / f64::from(stripes);
        match load {
            Load(8, 8) | Load(8, 16) if setting.in_flight == 4 => wide * 0.88,
            _ if setting == BEST => wide,
            _ if setting == DEFAULT => wide / (1.0 + gain),
            _ => wide / (1.0 + gain * 0.5),
        }
    }

    #[test]
    fn the_published_shape_holds_and_its_absence_does_not() {
        let study = sweep(Scale { bytes: 1024, ..Scale::FULL });
        let findings = study.findings(&outcomes(published));
        assert_eq!(findings.len(), 6 + 6 + 3 + 6 + 2 + 2);
        assert!(findings.iter().all(|finding| finding.holds), "{findings:#?}");
        // Nothing depends on anything.
        let flat = study.findings(&outcomes(|_, _| 700.0));
        let held: Vec<&str> = flat.iter().filter(|one| one.holds).map(|one| one.sentence.as_str()).collect();
        assert!(held.iter().all(|sentence| !sentence.contains("more") && !sentence.contains("lose")), "{held:?}");
        // What was not measured does not hold.
        assert!(study.findings(&[]).iter().all(|finding| !finding.holds));
    }
}
