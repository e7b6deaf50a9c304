//! The order in which the queued frames of one direction of a connection leave.
//!
//! ```text
//!   push an urgent frame --> first --+
//!                                    +--> leave in this order
//!   push any other frame --> rest  --+
//! ```
//!
//! Invariants: frames of the same lane leave in the order they were pushed; a frame that has begun
//! to leave is finished before any other ([`Lanes::keep_begun_first`]). Downside: as long as urgent
//! frames come, no other leaves; what may be urgent at a time is bounded by the slots for it.

use std::collections::VecDeque;

/// Frames for which an empty queue keeps memory, in each lane.
const KEPT: usize = 32;

/// Queued frames, or what stands for them.
#[derive(Debug)]
pub(crate) struct Lanes<T> {
    /// A frame that has begun to leave, if any, then urgent ones.
    first: VecDeque<T>,
    /// All others, none begun.
    rest: VecDeque<T>,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self { first: VecDeque::new(), rest: VecDeque::new() }
    }
}

impl<T> Lanes<T> {
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.rest.is_empty()
    }

    /// Adds a frame at the end of its lane.
    pub fn push(&mut self, frame: T, is_urgent: bool) {
        if is_urgent { &mut self.first } else { &mut self.rest }.push_back(frame);
    }

    /// All in the order in which they leave.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    /// The next to leave.
    pub fn front_mut(&mut self) -> Option<&mut T> {
        self.first.front_mut().or(self.rest.front_mut())
    }

    /// Takes the next to leave.
    pub fn pop(&mut self) -> Option<T> {
        self.first.pop_front().or_else(|| self.rest.pop_front())
    }

    /// The next frame has begun to leave: nothing passes it any more.
    pub fn keep_begun_first(&mut self) {
        if self.first.is_empty() {
            self.first.extend(self.rest.pop_front());
        }
    }

    /// Moves the urgent frames of a later queue to the end of these urgent ones.
    pub fn take_urgent(&mut self, later: &mut Self) {
        self.first.append(&mut later.first);
    }

    /// Gives up memory beyond what the next frames are likely to need.
    pub fn shrink(&mut self) {
        self.first.shrink_to(KEPT);
        self.rest.shrink_to(KEPT);
    }

    /// Adds a later queue.
    pub fn append(&mut self, mut later: Self) {
        self.first.append(&mut later.first);
        self.rest.append(&mut later.rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URGENT: bool = true;

    fn lanes(frames: &[(&'static str, bool)]) -> Lanes<&'static str> {
        let mut lanes = Lanes::default();
        frames.iter().for_each(|(frame, is_urgent)| lanes.push(*frame, *is_urgent));
        lanes
    }

    fn drained(mut lanes: Lanes<&'static str>) -> Vec<&'static str> {
        let in_order: Vec<_> = lanes.iter().copied().collect();
        let popped: Vec<_> = std::iter::from_fn(|| lanes.pop()).collect();
        assert_eq!(in_order, popped);
        popped
    }

    #[test]
    fn urgent_frames_pass_others_and_keep_their_order() {
        let lanes = lanes(&[("a", false), ("b", URGENT), ("c", false), ("d", URGENT)]);
        assert_eq!(drained(lanes), ["b", "d", "a", "c"]);
    }

    #[test]
    fn nothing_passes_a_frame_that_has_begun() {
        let mut begun = lanes(&[("a", false), ("b", false)]);
        begun.keep_begun_first();
        begun.push("c", URGENT);
        // It has still not ended, and another urgent one comes.
        begun.keep_begun_first();
        begun.push("d", URGENT);
        assert_eq!(drained(begun), ["a", "c", "d", "b"]);
    }

    #[test]
    fn queues_are_joined_lane_by_lane() {
        let mut batch = lanes(&[("a", false), ("b", URGENT)]);
        let mut later = lanes(&[("c", false), ("d", URGENT)]);
        batch.take_urgent(&mut later);
        assert_eq!(batch.iter().copied().collect::<Vec<_>>(), ["b", "d", "a"]);
        batch.append(later);
        assert_eq!(drained(batch), ["b", "d", "a", "c"]);
    }
}
