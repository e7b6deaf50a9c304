//! A server and its clients, as rates: programs keep requests under way, clients let a number of
//! them be in flight, the server executes a number of them at once. What is achieved then depends
//! on that number (`Plant`), and every client gets its share.

use std::ops::Range;

use tuner::{Limits, Measurement, Tuner};

/// Of the simulation.
const STEP_NS: u64 = 5_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Requests per second if so many are executed at once, so many seconds after the start.
pub type Plant = fn(f64, f64) -> f64;

/// A tuner and its counters, or a fixed setting.
pub struct Knob {
    pub setting: u32,
    tuner: Option<(Tuner, u64)>,
    counters: Measurement,
    /// Counters are whole numbers.
    rest: [f64; 3],
    /// Sums of the setting and of its time, to show its mean.
    requests: f64,
}

impl Knob {
    pub fn fixed(setting: u32) -> Self {
        Self { setting, tuner: None, counters: Measurement::default(), rest: [0.0; 3], requests: 0.0 }
    }

    pub fn tuned(limits: Limits, setting: u32, start_ns: u64) -> Self {
        let tuner = Tuner::new(limits, setting, &Measurement::default());
        Self { tuner: Some((tuner, start_ns)), ..Self::fixed(setting) }
    }

    pub fn tuner(&self) -> &Tuner {
        &self.tuner.as_ref().expect("it has a tuner").0
    }

    /// For the time of a step: how much is achieved, under way, and waits for its turn.
    fn count(&mut self, now_ns: u64, requests: f64, under_way: f64, waiting: f64, processors: Option<f64>) {
        let waited = if waiting > 0.0 { requests } else { 0.0 };
        let mut whole = [0; 3];
        for ((rest, new), whole) in
            self.rest.iter_mut().zip([requests, under_way * STEP_NS as f64, waited]).zip(&mut whole)
        {
            *rest += new;
            *whole = rest.trunc() as u64;
            *rest -= rest.trunc();
        }
        self.requests += requests;
        let counters = &mut self.counters;
        counters.now_ns = now_ns;
        counters.requests += whole[0];
        counters.work += whole[0];
        counters.busy_ns += whole[1];
        counters.waited += whole[2];
        counters.waiting = waiting.ceil() as u64;
        counters.processors = processors;
        if let Some((tuner, next_ns)) = self.tuner.as_mut().filter(|(_, next_ns)| *next_ns <= now_ns) {
            let step = tuner.step(&self.counters);
            assert!(step.next_ns > now_ns, "a tuner that asks at once would never wait");
            (self.setting, *next_ns) = (step.setting, step.next_ns);
        }
    }
}

/// See the module documentation.
pub struct World {
    pub plant: Plant,
    /// Factor of a client's rate for the requests that it has in flight: what these cost itself.
    pub client_cost: fn(f64) -> f64,
    pub server: Knob,
    pub clients: Vec<Knob>,
    /// Requests that the programs of each client keep under way, so many seconds after the start.
    pub demand: fn(f64) -> f64,
    /// Processors of the server, if they are to be known.
    pub processors: Option<f64>,
    /// Relative amplitude of the noise of 5 ms.
    pub noise: f64,
    /// What is achieved shows in lumps, some of these seconds apart, as when many requests end
    /// together.
    pub lump_seconds: f64,
    lump: Vec<f64>,
    lump_until_ns: u64,
    /// A cache: by how much the rate is more while it has room, and less while it has none.
    pub cache: f64,
    /// Until when that goes on.
    cache_until_ns: u64,
    has_room: bool,
    /// How fast streams drift apart with so many threads if they are so far apart, or come
    /// together, in parts of a second.
    pub drift: fn(f64, f64) -> f64,
    /// What part of their rate streams achieve that are as far apart as they can be.
    pub part_apart: fn(f64) -> f64,
    /// How far apart they are: 0 to 1.
    pub apart: f64,
    random: u64,
    now_ns: u64,
    /// Under way of each client: follows its setting in the time of a request.
    under_way: Vec<f64>,
}

impl World {
    pub fn new(plant: Plant, server: Knob, clients: Vec<Knob>) -> Self {
        let under_way = vec![0.0; clients.len()];
        Self {
            plant,
            client_cost: |_| 1.0,
            server,
            clients,
            demand: |_| 64.0,
            processors: None,
            noise: 0.05,
            lump_seconds: 0.0,
            lump: Vec::new(),
            lump_until_ns: 0,
            cache: 0.0,
            cache_until_ns: 0,
            has_room: true,
            drift: |_, _| 0.0,
            part_apart: |_| 0.3,
            apart: 0.0,
            random: 0x9e37_79b9_7f4a_7c15,
            now_ns: 0,
            under_way,
        }
    }

    /// A server alone that may have up to 256 threads.
    pub fn large_server_alone(plant: Plant, threads: u32) -> Self {
        let server = Knob::tuned(Limits::service_threads(2, 256), threads, STEP_NS);
        World { demand: |_| 300.0, ..Self::new(plant, server, vec![Knob::fixed(300)]) }
    }

    /// A server alone, whose clients keep 256 requests in flight.
    pub fn server_alone(plant: Plant, threads: u32) -> Self {
        let server = Knob::tuned(Limits::service_threads(1, 64), threads, STEP_NS);
        World { demand: |_| 256.0, ..Self::new(plant, server, vec![Knob::fixed(256)]) }
    }

    /// Another course of the same.
    pub fn skip_random(&mut self, seed: u64) {
        self.random = self.random.wrapping_add(seed.wrapping_mul(0x1234_5678_9abc_def1));
    }

