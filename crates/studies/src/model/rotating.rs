//! A model of an array of rotating drives, as one arm with the rate of all data drives: what it
//! costs to read and write given places. Contents are not modelled.
//!
//! | cost | figure |
//! |---|---|
//! | transfer | the drive's rate at that place: tracks at the start of the device are longer |
//! | positioning | a seek, which grows with the root of the distance, and half a turn; or the time in which a gap passes by, if that is shorter and ahead |
//! | a write that ends within a stripe | a turn: the rest of the stripe is read, to compute the parity |
//! | the way from and to the hosts | bytes at the rate of the target's share of its server |
//!
//! Requests come in batches, in which the drives serve them in the order of their places
//! (elevator). While the drives work on a batch, the next one travels: [`Pipeline`].
//!
//! Downside: all drives move together; in an array each waits for its own turn. Nothing is known of
//! flash: it has no arm.

use std::ops::Range;

use types::limits::BLOCK_BYTES;

/// Parameters of an array, which is one target.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct ArrayModel {
    /// Drives that hold data, without those for parity.
    pub data_drives: u32,
    /// Seconds to the next track.
    pub seek_seconds_min: f64,
    /// Seconds across the whole drive.
    pub seek_seconds_max: f64,
    /// Seconds of a turn.
    pub turn_seconds: f64,
    /// Rate of a drive at its start.
    pub outer_bytes_per_second: f64,
    /// Rate of a drive at its end.
    pub inner_bytes_per_second: f64,
    /// Blocks of a stripe over all data drives.
    pub stripe_blocks: u64,
    /// Rate of the target's share of its server.
    pub host_bytes_per_second: f64,
    /// Blocks of the device.
    pub blocks: u64,
}

/// What is done with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

/// An array and where its arm is.
#[derive(Clone, Debug)]
pub struct Array {
    model: ArrayModel,
    /// The block after the last one that passed.
    arm: u64,
}

impl Array {
    /// An array whose arm is at its start.
    pub fn new(model: ArrayModel) -> Self {
        Self { model, arm: 0 }
    }

    /// Seconds that the drives are busy with a batch.
    pub fn serve(&mut self, access: Access, mut batch: Vec<Range<u64>>) -> f64 {
        batch.sort_unstable_by_key(|place| place.start);
        let mut seconds = 0.0;
        let mut places = batch.into_iter().peekable();
        while let Some(mut place) = places.next() {
            while let Some(next) = places.next_if(|next| next.start <= place.end) {
                place.end = place.end.max(next.end);
            }
            seconds += self.position(place.start) + self.transfer(&place);
            if access == Access::Write {
                let broken =
                    [place.start, place.end].into_iter().filter(|end| !end.is_multiple_of(self.model.stripe_blocks));
                seconds += broken.count() as f64 * self.model.turn_seconds;
            }
            self.arm = place.end;
        }
        seconds
    }

    /// Seconds until a place is under the arm.
    fn position(&self, start: u64) -> f64 {
        if start == self.arm {
            return 0.0;
        }
        let part = self.arm.abs_diff(start) as f64 / self.model.blocks as f64;
        let range = self.model.seek_seconds_max - self.model.seek_seconds_min;
        let seek = self.model.seek_seconds_min + range * part.min(1.0).sqrt() + self.model.turn_seconds / 2.0;
        if start > self.arm { seek.min(self.transfer(&(self.arm..start))) } else { seek }
    }

    /// Seconds in which these blocks pass.
    fn transfer(&self, place: &Range<u64>) -> f64 {
        let ArrayModel { outer_bytes_per_second: outer, inner_bytes_per_second: inner, data_drives, blocks, .. } =
            self.model;
        let part = place.start as f64 / blocks as f64;
        let rate = (outer + (inner - outer) * part) * f64::from(data_drives);
        (place.end - place.start) as f64 * BLOCK_BYTES as f64 / rate
    }

    /// Seconds in which these blocks travel.
    pub fn travel(&self, blocks: u64) -> f64 {
        (blocks * BLOCK_BYTES) as f64 / self.model.host_bytes_per_second
    }
}

/// Two stages that work at the same time, with room for one batch between them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pipeline {
    first_free: f64,
    /// When the second stage was done with the last batch, and with the one before.
    second_done: [f64; 2],
}

impl Pipeline {
    /// A batch passes, which takes so many seconds in each stage.
    pub fn pass(&mut self, first: f64, second: f64) {
        let [last, before] = self.second_done;
        self.first_free = self.first_free.max(before) + first;
        self.second_done = [last.max(self.first_free) + second, last];
    }

    /// When everything has passed.
    pub fn seconds(&self) -> f64 {
        self.second_done[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ArrayModel = ArrayModel {
        data_drives: 8,
        seek_seconds_min: 0.001,
        seek_seconds_max: 0.011,
        turn_seconds: 0.008,
        outer_bytes_per_second: 160.0 * 1_048_576.0,
        inner_bytes_per_second: 80.0 * 1_048_576.0,
        stripe_blocks: 256,
        host_bytes_per_second: 640.0 * 1_048_576.0,
        blocks: 1 << 30,
    };

    fn one(place: Range<u64>) -> Vec<Range<u64>> {
        vec![place]
    }

    fn is_near(seconds: f64, wanted: f64) {
        assert!((seconds - wanted).abs() < 1e-6, "{seconds} instead of {wanted}");
    }

    #[test]
    fn neighbours_stream_and_gaps_cost_a_seek_or_their_passing() {
        let mut array = Array::new(MODEL);
        // 1280 MiB/s at the start; 2 MiB in any order.
        is_near(array.serve(Access::Write, vec![256..512, 0..256]), 2.0 / 1280.0);
        is_near(array.serve(Access::Read, one(768..1024)), 2.0 / 1280.0);
        let far = MODEL.blocks / 4;
        let rate = 1280.0 * 0.875;
        let arrives = array.serve(Access::Read, one(far..far + 256));
        assert!((arrives - (0.001 + 0.01 * 0.5 + 0.004 + 1.0 / rate)).abs() < 1e-5, "{arrives}");
        let back = array.serve(Access::Read, one(far - 256..far));
        assert!(back > 0.005, "nothing passes backwards: {back}");
    }

    #[test]
    fn a_broken_stripe_costs_a_turn_to_write_and_nothing_to_read() {
        let mut array = Array::new(MODEL);
        let read = array.serve(Access::Read, one(0..100));
        array.arm = 0;
        is_near(array.serve(Access::Write, one(0..100)), read + 0.008);
        array.arm = 100;
        is_near(array.serve(Access::Write, one(100..200)), read + 0.016);
    }

    #[test]
    fn the_slower_stage_decides_and_the_other_hides() {
        for (first, second) in [(1.0, 3.0), (3.0, 1.0)] {
            let mut pipeline = Pipeline::default();
            (0..10).for_each(|_| pipeline.pass(first, second));
            is_near(pipeline.seconds(), 31.0);
        }
        let mut pipeline = Pipeline::default();
        for second in [9.0, 0.0, 0.0, 0.0] {
            pipeline.pass(1.0, second);
        }
        // The third waits until the first is done, at 10, and the fourth comes after it.
        is_near(pipeline.seconds(), 12.0);
    }
}
