//! Keeps idle processors from halting while requests follow one another.
//!
//! A program and the thread that serves it wake each other twice per request, mostly on different
//! processors, because the scheduler prefers an idle one. Linux therefore lets an idle processor of
//! a virtual machine look for work for 200 us before it halts: waking a halted one takes the host
//! tens of microseconds, more than most requests need. Where that is switched off, every request
//! pays for it. A process may ask for processors that do not halt (`/dev/cpu_dma_latency`, which
//! takes the right of root); this one does as long as requests come in bursts, and some
//! milliseconds longer.
//!
//! Invariant: the kernel forgets what was asked for when the file is closed, so also when this
//! process ends in any way.
//!
//! Downside: it concerns all processors of the host, whose idle time is then not free for others: a
//! virtual machine's not for other machines, a physical processor's not for saving energy. So
//! [`IdlePoll::Auto`] asks only where it is worth most and costs least ([`why_not`]).

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    str::FromStr,
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// What takes the longest time that a processor may need to go on.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// Microseconds, as the kernel takes them.
const NO_LATENCY: i32 = 0;
const ANY_LATENCY: i32 = -1;

/// The driver of idle processors of virtual machines, and for how long it polls, in nanoseconds.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const POLLING_DRIVER: &str = "haltpoll";
const POLL_TIME: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// So many requests make a burst, if they come within the time.
const BURST: u64 = 64;
const BURST_TIME: Duration = Duration::from_millis(32);
/// How often it is looked whether requests still come, and how many must have.
const LOOK: Duration = Duration::from_millis(10);
const REQUESTS_MIN: u64 = 10;
/// Processors of a host at most, unless this was asked for: each that is idle polls.
const PROCESSORS_MAX: usize = 16;

/// When processors are kept from halting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePoll {
    /// While requests follow one another, on virtual machines of few processors whose kernel halts
    /// them at once.
    Auto,
    /// While requests follow one another.
    On,
    /// Never.
    Off,
}

impl FromStr for IdlePoll {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(format!("expected auto, on or off, found '{other}'")),
        }
    }
}

impl fmt::Display for IdlePoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// The messages of this process.
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static KEEPER: Keeper = Keeper { state: Mutex::new(State::NEW), changed: Condvar::new(), thread: Once::new() };

struct Keeper {
    state: Mutex<State>,
    /// There is a burst, or the mode has changed.
    changed: Condvar,
    thread: Once,
}

struct State {
    mode: IdlePoll,
    /// Why nothing is asked for, although that was not forbidden.
    reason: Option<String>,
    device: Option<File>,
    last_burst: Option<Instant>,
    /// Requests come in bursts.
    is_wanted: bool,
    held_since: Option<Instant>,
    held_times: u64,
    held_time: Duration,
}

impl State {
    const NEW: Self = Self {
        mode: IdlePoll::Off,
        reason: None,
        device: None,
        last_burst: None,
        is_wanted: false,
        held_since: None,
        held_times: 0,
        held_time: Duration::ZERO,
    };
}

/// A request has come from a program, or a message from another process.
pub fn message_came() {
    if REQUESTS.fetch_add(1, Ordering::Relaxed) % BURST == 0
        // Another thread is at it.
        && let Some(mut state) = KEEPER.state.try_lock()
        && state.sees_burst(Instant::now())
    {
        KEEPER.changed.notify_one();
    }
}

