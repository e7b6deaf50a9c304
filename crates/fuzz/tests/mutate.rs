//! Damage: bits flipped, bytes replaced by interesting ones, pieces cut out, repeated, swapped
//! between inputs.

use rt::{Entropy, memory::SeededEntropy};

/// Longest input made.
const INPUT_BYTES_MAX: usize = 1 << 16;
/// Bytes at which numbers, lengths and signs change their meaning.
const TELLING: [u8; 10] = [0, 1, 2, 0x7f, 0x80, 0x81, 0xfe, 0xff, b'/', b'='];

/// Makes inputs from a corpus.
pub struct Mutator {
    random: SeededEntropy,
}

impl Mutator {
    /// The same seed and name give the same inputs.
    pub fn new(seed: u64, name: &str) -> Mutator {
        let mixed = name.bytes().fold(seed, |mixed, byte| mixed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        Mutator { random: SeededEntropy::new(mixed) }
    }

    fn below(&self, bound: usize) -> usize {
        (self.random.next_u64() % bound.max(1) as u64) as usize
    }

    /// True in `of` cases out of `among`.
    pub fn chance(&self, of: usize, among: usize) -> bool {
        self.below(among) < of
    }

    /// One input: an entry of the corpus with a few changes, now and then nothing but noise.
    pub fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        if self.chance(1, 50) {
            return (0..self.below(300)).map(|_| self.random.next_u64() as u8).collect();
        }
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut input, corpus);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len());
        match self.below(9) {
            0 if !input.is_empty() => input[at] ^= 1 << self.below(8),
            1 if !input.is_empty() => input[at] = TELLING[self.below(TELLING.len())],
            2 if !input.is_empty() => input[at] = self.random.next_u64() as u8,
            3 => input.truncate(at),
            4 => input.insert(at, TELLING[self.below(TELLING.len())]),
            5 if !input.is_empty() => drop(input.drain(at..(at + 1 + self.below(8)).min(input.len()))),
            6 => {
                // A number of two, four or eight bytes that is as large or small as can be, or
                // nearly.
                let bytes = [2, 4, 8][self.below(3)];
                let value = [u64::MAX, u64::MAX >> 1, 1 << 63, 0, u64::MAX - self.below(16) as u64][self.below(5)];
                for (place, byte) in input.iter_mut().skip(at).zip(&value.to_le_bytes()[..bytes]) {
                    *place = *byte;
                }
            }
            7 => {
                let piece: Vec<u8> = input[at..].iter().copied().take(1 + self.below(64)).collect();
                input.splice(at..at, piece);
            }
            _ => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len());
                input.truncate(at);
                input.extend_from_slice(other.get(from..).unwrap_or(&[]));
            }
        }
    }
}
