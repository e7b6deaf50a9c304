//! The cost and speed of a layout, by a simple model in integers. Pure.
//!
//! The model: an OST writes or reads a given number of bytes per second, and loses a moment
//! whenever it changes from one stream to another; a client's link carries a given number of bytes
//! per second; each object costs a request before anything else. A transfer is finished when the
//! busiest OST and the busiest link are. Streams are distributed over OSTs round robin.
//!
//! It tells which of two layouts is better and by about how much, not how fast a given cluster is.
//! Downside: no caches, no network in between, no other load; all OSTs are alike.

use std::collections::BTreeSet;

use types::{OstIndex, limits::FILE_BYTES_MAX};

use crate::{
    automatic::{self, Situation},
    component::{Component, Extent, Location},
    layout::Layout,
    limits::END_OF_FILE,
};

const MIB: u64 = 1 << 20;
const MICROSECONDS: u128 = 1_000_000;
/// Bytes of one call of a job.
const TRANSFER_BYTES: u64 = MIB;

/// Speeds and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// OSTs.
    pub osts: u32,
    /// Bytes per second of one.
    pub ost_bytes_per_second: u64,
    /// Bytes per second of a client's link.
    pub client_bytes_per_second: u64,
    /// Microseconds of a request.
    pub request_us: u64,
    /// Microseconds an OST loses when it turns to another stream, once a stripe.
    pub switch_us: u64,
}

impl Hardware {
    /// OSTs of hard disks, 350 MB/s each (Antypas' Franklin), clients at 25 Gbit/s.
    pub fn with_osts(osts: u32) -> Self {
        Self {
            osts: osts.max(1),
            ost_bytes_per_second: 350_000_000,
            client_bytes_per_second: 3_000_000_000,
            request_us: 200,
            switch_us: 1000,
        }
    }

    /// Microseconds in which one OST moves `bytes` for so many streams.
    fn ost_us(&self, bytes: u64, streams: u64, stripe_bytes: u64) -> u64 {
        let moving = time_us(bytes, self.ost_bytes_per_second);
        let turns = if streams > 1 { bytes.div_ceil(stripe_bytes.max(1)) } else { 0 };
        moving.saturating_add(turns.saturating_mul(self.switch_us))
    }
}

fn time_us(bytes: u64, bytes_per_second: u64) -> u64 {
    u64::try_from(u128::from(bytes) * MICROSECONDS / u128::from(bytes_per_second.max(1))).unwrap_or(u64::MAX)
}

/// Bytes per second of a transfer.
pub fn speed(bytes: u64, microseconds: u64) -> u64 {
    u64::try_from(u128::from(bytes) * MICROSECONDS / u128::from(microseconds.max(1))).unwrap_or(u64::MAX)
}

/// A component as far as a file reaches into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The bytes.
    pub extent: Extent,
    /// Stripes; 0 without objects.
    pub stripes: u32,
    /// OSTs they are on; 0 on the MDT.
    pub osts: u32,
    /// Bytes per second of these OSTs together.
    pub bytes_per_second: u64,
    /// Microseconds in which one client reads or writes it from end to end.
    pub one_client_us: u64,
}

impl Part {
    /// Bytes per second of one client.
    pub fn one_client_speed(&self) -> u64 {
        speed(self.extent.bytes(), self.one_client_us)
    }

    /// What all clients together can get, in bytes per second.
    pub fn all_clients_speed(&self) -> u64 {
        self.bytes_per_second
    }
}

/// What the components of a file of `size` bytes serve, on OSTs that are all alike.
pub fn parts(hardware: &Hardware, layout: &Layout, size: u64) -> Vec<Part> {
    let alike = |osts: &[OstIndex]| {
        let distinct: BTreeSet<&OstIndex> = osts.iter().collect();
        (distinct.len() as u64).saturating_mul(hardware.ost_bytes_per_second)
    };
    parts_on(hardware, layout, size, alike)
}

/// As [`parts`]; `together`: bytes per second of the OSTs of so many stripes, an OST with several
/// stripes occurring as often.
pub fn parts_on(hardware: &Hardware, layout: &Layout, size: u64, together: impl Fn(&[OstIndex]) -> u64) -> Vec<Part> {
    let part = |component: &Component| {
        let extent = component.extent.intersection(0, size)?;
        let stripes = component.slots().len() as u32;
        let on_ost = |slot| match component.location(slot) {
            Location::Ost(ost) => Some(ost),
            Location::Mdt => None,
        };
        let mut osts: Vec<OstIndex> = component.slots().filter_map(on_ost).collect();
        let bytes_per_second = together(&osts);
        osts.sort_unstable();
        osts.dedup();
        let osts = osts.len() as u32;
        // Of data on the MDT the model knows no better.
        let speed = if osts == 0 { hardware.ost_bytes_per_second } else { bytes_per_second };
        let one_client_us = one_client_at(hardware, extent.bytes(), speed, stripes);
        Some(Part { extent, stripes, osts, bytes_per_second, one_client_us })
    };
    layout.components.iter().filter_map(part).collect()
}

