//! Generates operations: few names, so that operations conflict; sizes near stripe and block
//! boundaries, where mistakes are likely.

use rt::Entropy;

use super::operation::{Operation, RenameFlag};
use crate::Random;

/// What kind of workload.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Names per directory.
    pub names: u64,
    /// Depth of paths.
    pub depth: u64,
    /// Largest file offset.
    pub bytes_max: u64,
    /// Everything happens below this directory (empty: the root).
    pub prefix: String,
}

impl Default for Shape {
    fn default() -> Self {
        Self { names: 4, depth: 3, bytes_max: 700_000, prefix: String::new() }
    }
}

/// A stream of operations.
pub struct Generator {
    random: Random,
    shape: Shape,
}

impl Generator {
    /// The stream of `seed`.
    pub fn new(seed: u64, shape: Shape) -> Self {
        Self { random: Random::for_purpose(seed, "operations"), shape }
    }

    fn path(&self) -> String {
        let depth = 1 + self.random.below(self.shape.depth);
        let mut names: Vec<String> = Vec::new();
        if !self.shape.prefix.is_empty() {
            names.push(self.shape.prefix.clone());
        }
        names.extend((0..depth).map(|_| format!("n{}", self.random.below(self.shape.names))));
        names.join("/")
    }

    /// An offset: anywhere, or next to a border of a block or a stripe.
    fn offset(&self) -> u64 {
        let anywhere = self.random.below(self.shape.bytes_max);
        let border = match self.random.below(3) {
            0 => return anywhere,
            1 => anywhere / 4096 * 4096,
            _ => anywhere / 65536 * 65536,
        };
        (border + self.random.below(3)).saturating_sub(1)
    }

    fn bytes(&self) -> usize {
        match self.random.below(4) {
            0 => self.random.below(100) as usize,
            1 => self.random.below(10_000) as usize,
            2 => 4096 * (1 + self.random.below(20) as usize),
            _ => self.random.below(200_000) as usize,
        }
    }

    fn mode(&self) -> u32 {
        *self.random.pick(&[0o644, 0o600, 0o755, 0o777, 0o400, 0o4755, 0o2755, 0o1777])
    }

    fn seed(&self) -> u8 {
        self.random.below(256) as u8
    }

    /// The next operation.
    pub fn operation(&self) -> Operation {
        let path = self.path();
        match self.random.below(100) {
            0..12 => Operation::Create { path, mode: self.mode(), exclusive: self.random.happens(300_000) },
            12..20 => Operation::MakeDirectory { path, mode: self.mode() & 0o1777 },
            20..22 => Operation::Symlink { path, target: format!("nowhere/{}", self.random.below(1000)) },
            22..23 => Operation::MakeFifo { path, mode: self.mode() & 0o777 },
            23..25 => Operation::ReadLink { path },
            25..31 => Operation::Unlink { path },
            31..35 => Operation::RemoveDirectory { path },
            35..43 => {
                let flag = *self.random.pick(&[
                    RenameFlag::Replace,
                    RenameFlag::Replace,
                    RenameFlag::NoReplace,
                    RenameFlag::Exchange,
                ]);
                Operation::Rename { from: path, to: self.path(), flag }
            }
            43..47 => Operation::Link { from: path, to: self.path() },
            47..60 => Operation::Write { path, offset: self.offset(), bytes: self.bytes(), seed: self.seed() },
            60..65 => Operation::Append { path, bytes: self.bytes(), seed: self.seed() },
            65..75 => Operation::Read { path, offset: self.offset(), bytes: self.bytes() },
            75..80 => Operation::Truncate { path, size: self.offset() },
            80..82 => Operation::Allocate { path, offset: self.offset(), bytes: 1 + self.bytes() as u64 },
            82..84 => Operation::Punch { path, offset: self.offset(), bytes: 1 + self.bytes() as u64 },
            84..86 => Operation::Zero { path, offset: self.offset(), bytes: 1 + self.bytes() as u64 },
            86..88 => Operation::Stat { path },
            88..90 => Operation::Move { path },
            90..91 => Operation::Split { path },
            91..94 => Operation::List { path },
            94..95 => Operation::SetMode { path, mode: self.mode() },
            95..98 => self.xattr(path),
            98..99 => Operation::Migrate { path, layout: self.seed() },
            _ => Operation::Sync { path },
        }
    }

    fn xattr(&self, path: String) -> Operation {
        let name = format!("user.x{}", self.random.below(3));
        match self.random.below(4) {
            0 => Operation::RemoveXattr { path, name },
            1 => Operation::GetXattr { path, name },
            _ => Operation::SetXattr { path, name, value: vec![self.seed(); self.random.below(200) as usize] },
        }
    }
}
