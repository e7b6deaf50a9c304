//! Published profiles of file systems in use: how large their files are, and how long they live.
//! The figures are those of Geriatrix (Kadekodi, Nagarajan, Ganger, Gibson: "Geriatrix: Aging what
//! you see and what you don't see", USENIX ATC 2018), files `profiles/*/size_distribution.txt` and
//! `age_distribution.txt` of its sources.
//!
//! A profile counts files by classes. What it does not say is assumed:
//!
//! - Sizes within a class are uniformly distributed. (Geriatrix gives all files of a class the size
//!   of its end, so that what is deleted leaves room for exactly what is written.)
//! - Ages are those of the files of one moment, in a population that neither grows nor shrinks.
//!   There, as many files are of an age as live at least so long: so the density of the ages is the
//!   part that survives, made monotone from the old ages on. (Few files of a snapshot are very
//!   young; that would mean that files are born old.)
//! - Lifetimes do not depend on the size.

use clap::ValueEnum;
use types::{SplitMix64, limits::BLOCK_BYTES};

/// A profile of Geriatrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Desktops of a company (Agrawal and others, 2007): files of 8 bytes to 8 MiB
    Agrawal,
    /// A file system with files of 1 KiB to 32 GiB
    Pramod,
    /// A file system of a computing centre (Wang, 2012): files of 32 bytes to 2 MiB
    WangLanl,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl Profile {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Agrawal => "agrawal",
            Profile::Pramod => "pramod",
            Profile::WangLanl => "wang-lanl",
        }
    }

    /// Largest file of each class, and files.
    fn sizes(self) -> &'static [(u64, u64)] {
        match self {
            Profile::Agrawal => &[
                (8, 1),
                (32, 7),
                (128, 16),
                (512, 40),
                (2 * KIB, 50),
                (8 * KIB, 46),
                (32 * KIB, 35),
                (128 * KIB, 20),
                (512 * KIB, 10),
                (2 * MIB, 4),
                (8 * MIB, 1),
            ],
            Profile::Pramod => &[
                (KIB, 365_208),
                (2 * KIB, 131_796),
                (4 * KIB, 115_274),
                (8 * KIB, 97_335),
                (16 * KIB, 65_749),
                (32 * KIB, 36_649),
                (64 * KIB, 26_563),
                (128 * KIB, 18_681),
                (256 * KIB, 9046),
                (512 * KIB, 4537),
                (MIB, 3457),
                (2 * MIB, 2426),
                (4 * MIB, 4395),
                (8 * MIB, 2190),
                (16 * MIB, 1127),
                (32 * MIB, 418),
                (64 * MIB, 245),
                (128 * MIB, 160),
                (256 * MIB, 81),
                (512 * MIB, 12),
                (GIB, 32),
                (2 * GIB, 12),
                (4 * GIB, 1),
                (8 * GIB, 1),
                (16 * GIB, 1),
                (32 * GIB, 1),
            ],
            Profile::WangLanl => &[
                (32, 1),
                (512, 1),
                (2 * KIB, 1),
                (4 * KIB, 1),
                (32 * KIB, 1),
                (64 * KIB, 1),
                (128 * KIB, 47),
                (256 * KIB, 20),
                (512 * KIB, 10),
                (MIB, 1),
                (2 * MIB, 1),
            ],
        }
    }

    /// Highest age of each class, in any unit, and files.
    fn ages(self) -> &'static [(f64, f64)] {
        match self {
            Profile::Agrawal => &[
                (10.74, 1.0),
                (31.0, 2.0),
                (85.98, 8.0),
                (240.0, 20.0),
                (687.87, 44.0),
                (1945.59, 75.0),
                (5502.98, 144.0),
                (15_768.0, 146.0),
                (44_023.9, 23.0),
                (122_640.0, 1.0),
            ],
            Profile::Pramod => &[
                (1.0, 32.0),
                (512.0, 0.0),
                (1024.0, 7632.0),
                (2048.0, 6780.0),
                (4096.0, 2735.0),
                (8192.0, 73_004.0),
                (16_384.0, 584_199.0),
                (32_768.0, 211_013.0),
            ],
            Profile::WangLanl => &[
                (2.0, 1.0),
                (4.0, 1.0),
                (8.0, 1.0),
                (16.0, 1.0),
                (32.0, 3.0),
                (64.0, 35.0),
                (128.0, 51.0),
                (256.0, 42.0),
                (512.0, 47.0),
                (1024.0, 18.0),
                (2048.0, 1.0),
                (4096.0, 1.0),
            ],
        }
    }
}

