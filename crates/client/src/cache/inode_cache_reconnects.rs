//! The same with connections that break: the MDT drops the locks when the next connection begins,
//! other clients make changes, and then the cache claims its locks. A claim may be overtaken by a
//! callback for the lock that it brings, and its connection may break, too.

use super::*;

impl World {
    /// The connection breaks and others begin, until one lasts. Returns how many locks were kept.
    fn reconnect(&mut self) -> usize {
        loop {
            if self.below(2) == 0 {
                self.cache.connect(None);
            }
            self.deliver_while_parted();
            // The MDT drops the locks.
            self.mdt.locks.clear();
            (self.callbacks, self.cancels) = (Vec::new(), Vec::new());
            self.connection.1 = self.connection.1.next();
            for _ in 0..self.below(3) {
                if self.mdt.waiting.is_none() {
                    self.mdt.waiting = Some(self.change());
                }
                self.change_by_other();
            }
            let kept = self.claim();
            if self.below(4) > 0 {
                self.cache.end_claim(self.connection);
                self.deliver_while_parted();
                self.cache.connect(Some(self.connection));
                self.check();
                return kept;
            }
        }
    }

    /// Replies that had come before the connection broke.
    fn deliver_while_parted(&mut self) {
        if self.below(2) == 0 {
            self.deliver_one();
        }
    }

    fn claim(&mut self) -> usize {
        let mut kept = 0;
        for claim in self.cache.begin_claim(self.connection) {
            if self.below(8) == 0 && self.mdt.waiting.is_none() {
                self.mdt.waiting = Some(self.change());
                self.change_by_other();
            }
            let concerned = self.mdt.waiting.as_ref().map(|request| self.mdt.concerned(request)).unwrap_or_default();
            let is_unchanged = self.mdt.nodes.get(&claim.inode).is_some_and(|node| node.version == claim.version);
            let bits = claim.bits.0;
            let is_free = self.mdt.grantable(claim.inode, bits, &concerned) == bits;
            let granted = (is_unchanged && is_free).then(|| LockHandle(self.mdt.number()));
            if let Some(handle) = granted {
                self.mdt.locks.insert(handle, (claim.inode, bits));
                kept += 1;
                if self.below(4) == 0 {
                    // A callback overtakes the answer.
                    assert_eq!(self.cache.withdraw(handle), None);
                    self.withdrawn.insert(handle);
                    self.cancels.push(handle);
                }
            }
            if self.below(4) == 0 {
                self.deliver_while_parted();
            }
            let released = self.cache.claimed(self.connection, &claim, granted);
            self.cancels.extend(released.map(|released| released.handle));
        }
        kept
    }
}

#[test]
fn what_is_served_after_claims_is_what_the_mdt_would_answer() {
    let (mut served, mut kept) = (0, 0);
    for seed in 0..500 {
        let mut world = if seed % 2 == 0 { World::new(seed) } else { World::busy(seed) };
        for _ in 0..400 {
            world.step();
            if world.below(40) == 0 {
                kept += world.reconnect();
            }
        }
        served += world.served;
    }
    assert!(kept > 2_000, "only {kept} locks were kept");
    assert!(served > 20_000, "only {served} answers came from the cache");
}