/// Microseconds in which one client moves `bytes` over so many OSTs. Its requests to all objects
/// run at a time.
pub fn one_client_us(hardware: &Hardware, bytes: u64, osts: u32, objects: u32) -> u64 {
    one_client_at(hardware, bytes, u64::from(osts.max(1)).saturating_mul(hardware.ost_bytes_per_second), objects)
}

fn one_client_at(hardware: &Hardware, bytes: u64, together: u64, objects: u32) -> u64 {
    if objects == 0 {
        return 0;
    }
    let moving = time_us(bytes, together.min(hardware.client_bytes_per_second));
    moving.saturating_add(hardware.request_us)
}

/// A planned job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of processes that write at the same time.
    pub processes: u32,
    /// Clients (nodes) they run on.
    pub clients: u32,
    /// Bytes of all together.
    pub bytes: u64,
    /// One file of all, or one of each.
    pub shared: bool,
}

/// How a job comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Stripes of the widest part of a file.
    pub stripes: u32,
    /// Microseconds from beginning to end.
    pub us: u64,
    /// Bytes per second of all together.
    pub bytes_per_second: u64,
}

/// The job with so many stripes per file from the beginning on.
pub fn fixed(hardware: &Hardware, job: &Job, stripes: u32, stripe_bytes: u64) -> Estimate {
    let whole = [(file_bytes(job), stripes.clamp(1, hardware.osts), stripe_bytes)];
    estimate(hardware, job, &whole)
}

/// The job with automatic layouts, the beginning of each file on its MDT. No file is larger than
/// files can be.
///
/// ```
/// use layout::cost::{Hardware, Job, automatic, fixed};
///
/// // 512 processes on 32 clients write one file of 1 TiB: `stria advise --processes 512 --shared`.
/// let hardware = Hardware::with_osts(64);
/// let job = Job { processes: 512, clients: 32, bytes: 1 << 40, shared: true };
/// let (one, all) = (fixed(&hardware, &job, 1, 1 << 20), fixed(&hardware, &job, 64, 1 << 20));
/// assert!(one.us > 30 * all.us);
/// let grown = automatic(&hardware, &job);
/// assert!(grown.stripes == 64 && grown.us < 2 * all.us);
/// ```
pub fn automatic(hardware: &Hardware, job: &Job) -> Estimate {
    let free = vec![u64::MAX; hardware.osts as usize];
    let bytes = file_bytes(job).min(FILE_BYTES_MAX);
    let mut start = automatic::BYTES_ON_MDT.min(bytes);
    // The MDT moves it with the requests that make and open the file.
    let mut layout = vec![(0, 1, automatic::BYTES_ON_MDT)];
    while start < bytes {
        let next = automatic::next_component(&Situation {
            rest: Extent { start, end: END_OF_FILE },
            request: Extent { start, end: bytes.min(start + TRANSFER_BYTES) },
            size: 0,
            expected: 0,
            components: layout.len() + 1,
            writers: if job.shared { job.processes } else { 1 },
            clients: if job.shared { job.clients } else { 1 },
            files_written: if job.shared { 1 } else { job.processes },
            available: &free,
            interrupted: 0,
        });
        let end = next.extent.end.min(bytes);
        match layout.last_mut() {
            // The same objects continue ([`automatic::may_continue`]).
            Some((held, count, stripe)) if (*count, *stripe) == (next.stripe_count, next.stripe_bytes) => {
                *held += end - start;
            }
            _ => layout.push((end - start, next.stripe_count, next.stripe_bytes)),
        }
        start = end;
    }
    estimate(hardware, job, &layout)
}

/// The fixed stripe count that is best for the job: the fewest stripes within a tenth of the
/// shortest time.
pub fn best_fixed(hardware: &Hardware, job: &Job, stripe_bytes: u64) -> Estimate {
    let powers = (0..32).map(|shift| 1 << shift).take_while(|count| *count < hardware.osts);
    let counts = powers.chain([hardware.osts]);
    let all: Vec<Estimate> = counts.map(|count| fixed(hardware, job, count, stripe_bytes)).collect();
    let shortest = all.iter().map(|estimate| estimate.us).min().unwrap_or(0);
    let good = all.into_iter().find(|estimate| estimate.us <= shortest.saturating_add(shortest / 10));
    good.expect("one of them is the shortest")
}

fn file_bytes(job: &Job) -> u64 {
    if job.shared { job.bytes } else { job.bytes.div_ceil(u64::from(job.processes.max(1))) }
}