/// A number from 0 to 1, without 1.
fn part(random: &mut SplitMix64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws sizes of files.
pub(super) struct Sizes {
    /// Bytes that a file of the class has more than, bytes it has at most, and all files up to it.
    classes: Vec<(u64, u64, u64)>,
}

impl Sizes {
    /// The classes of a profile whose files are at least and at most so large; `None` if there are
    /// none.
    pub(super) fn new(profile: Profile, smallest: u64, largest: u64) -> Option<Self> {
        let (mut classes, mut before, mut files) = (Vec::new(), 0, 0);
        for &(most, weight) in profile.sizes() {
            let more_than = std::mem::replace(&mut before, most);
            if more_than + 1 >= smallest && most <= largest {
                files += weight;
                classes.push((more_than, most, files));
            }
        }
        (!classes.is_empty()).then_some(Self { classes })
    }

    /// Blocks of the next file, at least one.
    pub(super) fn draw(&self, random: &mut SplitMix64) -> u64 {
        let all = self.classes.last().map_or(1, |(.., files)| *files);
        let number = random.next_u64() % all;
        let class = self.classes.partition_point(|(.., files)| *files <= number);
        let (more_than, most, _) = self.classes[class];
        (more_than + 1 + random.next_u64() % (most - more_than)).div_ceil(BLOCK_BYTES)
    }
}

/// Draws lifetimes of files, whose mean is 1.
pub(super) struct Lifetimes {
    /// Shortest and longest lifetime of the class, and the part of all files up to it.
    classes: Vec<(f64, f64, f64)>,
}

impl Lifetimes {
    /// Those of a profile.
    pub(super) fn new(profile: Profile) -> Self {
        let mut classes = Vec::new();
        let mut from = 0.0;
        for &(to, files) in profile.ages() {
            classes.push((from, to, files / (to - from)));
            from = to;
        }
        let mut survives = 0.0;
        for class in classes.iter_mut().rev() {
            survives = class.2.max(survives);
            class.2 = survives;
        }
        let all = survives;
        let after: Vec<f64> = classes.iter().skip(1).map(|class| class.2).chain([0.0]).collect();
        let (mut mean, mut before) = (0.0, 0.0);
        for (class, after) in classes.iter_mut().zip(after) {
            class.2 = 1.0 - after / all;
            mean += (class.2 - before) * (class.0 + class.1) / 2.0;
            before = class.2;
        }
        let classes = classes.into_iter().map(|(from, to, part)| (from / mean, to / mean, part)).collect();
        Self { classes }
    }

    /// The next file's.
    pub(super) fn draw(&self, random: &mut SplitMix64) -> f64 {
        let part_of_all = part(random);
        let class = self.classes.partition_point(|(.., part)| *part <= part_of_all).min(self.classes.len() - 1);
        let (from, to, _) = self.classes[class];
        from + (to - from) * part(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Profile; 3] = [Profile::Agrawal, Profile::Pramod, Profile::WangLanl];

    #[test]
    fn sizes_are_as_often_as_the_profile_has_them() {
        let (sizes, mut random) = (Sizes::new(Profile::Pramod, 0, 32 * GIB).unwrap(), SplitMix64(1));
        let drawn: Vec<u64> = (0..200_000).map(|_| sizes.draw(&mut random)).collect();
        let part = |wanted: &dyn Fn(u64) -> bool| drawn.iter().filter(|blocks| wanted(**blocks)).count() as f64 / 2e5;
        // 612,278 of 885,397 files have 4 KiB at most, 14,559 have more than 512 KiB.
        assert!((part(&|blocks| blocks == 1) - 0.6915).abs() < 0.005);
        assert!((part(&|blocks| blocks > 128) - 0.01644).abs() < 0.002);
        let some = Sizes::new(Profile::Pramod, MIB, 4 * MIB).unwrap();
        assert!((0..1000).map(|_| some.draw(&mut random)).all(|blocks| (257..=1024).contains(&blocks)));
        assert!(Sizes::new(Profile::WangLanl, GIB, 2 * GIB).is_none());
    }

    #[test]
    fn lifetimes_have_a_mean_of_one_and_lead_to_the_ages_of_the_profile() {
        for profile in ALL {
            let (lifetimes, mut random) = (Lifetimes::new(profile), SplitMix64(2));
            let drawn: Vec<f64> = (0..200_000).map(|_| lifetimes.draw(&mut random)).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            assert!((mean - 1.0).abs() < 0.02, "{profile:?}: {mean}");
        }
        // Of Wang's files of more than 64 units, 51 of 160 have 128 at most. A file is of such an
        // age for as long as it lives between them.
        let (lifetimes, mut random) = (Lifetimes::new(Profile::WangLanl), SplitMix64(3));
        let unit = lifetimes.classes[5].1 / 64.0;
        let at = |lifetime: f64, from: f64, to: f64| (lifetime.min(to * unit) - from * unit).max(0.0);
        let (mut between, mut above) = (0.0, 0.0);
        for _ in 0..400_000 {
            let lifetime = lifetimes.draw(&mut random);
            between += at(lifetime, 64.0, 128.0);
            above += at(lifetime, 64.0, 4096.0);
        }
        // The part that dies within a class is spread over it, so it is not exact.
        assert!((0.2..0.4).contains(&(between / above)), "{}", between / above);
    }
}
