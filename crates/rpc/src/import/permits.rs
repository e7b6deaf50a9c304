//! A number of permits that can be changed while some are in use: an increase takes effect at once,
//! a decrease as permits are returned.

use parking_lot::Mutex;
use tokio::sync::Semaphore;

struct Count {
    /// Permits that exist, in the semaphore or with their takers.
    existing: u16,
    /// Of these, to be taken out of circulation as they come back.
    surplus: u16,
}

impl Count {
    fn effective(&self) -> u16 {
        self.existing - self.surplus
    }
}

/// See the module documentation.
pub(super) struct Permits {
    semaphore: Semaphore,
    count: Mutex<Count>,
}

impl Permits {
    pub(super) fn new(count: u16) -> Self {
        let semaphore = Semaphore::new(usize::from(count));
        Self { semaphore, count: Mutex::new(Count { existing: count, surplus: 0 }) }
    }

    /// Where permits are taken. A permit that is forgotten there must be given back here.
    pub(super) fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// A permit that was forgotten comes back: lets the next one have it.
    pub(super) fn give_back(&self) {
        {
            let mut count = self.count.lock();
            if count.surplus > 0 {
                count.surplus -= 1;
                count.existing -= 1;
                return;
            }
        }
        self.semaphore.add_permits(1);
    }

    /// How many there are, or will be once enough have come back.
    pub(super) fn count(&self) -> u16 {
        self.count.lock().effective()
    }

    /// Makes their number `goal`.
    pub(super) fn resize(&self, goal: u16) {
        let mut count = self.count.lock();
        let effective = count.effective();
        if goal >= effective {
            let kept = (goal - effective).min(count.surplus);
            count.surplus -= kept;
            let new = goal - effective - kept;
            count.existing += new;
            drop(count);
            self.semaphore.add_permits(usize::from(new));
        } else {
            let excess = effective - goal;
            let forgotten = self.semaphore.forget_permits(usize::from(excess)) as u16;
            count.existing -= forgotten;
            count.surplus += excess - forgotten;
        }
    }

    /// Tasks that wait for one are told that none will come.
    pub(super) fn close(&self) {
        self.semaphore.close();
    }
}
