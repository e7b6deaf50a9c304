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
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::processors::parse_processors;

/// Takes how long processors may need at most to run again, and forgets it when it is closed.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// Microseconds, as the kernel takes them.
const NO_LATENCY: i32 = 0;
const ANY_LATENCY: i32 = -1;

/// The driver and the governor of idle processors, on virtual machines that can poll.
const IDLE: [&str; 2] =
    ["/sys/devices/system/cpu/cpuidle/current_driver", "/sys/devices/system/cpu/cpuidle/current_governor"];
const POLLING: &str = "haltpoll";
/// For how long these poll, in nanoseconds.
const POLL_TIME: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// The processors of the host.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// So many messages make a burst, if they come within the time.
const BURST: u64 = 64;
const BURST_TIME: Duration = Duration::from_millis(32);
/// Time between two looks at how many messages came, and the number below which a burst has ended.
const LOOK: Duration = Duration::from_millis(10);
const MESSAGES_MIN: u64 = 10;
/// Processors of a host at most, unless more are asked for: each that is idle polls.
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

static KEEPER: Keeper = Keeper::new();

struct Keeper {
    /// All that came while there was a device.
    messages: AtomicU64,
    /// Whether anything can be asked for.
    has_device: AtomicBool,
    state: Mutex<State>,
    /// A burst begins, or the mode has changed.
    changed: Condvar,
}

struct State {
    mode: IdlePoll,
    /// Why nothing is asked for, although that was not forbidden.
    reason: Option<String>,
    device: Option<File>,
    has_thread: bool,
    last_burst: Option<Instant>,
    /// Messages come in bursts.
    is_wanted: bool,
    held_since: Option<Instant>,
    held_times: u64,
    held_time: Duration,
}

/// A request has come from a program, or a message from another process.
pub fn message_came() {
    KEEPER.message_came();
}

/// Chooses when processors are kept from halting. [`IdlePoll::On`] fails where that is impossible,
/// and changes nothing then.
pub fn set_idle_poll(mode: IdlePoll) -> io::Result<()> {
    let reason = if mode == IdlePoll::Auto { why_not() } else { None };
    let device = if mode == IdlePoll::Off || reason.is_some() { None } else { Some(open()) };
    KEEPER.set(mode, device, reason)
}

/// What was chosen.
pub fn idle_poll() -> IdlePoll {
    KEEPER.state.lock().mode
}

/// What is asked for at this moment, or why nothing is; how often it was, and for how long.
pub fn idle_poll_stats() -> String {
    KEEPER.state.lock().to_string()
}

fn open() -> io::Result<File> {
    let opened = OpenOptions::new().write(true).open(DEVICE);
    opened.map_err(|error| io::Error::new(error.kind(), format!("cannot open {DEVICE}: {error}")))
}

/// Why this host's processors are left alone if nobody says otherwise.
fn why_not() -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let processors = parse_processors(&read(ONLINE)).map(|online| online.len());
    why_not_here(IDLE.map(read), &read(POLL_TIME), processors)
}

/// `idle`: driver and governor of idle processors; `poll_ns`: for how long they poll.
fn why_not_here(idle: [String; 2], poll_ns: &str, processors: Option<usize>) -> Option<String> {
    let polls = idle.iter().all(|part| part == POLLING);
    match (polls, poll_ns, processors) {
        (true, "0", Some(..=PROCESSORS_MAX)) => None,
        (true, "0", Some(_)) => Some(format!("the host has more than {PROCESSORS_MAX} processors")),
        (true, "0", None) => Some(format!("cannot read {ONLINE}")),
        (true, time, _) if !time.is_empty() => Some(format!("idle processors poll for {time} ns before they halt")),
        _ => Some("no virtual machine whose idle processors halt at once".to_owned()),
    }
}

impl Keeper {
    const fn new() -> Self {
        Self {
            messages: AtomicU64::new(0),
            has_device: AtomicBool::new(false),
            state: Mutex::new(State::NEW),
            changed: Condvar::new(),
        }
    }