/// Chooses when processors are kept from halting. [`IdlePoll::On`] fails where that is impossible.
pub fn set_idle_poll(mode: IdlePoll) -> io::Result<()> {
    let reason = if mode == IdlePoll::Auto { why_not() } else { None };
    let wants = mode == IdlePoll::On || (mode == IdlePoll::Auto && reason.is_none());
    let device = if wants { Some(open()) } else { None };
    let (device, reason) = match device.transpose() {
        Ok(device) => (device, reason),
        Err(error) if mode == IdlePoll::Auto => (None, Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let mut state = KEEPER.state.lock();
    state.end_hold();
    // What the former file asked for ends with it.
    (state.mode, state.reason, state.device) = (mode, reason, device);
    if state.device.is_some() {
        let mut started = Ok(());
        KEEPER.thread.call_once(|| started = start());
        started?;
    }
    KEEPER.changed.notify_one();
    Ok(())
}

/// What was chosen.
pub fn idle_poll() -> IdlePoll {
    KEEPER.state.lock().mode
}

/// What is asked for at this moment, or why nothing is; how often it was, and for how long.
pub fn idle_poll_stats() -> String {
    let state = KEEPER.state.lock();
    let now = match (&state.reason, state.held_since) {
        _ if state.mode == IdlePoll::Off => "unused (off)".to_owned(),
        (Some(reason), _) => format!("unused ({reason})"),
        (None, Some(_)) => "held".to_owned(),
        (None, None) => "released".to_owned(),
    };
    let time = state.held_time + state.held_since.map_or(Duration::ZERO, |since| since.elapsed());
    format!("state {now}\nheld_times {}\nheld_ms {}", state.held_times, time.as_millis())
}

fn open() -> io::Result<File> {
    let opened = OpenOptions::new().write(true).open(DEVICE);
    opened.map_err(|error| io::Error::new(error.kind(), format!("cannot open {DEVICE}: {error}")))
}

/// Why this host's processors are left alone if nobody says otherwise.
fn why_not() -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    why_not_here(read(IDLE_DRIVER).ok().as_deref(), read(POLL_TIME).ok().as_deref(), super::processors::all().len())
}

/// `driver`: of idle processors; `poll_ns`: for how long they poll.
fn why_not_here(driver: Option<&str>, poll_ns: Option<&str>, processors: usize) -> Option<String> {
    match (driver, poll_ns) {
        (Some(POLLING_DRIVER), Some("0")) if processors <= PROCESSORS_MAX => None,
        (Some(POLLING_DRIVER), Some("0")) => Some(format!("the host has more than {PROCESSORS_MAX} processors")),
        (Some(POLLING_DRIVER), Some(time)) => Some(format!("idle processors poll for {time} ns before they halt")),
        _ => Some("no virtual machine whose idle processors halt at once".to_owned()),
    }
}

fn start() -> io::Result<()> {
    let thread = std::thread::Builder::new().name("idle poll".to_owned());
    thread.spawn(|| {
        super::use_all_processors();
        loop {
            KEEPER.hold_while_wanted();
        }
    })?;
    Ok(())
}

impl State {
    /// So many requests have come as make a burst, perhaps over a long time. Whether it is one that
    /// begins.
    fn sees_burst(&mut self, now: Instant) -> bool {
        let before = self.last_burst.replace(now);
        let is_burst = before.is_some_and(|before| now - before < BURST_TIME);
        let begins = is_burst && !self.is_wanted && self.device.is_some();
        self.is_wanted |= begins;
        begins
    }

    fn ask(&mut self, latency: i32) -> io::Result<()> {
        self.device.as_mut().map_or(Ok(()), |device| device.write_all(&latency.to_ne_bytes()))
    }

    fn begin_hold(&mut self) {
        match self.ask(NO_LATENCY) {
            Ok(()) => {
                self.held_since = Some(Instant::now());
                self.held_times += 1;
            }
            Err(error) => {
                tracing::warn!(%error, "the kernel does not keep processors from halting; not asked for again");
                (self.device, self.reason) = (None, Some(error.to_string()));
                self.is_wanted = false;
            }
        }
    }

    fn end_hold(&mut self) {
        if let Some(since) = self.held_since.take() {
            self.held_time += since.elapsed();
            if let Err(error) = self.ask(ANY_LATENCY) {
                tracing::warn!(%error, "the kernel keeps processors from halting until this process ends");
            }
        }
        self.is_wanted = false;
    }
}

impl Keeper {
    /// Waits for a burst, and holds as long as requests come.
    fn hold_while_wanted(&self) {
        let mut state = self.state.lock();
        while !state.is_wanted {
            self.changed.wait(&mut state);
        }
        state.begin_hold();
        let mut seen = REQUESTS.load(Ordering::Relaxed);
        while state.is_wanted {
            self.changed.wait_for(&mut state, LOOK);
            let now = REQUESTS.load(Ordering::Relaxed);
            if now - seen < REQUESTS_MIN {
                state.end_hold();
            }
            seen = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_left_alone_where_it_gains_little_or_costs_much() {
        assert_eq!(why_not_here(Some("haltpoll"), Some("0"), 2), None);
        for (driver, time, processors, reason) in [
            (Some("haltpoll"), Some("200000"), 2, "poll for 200000 ns"),
            (Some("haltpoll"), Some("0"), 17, "more than 16 processors"),
            (Some("haltpoll"), None, 2, "no virtual machine"),
            (Some("intel_idle"), None, 2, "no virtual machine"),
            (None, None, 2, "no virtual machine"),
        ] {
            let found = why_not_here(driver, time, processors).unwrap();
            assert!(found.contains(reason), "{driver:?} {time:?} {processors}: {found}");
        }
    }

    #[test]
    fn a_burst_is_many_requests_in_a_short_time() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut state = State { device: Some(File::open("/dev/null").unwrap()), ..State::NEW };
        assert!(!state.sees_burst(at(0)), "nothing is known of the time before");
        assert!(!state.sees_burst(at(40)), "2000 per second at least");
        assert!(state.sees_burst(at(71)));
        assert!(!state.sees_burst(at(72)), "it has begun");
        state.end_hold();
        assert!(!state.sees_burst(at(200)));
        let mut unable = State::NEW;
        assert!(!unable.sees_burst(at(0)) && !unable.sees_burst(at(1)), "nothing can be asked for");
    }

    #[test]
    fn processors_are_kept_from_halting_until_requests_end() {
        match set_idle_poll(IdlePoll::On) {
            Ok(()) => {}
            Err(error) => {
                // Without the right, or in a container.
                assert!(error.to_string().contains(DEVICE) && open().is_err(), "{error}");
                assert_eq!(idle_poll(), IdlePoll::Off, "what is refused changes nothing");
                return;
            }
        }
        while !idle_poll_stats().starts_with("state held") {
            (0..BURST).for_each(|_| message_came());
        }
        // What the kernel asks of all processors.
        let mut latency = [0; 4];
        io::Read::read_exact(&mut File::open(DEVICE).unwrap(), &mut latency).unwrap();
        assert_eq!(i32::from_ne_bytes(latency), NO_LATENCY);
        while !idle_poll_stats().starts_with("state released") {
            std::thread::yield_now();
        }
        let stats = idle_poll_stats();
        assert!(!stats.contains("held_times 0"), "{stats}");
        set_idle_poll(IdlePoll::Off).unwrap();
        assert!(idle_poll_stats().starts_with("state unused (off)"), "{}", idle_poll_stats());
        assert!(KEEPER.state.lock().device.is_none());
    }

    #[test]
    fn modes_are_written_as_they_are_read() {
        for mode in [IdlePoll::Auto, IdlePoll::On, IdlePoll::Off] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("always".parse::<IdlePoll>().unwrap_err().contains("expected auto, on or off"));
    }
}
