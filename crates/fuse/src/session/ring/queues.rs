//! The queues that one ring serves, and whether each has entries left. No I/O.
//!
//! A queue has as many requests in service as it has entries. Requests that wait for others (a lock
//! that another process holds, a server that is away) keep their entries, so a queue gets more of
//! them as soon as the kernel has fewer than [`SPARE_MIN`], until it has [`ENTRIES_MAX`]. Then
//! requests that ask for a lock and may wait are refused (ENOLCK), and others wait in the kernel.
//! The same is done below that number if there is no memory for more, or if the kernel refuses
//! them; the queue asks for more again once few of its entries are held, and after a refusal not
//! before it has answered [`ANSWERED_AFTER_REFUSAL`] requests.
//!
//! Why so early: an entry that is registered later serves requests that come after it. The kernel
//! gives a request that found no entry to the next entry of the queue that is *answered*. If all
//! held entries wait for others, it is stuck until another request of the same processor is served.
//! Downside: this remains possible if more than [`SPARE_MIN`] requests that wait come from one
//! processor before its core runs.

/// Entries of a queue at the beginning. One that is not used takes some 500 bytes in the kernel,
/// and addresses.
pub const ENTRIES_FIRST: usize = 512;
/// With fewer entries than this in the kernel, a queue gets more.
const SPARE_MIN: usize = 256;
/// Most entries of a queue. An entry that has been used takes 8 KiB, or 1 MiB if it has carried as
/// much.
pub const ENTRIES_MAX: usize = 8192;

/// Requests that a queue answers before it asks again for entries that the kernel refused: a kernel
/// that always refuses costs next to nothing.
pub const ANSWERED_AFTER_REFUSAL: usize = 1024;

const _: () = assert!(SPARE_MIN <= ENTRIES_FIRST / 2, "a queue that doubles has spare entries again");

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The kernel's number of it, which is the processor's.
    pub number: u16,
    /// Entries, held or in the kernel.
    entries: usize,
    /// Entries whose request is not answered.
    held: usize,
    /// Most entries it can have at present.
    limit: usize,
    /// Requests to be answered before it may have more entries than that.
    pause: usize,
}

impl Queue {
    /// A queue without entries.
    pub fn new(number: u16) -> Self {
        Self { number, entries: 0, held: 0, limit: ENTRIES_MAX, pause: 0 }
    }

    /// An entry was passed to the kernel for the first time.
    pub fn registered(&mut self) {
        self.entries += 1;
    }

    /// A request came.
    pub fn received(&mut self) {
        self.held += 1;
        assert!(self.held <= self.entries, "each request has an entry");
    }

    /// A request was answered: its entry is in the kernel again.
    pub fn committed(&mut self) {
        assert!(self.held > 0, "only a held entry is answered");
        self.held -= 1;
        self.pause = self.pause.saturating_sub(1);
        if self.held == 0 && self.pause == 0 {
            self.limit = ENTRIES_MAX;
        }
    }

    /// It cannot have more entries than it has.
    pub fn is_full(&mut self) {
        self.limit = self.entries;
    }

    /// The kernel refused an entry: what it refused once it would refuse again at once.
    pub fn refused(&mut self) {
        self.lost();
        self.is_full();
        self.pause = ANSWERED_AFTER_REFUSAL;
    }

    /// The kernel gave an entry back without a request, and will not use it again.
    pub fn lost(&mut self) {
        assert!(self.entries > self.held, "the kernel had the entry");
        self.entries -= 1;
    }

    /// Entries, held or in the kernel.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Entries that the kernel has: of the others, the request is not answered.
    pub fn in_kernel(&self) -> usize {
        self.entries - self.held
    }

    /// How many entries to add: as many again, if few are left.
    pub fn missing(&self) -> usize {
        let more = self.limit.saturating_sub(self.entries);
        if self.in_kernel() >= SPARE_MIN { 0 } else { self.entries.max(1).min(more) }
    }

    /// Whether a request may wait for a lock.
    pub fn may_wait(&self) -> bool {
        self.held <= self.limit.saturating_sub(SPARE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_grows_as_its_entries_are_held_and_keeps_some_for_others() {
        let mut queue = Queue::new(0);
        (0..ENTRIES_FIRST).for_each(|_| queue.registered());
        assert_eq!((queue.missing(), queue.in_kernel()), (0, ENTRIES_FIRST));
        let mut growths = 0;
        while queue.may_wait() {
            queue.received();
            let missing = queue.missing();
            growths += usize::from(missing > 0);
            (0..missing).for_each(|_| queue.registered());
        }
        assert_eq!((queue.entries(), queue.in_kernel()), (ENTRIES_MAX, SPARE_MIN - 1));
        assert_eq!(growths, (ENTRIES_MAX / ENTRIES_FIRST).ilog2() as usize);
        (0..SPARE_MIN - 1).for_each(|_| queue.received());
        assert_eq!((queue.missing(), queue.in_kernel()), (0, 0), "there is a limit");
        queue.committed();
        queue.lost();
        assert_eq!((queue.entries(), queue.missing()), (ENTRIES_MAX - 1, 1), "what is lost is replaced");
    }

    #[test]
    fn a_queue_without_memory_keeps_entries_for_others_and_asks_again_later() {
        let mut queue = Queue::new(0);
        (0..ENTRIES_FIRST).for_each(|_| queue.registered());
        (0..=ENTRIES_FIRST - SPARE_MIN).for_each(|_| queue.received());
        assert!(queue.missing() > 0 && queue.may_wait());
        queue.is_full();
        assert_eq!((queue.missing(), queue.may_wait()), (0, false));
        queue.committed();
        assert!(queue.may_wait());
        (0..ENTRIES_FIRST - SPARE_MIN).for_each(|_| queue.committed());
        (0..=ENTRIES_FIRST - SPARE_MIN).for_each(|_| queue.received());
        assert!(queue.missing() > 0, "there may be memory again");
    }

    #[test]
    fn a_queue_whose_entries_are_refused_asks_again_after_many_requests() {
        let mut queue = Queue::new(0);
        (0..ENTRIES_FIRST).for_each(|_| queue.registered());
        (1..ENTRIES_FIRST).for_each(|_| queue.refused());
        for answered in 0..ANSWERED_AFTER_REFUSAL {
            assert_eq!((queue.entries(), queue.missing()), (1, 0), "after {answered}");
            queue.received();
            queue.committed();
        }
        assert_eq!(queue.missing(), 1);
    }
}