    /// Between -1 and 1.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// What the cache and the streams make of a rate.
    fn state_factor(&mut self, executing: f64) -> f64 {
        if self.now_ns >= self.cache_until_ns {
            self.has_room = !self.has_room;
            self.cache_until_ns = self.now_ns + ((0.35 + 0.1 * self.random()) * SECOND_NS as f64) as u64;
        }
        let drift = (self.drift)(executing, self.apart);
        self.apart = (self.apart + drift * STEP_NS as f64 / SECOND_NS as f64).clamp(0.0, 1.0);
        let cache = if self.has_room { 1.0 + self.cache } else { 1.0 - self.cache };
        cache * (1.0 - (1.0 - (self.part_apart)(executing)) * self.apart)
    }

    /// Whether requests end now.
    fn lump_ends(&mut self) -> bool {
        self.lump.resize(self.clients.len(), 0.0);
        if self.now_ns < self.lump_until_ns {
            return false;
        }
        let seconds = self.lump_seconds * (1.0 + 0.7 * self.random());
        self.lump_until_ns = self.now_ns + (seconds * SECOND_NS as f64) as u64;
        true
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        let seconds = self.now_ns as f64 / SECOND_NS as f64;
        let demand = (self.demand)(seconds);
        let in_flight: f64 = self.under_way.iter().sum();
        let executing = in_flight.min(f64::from(self.server.setting)).max(0.0);
        let rate = (self.plant)(executing, seconds) * self.state_factor(executing);
        let noise = 1.0 + self.noise * self.random();
        let mut achieved = 0.0;
        let ends = self.lump_ends();
        for index in 0..self.clients.len() {
            let share = self.under_way[index] / in_flight.max(1e-9);
            let own_noise = 1.0 + self.noise * self.random();
            let cost = (self.client_cost)(self.under_way[index]);
            let requests = rate * share * cost * noise * own_noise * STEP_NS as f64 / SECOND_NS as f64;
            self.lump[index] += requests;
            let requests = if ends { std::mem::take(&mut self.lump[index]) } else { 0.0 };
            achieved += requests;
            let client = &mut self.clients[index];
            let waiting = (demand - f64::from(client.setting)).max(0.0);
            client.count(self.now_ns, requests, self.under_way[index], waiting, None);
            // Requests end, and others take their places, in the time that one takes.
            let goal = demand.min(f64::from(self.clients[index].setting));
            let latency_s = (in_flight / rate.max(1e-9)).max(0.001);
            let moved = (STEP_NS as f64 / SECOND_NS as f64 / latency_s).min(1.0);
            self.under_way[index] += (goal - self.under_way[index]) * moved;
        }
        let busy = self.processors.map(|processors| (executing / processors).min(1.0));
        self.server.count(self.now_ns, achieved, executing, in_flight - executing, busy);
    }

    /// Time passes without load but for so many requests, and nobody asks the tuners.
    pub fn pause(&mut self, seconds: u64, requests: u64) {
        self.now_ns += seconds * SECOND_NS;
        self.under_way.fill(0.0);
        let counters = &mut self.server.counters;
        counters.requests += requests;
        counters.work += requests;
        counters.busy_ns += requests * 1_000_000;
    }

    fn achieved(&self) -> Vec<f64> {
        self.clients.iter().map(|client| client.requests).collect()
    }

    /// Runs until so many seconds after the start. Requests per second of each client since then.
    pub fn run_until(&mut self, seconds: u64) -> Vec<f64> {
        let (start_ns, before) = (self.now_ns, self.achieved());
        while self.now_ns < seconds * SECOND_NS {
            self.step();
        }
        let passed_s = (self.now_ns - start_ns) as f64 / SECOND_NS as f64;
        self.achieved().iter().zip(before).map(|(after, before)| (after - before) / passed_s).collect()
    }

    /// Means of the whole rate over each 5 s of this time.
    pub fn means(&mut self, seconds: Range<u64>) -> Vec<f64> {
        self.run_until(seconds.start);
        let ends = (seconds.start + 5..=seconds.end).step_by(5);
        ends.map(|end| self.run_until(end).iter().sum()).collect()
    }
}

/// A rate between measured ones: (threads, rate), by the logarithm of the number.
pub fn between(points: &[(f64, f64)], threads: f64) -> f64 {
    let (first, last) = (points[0], points[points.len() - 1]);
    if threads < first.0 {
        return first.1 * threads / first.0;
    }
    let pair = points.windows(2).find(|pair| threads <= pair[1].0);
    pair.map_or(last.1, |pair| {
        let part = (threads / pair[0].0).ln() / (pair[1].0 / pair[0].0).ln();
        pair[0].1 + part * (pair[1].1 - pair[0].1)
    })
}

/// Best rate of a server alone with a fixed number of threads up to 64.
pub fn best(plant: Plant, seconds: f64) -> f64 {
    (1..=64).map(|threads| plant(f64::from(threads), seconds)).fold(0.0, f64::max)
}

/// Checks that the rate is within 5% of the best, and steady.
pub fn assert_good(means: &[f64], best: f64, what: &str) {
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    assert!(mean >= 0.95 * best, "{what}: {mean:.0} of {best:.0}: {means:.0?}");
    for one in means {
        assert!((one - mean).abs() <= 0.05 * mean, "not steady: {means:.0?}: {what}");
    }
}

/// Jain's index of fairness: 1 if all are equal.
pub fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
    sum * sum / (rates.len() as f64 * squares)
}