/// A job whose files have these parts: bytes, stripes, stripe size.
fn estimate(hardware: &Hardware, job: &Job, parts: &[(u64, u32, u64)]) -> Estimate {
    let processes = u64::from(job.processes.max(1));
    let files = if job.shared { 1 } else { processes };
    let mut busiest_us = 0u64;
    for (bytes, stripes, stripe_bytes) in parts {
        // No more stripes than there are bytes for.
        let used = u64::from(*stripes).min(bytes.div_ceil(*stripe_bytes)).max(1);
        let objects_per_ost = (files * used).div_ceil(u64::from(hardware.osts));
        let on_busiest = (bytes / used).saturating_mul(objects_per_ost);
        let streams = if job.shared { processes.div_ceil(used) } else { objects_per_ost };
        let of_part = hardware.ost_us(on_busiest, streams, *stripe_bytes);
        // Objects are made by the requests of their writers, one after the other at each OST and
        // for each file.
        let made = hardware.request_us.saturating_mul(objects_per_ost.max(u64::from(*stripes) / 4));
        busiest_us = busiest_us.saturating_add(of_part).saturating_add(made);
    }
    let links = u64::from(job.clients.max(1)).saturating_mul(hardware.client_bytes_per_second);
    let us = busiest_us.max(time_us(job.bytes, links));
    let stripes = parts.iter().map(|(_, stripes, _)| *stripes).max().unwrap_or(0);
    Estimate { stripes, us, bytes_per_second: speed(job.bytes, us) }
}

/// Stripe size of the fixed layouts that are compared.
pub const STRIPE_BYTES_COMPARED: u64 = MIB;

#[cfg(test)]
mod tests {
    use types::Generation;

    use super::*;
    use crate::{plain::PlainLayout, spec::StripeSpec};

    const GB: u64 = 1_000_000_000;

    fn job(processes: u32, bytes: u64, shared: bool) -> Job {
        Job { processes, clients: processes, bytes, shared }
    }

    #[test]
    fn one_client_is_as_fast_as_its_osts_until_its_link_is_full() {
        let hardware = Hardware::with_osts(80);
        let of = |count: u16| {
            let plain = PlainLayout { stripe_bytes: MIB, osts: (0..count).map(OstIndex).collect() };
            let layout = Layout::plain(Generation(1), plain, StripeSpec::default());
            let parts = parts(&hardware, &layout, 35 * GB);
            assert_eq!(parts.len(), 1);
            parts[0].one_client_us / 1_000_000
        };
        assert_eq!((of(1), of(4), of(8), of(80)), (100, 25, 12, 11));
    }

    /// Antypas: "with more than about 20 writers count 4 makes files overlap".
    #[test]
    fn a_file_per_process_is_best_with_its_fair_share() {
        let hardware = Hardware::with_osts(80);
        let best = |processes| best_fixed(&hardware, &job(processes, u64::from(processes) * GB, false), MIB).stripes;
        assert_eq!(best(20), 4);
        assert_eq!(best(80), 1);
        assert_eq!(best(512), 1);
        let speed = |stripes| fixed(&hardware, &job(80, 80 * GB, false), stripes, MIB).bytes_per_second;
        assert!(speed(1) > speed(4) && speed(1) > 27 * GB, "all OSTs at full speed: {}", speed(1));
    }

    /// Antypas: four stripes cap a shared file at 1,400 MB/s, all of them reach most of what the
    /// OSTs can do.
    #[test]
    fn a_large_shared_file_wants_all_osts() {
        let hardware = Hardware::with_osts(80);
        let shared = job(80, 1000 * GB, true);
        assert!(fixed(&hardware, &shared, 4, MIB).bytes_per_second < 1_400_000_000);
        assert_eq!(best_fixed(&hardware, &shared, MIB).stripes, 80);
        assert!(best_fixed(&hardware, &job(80, GB / 100, true), MIB).stripes < 80, "a small one does not");
    }

    /// Antypas' matrices: processes by bytes of all together, a shared file and a file per process,
    /// 80 OSTs.
    #[test]
    fn automatic_layouts_are_within_a_tenth_of_the_best() {
        let hardware = Hardware::with_osts(80);
        let mut far = Vec::new();
        for processes in [20, 80, 128, 512, 1024, 2048, 4096] {
            for gigabytes in [1, 10, 100, 1000] {
                for shared in [true, false] {
                    let job = job(processes, gigabytes * GB, shared);
                    let (automatic, best) = (automatic(&hardware, &job), best_fixed(&hardware, &job, MIB));
                    if automatic.us > best.us + best.us / 10 {
                        far.push((processes, gigabytes, shared));
                    }
                }
            }
        }
        assert_eq!(far, []);
    }

    #[test]
    fn a_job_beyond_the_largest_file_is_estimated_like_one_of_that_size() {
        let hardware = Hardware::with_osts(80);
        assert!(automatic(&hardware, &job(1, u64::MAX, true)).us > 0);
    }
}