    fn message_came(&self) {
        if self.has_device.load(Ordering::Relaxed)
            && self.messages.fetch_add(1, Ordering::Relaxed).is_multiple_of(BURST)
            // If it is locked, the next of so many messages looks.
            && let Some(mut state) = self.state.try_lock()
            && state.sees_burst(Instant::now())
        {
            self.changed.notify_one();
        }
    }

    fn set(&'static self, mode: IdlePoll, device: Option<io::Result<File>>, reason: Option<String>) -> io::Result<()> {
        let mut state = self.state.lock();
        let device = device.map(|device| {
            let device = device?;
            if !state.has_thread {
                self.start()?;
                state.has_thread = true;
            }
            Ok(device)
        });
        let (device, reason) = match device.transpose() {
            Ok(device) => (device, reason),
            Err(error) if mode == IdlePoll::Auto => (None, Some(io::Error::to_string(&error))),
            Err(error) => return Err(error),
        };
        state.end_hold();
        self.has_device.store(device.is_some(), Ordering::Relaxed);
        (state.mode, state.reason, state.device) = (mode, reason, device);
        self.changed.notify_one();
        Ok(())
    }

    fn start(&'static self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("idle poll".to_owned());
        let keep = move || {
            super::use_all_processors();
            loop {
                self.hold_while_wanted();
            }
        };
        thread.spawn(keep).map(drop)
    }

    /// Waits for a burst, and holds as long as messages come.
    fn hold_while_wanted(&self) {
        let mut state = self.state.lock();
        while !state.is_wanted {
            self.changed.wait(&mut state);
        }
        if let Err(error) = state.begin_hold() {
            tracing::warn!(%error, "the kernel does not keep processors from halting; not asked for again");
            self.has_device.store(false, Ordering::Relaxed);
            (state.device, state.reason, state.is_wanted) = (None, Some(error.to_string()), false);
        }
        let mut seen = self.messages.load(Ordering::Relaxed);
        // Not longer than until the mode changes, which ends it.
        while state.held_since.is_some() {
            self.changed.wait_for(&mut state, LOOK);
            let now = self.messages.load(Ordering::Relaxed);
            if now - seen < MESSAGES_MIN {
                state.end_hold();
            }
            seen = now;
        }
    }
}

impl State {
    const NEW: Self = Self {
        mode: IdlePoll::Off,
        reason: None,
        device: None,
        has_thread: false,
        last_burst: None,
        is_wanted: false,
        held_since: None,
        held_times: 0,
        held_time: Duration::ZERO,
    };

    /// So many messages have come as make a burst, perhaps over a long time. Whether it is one that
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

    fn begin_hold(&mut self) -> io::Result<()> {
        self.ask(NO_LATENCY)?;
        self.held_since = Some(Instant::now());
        self.held_times += 1;
        Ok(())
    }

    fn end_hold(&mut self) {
        (self.is_wanted, self.last_burst) = (false, None);
        let Some(since) = self.held_since.take() else { return };
        self.held_time += since.elapsed();
        if let Err(error) = self.ask(ANY_LATENCY) {
            tracing::warn!(%error, "cannot tell the kernel that processors may halt; closing its file instead");
            (self.device, self.reason) = (None, Some(error.to_string()));
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, self.held_since) {
            _ if self.mode == IdlePoll::Off => f.write_str("state unused (off)")?,
            (Some(reason), _) => write!(f, "state unused ({reason})")?,
            (None, Some(_)) => f.write_str("state held")?,
            (None, None) => f.write_str("state released")?,
        }
        let time = self.held_time + self.held_since.map_or(Duration::ZERO, |since| since.elapsed());
        write!(f, "\nheld_times {}\nheld_ms {}", self.held_times, time.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::FileExt, thread};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn hosts_are_left_alone_where_it_gains_little_or_costs_much() {
        let why_not = |idle: [&str; 2], time, processors| why_not_here(idle.map(str::to_owned), time, processors);
        assert_eq!(why_not(["haltpoll"; 2], "0", Some(16)), None);
        for (idle, time, processors, reason) in [
            (["haltpoll"; 2], "200000", Some(2), "poll for 200000 ns"),
            (["haltpoll"; 2], "0", Some(17), "more than 16 processors"),
            (["haltpoll"; 2], "0", None, "cannot read /sys"),
            (["haltpoll"; 2], "", Some(2), "no virtual machine"),
            (["haltpoll", "menu"], "0", Some(2), "no virtual machine"),
            (["intel_idle", "menu"], "", Some(2), "no virtual machine"),
            (["", ""], "", None, "no virtual machine"),
        ] {
            let found = why_not(idle, time, processors).unwrap();
            assert!(found.contains(reason), "{idle:?} {time:?} {processors:?}: {found}");
        }
    }

    #[test]
    fn a_burst_is_many_messages_in_a_short_time() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut state = State { device: Some(tempfile::tempfile().unwrap()), ..State::NEW };
        assert!(!state.sees_burst(at(0)), "nothing is known of the time before");
        assert!(!state.sees_burst(at(40)), "2000 per second at least");
        assert!(state.sees_burst(at(71)));
        assert!(!state.sees_burst(at(72)), "it has begun");
        state.end_hold();
        assert!(!state.sees_burst(at(73)) && state.sees_burst(at(74)));
        let mut unable = State::NEW;
        assert!(!unable.sees_burst(at(0)) && !unable.sees_burst(at(1)), "nothing can be asked for");
    }

    fn until(keeper: &Keeper, state: &str, meanwhile: impl Fn()) {
        let begun = Instant::now();
        while !keeper.state.lock().to_string().starts_with(state) {
            assert!(begun.elapsed() < LIMIT, "{} instead of {state}", keeper.state.lock());
            meanwhile();
        }
    }

    /// What was asked for, in order.
    fn asked(file: &File) -> Vec<i32> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes.chunks(4).map(|latency| i32::from_ne_bytes(latency.try_into().unwrap())).collect()
    }

    /// How often it was asked for, each time until it was given back. More often than a test has
    /// bursts, where other work keeps it from sending messages.
    fn times_held(file: &File) -> usize {
        let asked = asked(file);
        assert_eq!(asked, [NO_LATENCY, ANY_LATENCY].repeat(asked.len() / 2));
        asked.len() / 2
    }

    #[test]
    fn processors_are_kept_from_halting_until_no_messages_come() {
        let keeper: &'static Keeper = Box::leak(Box::new(Keeper::new()));
        let file = tempfile::tempfile().unwrap();
        let set = |mode| keeper.set(mode, Some(file.try_clone()), None).unwrap();
        let messages = || (0..BURST).for_each(|_| keeper.message_came());
        messages();
        assert_eq!(keeper.messages.load(Ordering::Relaxed), 0, "nothing is counted without a device");
        set(IdlePoll::On);
        until(keeper, "state held", messages);
        until(keeper, "state released", thread::yield_now);
        let first = times_held(&file);
        assert!(first >= 1);
        // Another mode, in the midst of a burst.
        until(keeper, "state held", messages);
        set(IdlePoll::Auto);
        until(keeper, "state held", messages);
        keeper.set(IdlePoll::Off, None, None).unwrap();
        let all = times_held(&file);
        assert!(all >= first + 2);
        messages();
        assert!(keeper.state.lock().to_string().starts_with(&format!("state unused (off)\nheld_times {all}\n")));
    }

    #[test]
    fn a_kernel_that_refuses_is_not_asked_again() {
        let keeper: &'static Keeper = Box::leak(Box::new(Keeper::new()));
        keeper.set(IdlePoll::On, Some(File::open("/dev/null")), None).unwrap();
        until(keeper, "state unused (Bad file descriptor", || (0..BURST).for_each(|_| keeper.message_came()));
        assert!(!keeper.has_device.load(Ordering::Relaxed));
        let refused = || Some(Err(io::Error::other("no such device")));
        assert!(keeper.set(IdlePoll::On, refused(), None).is_err());
        keeper.set(IdlePoll::Auto, refused(), None).unwrap();
        assert!(keeper.state.lock().to_string().starts_with("state unused (no such device)"));
    }

    #[test]
    fn modes_are_written_as_they_are_read() {
        for mode in [IdlePoll::Auto, IdlePoll::On, IdlePoll::Off] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("always".parse::<IdlePoll>().unwrap_err().contains("expected auto, on or off"));
    }
}
