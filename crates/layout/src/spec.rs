//! A user's request for a layout (`lfs setstripe`), before targets are chosen: for a file, or as a
//! directory's default.
//!
//! [`resolve`] decides which request applies to a new file (its own, its directory's, the file
//! system's) and fills in what was not specified; the result ([`Resolved`]) is complete and valid.
//! [`crate::placement`] then chooses the targets of the stripes.

use serde::{Deserialize, Serialize};
use types::{
    FsError, OstIndex,
    limits::{STRIPE_BYTES_DEFAULT, STRIPE_BYTES_MIN, STRIPE_COUNT_MAX},
};

use crate::{
    limits::{COMPONENTS_MAX, END_OF_FILE, EXTENSION_BYTES_END},
    plain::{PlainLayoutError, check_stripe_bytes, has_repeated},
};

/// Longest name of a pool of OSTs, in bytes (Lustre's LOV_MAXPOOLNAME).
pub const POOL_NAME_BYTES_MAX: usize = 15;
/// Asked for instead of a pool: none, whatever the directory says (`-p ignore`). No pool can be
/// called so.
pub const POOL_IGNORED: &str = "ignore";
/// Most stripes per OST that overstriping by a negative count can ask for (`-C -32`).
pub const STRIPES_PER_OST_MAX: u32 = 32;

/// Requested number of stripes. Variants are only appended (wire format).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StripeCount {
    /// The file system's default (`-c 0`).
    #[default]
    Default,
    /// This many (1..=2000), fewer if there are fewer usable OSTs.
    Exactly(u32),
    /// One on every usable OST (`-c -1`).
    All,
    /// This many (1..=2000), several on one OST if there are fewer OSTs (`-C 8`).
    Overstriped(u32),
    /// This many (1..=32) on every usable OST (`-C -2`).
    PerOst(u32),
}

/// Requested stripes. Fields left at their default are filled from the parent directory's default,
/// then from the file system's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StripeSpec {
    /// `-c`, `-C`
    pub stripe_count: StripeCount,
    /// `-S`, bytes; a multiple of 64 KiB below 4 GiB.
    pub stripe_bytes: Option<u64>,
    /// `-i`: the OST of the first stripe; `None` (`-1`) lets the placement choose.
    pub first_ost: Option<OstIndex>,
    /// `-o`: exactly these OSTs in this order, one stripe each; empty: the placement chooses.
    pub osts: Vec<OstIndex>,
    /// `-p`: only OSTs of this pool; [`POOL_IGNORED`]: of no pool.
    pub pool: Option<String>,
}

/// A requested component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentSpec {
    /// `-E`: where it ends; [`END_OF_FILE`] for `-1`. It begins where the one before it ends.
    pub end: u64,
    /// Its backing.
    pub backing: BackingSpec,
}

/// The backing of a requested component. Variants are only appended (wire format).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackingSpec {
    /// Stripes over OSTs.
    Striped(StripeSpec),
    /// The file's MDT (`-L mdt`).
    Mdt,
    /// Stripes that get their extent step by step, of this many bytes, as the file grows (`-z`).
    Extended(StripeSpec, u64),
    /// Decided as the file grows.
    Automatic,
}

/// A requested layout. Variants are only appended (wire format).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutSpec {
    /// One set of stripes for the whole file.
    Plain(StripeSpec),
    /// Components in order (`-E`).
    Composite(Vec<ComponentSpec>),
    /// The file system decides, as the file grows.
    Automatic,
}

impl Default for LayoutSpec {
    /// Nothing requested.
    fn default() -> Self {
        LayoutSpec::Plain(StripeSpec::default())
    }
}

/// Why a requested layout is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The stripe size is out of bounds.
    #[error(transparent)]
    StripeBytes(#[from] PlainLayoutError),
    /// Exactly 0, or more than 2000.
    #[error("stripe count {0} is not within 1..=2000")]
    StripeCount(u32),
    /// More stripes on one OST than 32, or 0.
    #[error("{0} stripes per OST are not within 1..=32")]
    StripesPerOst(u32),
    /// A count together with a list of OSTs of another length.
    #[error("stripe count {count} does not fit {osts} OSTs")]
    CountOfOsts {
        /// Stripes asked for.
        count: u32,
        /// OSTs listed.
        osts: usize,
    },
    /// A first OST that is not in the list of OSTs.
    #[error("{0} is not one of the requested OSTs")]
    FirstNotListed(OstIndex),
    /// A pool's name.
    #[error("'{0}' is not a pool name (1..=15 bytes)")]
    PoolName(String),
    /// No component, or too many.
    #[error("a layout of {0} components (1..={COMPONENTS_MAX} are possible)")]
    Components(usize),
    /// A component ends before it begins, or what follows the end of the file.
    #[error("a component ends at {end}, where the one before it ends at {start}")]
    Extent {
        /// Where it begins.
        start: u64,
        /// Where it would end.
        end: u64,
    },
    /// A component end that is no multiple of 64 KiB.
    #[error("component end {0} is not a multiple of 65536")]
    EndUnaligned(u64),
    /// A component end that is no multiple of its stripe size.
    #[error("component end {end} is not a multiple of its stripe size {stripe_bytes}")]
    EndWithinStripe {
        /// Where it ends.
        end: u64,
        /// Its stripe size.
        stripe_bytes: u64,
    },
    /// Data on the MDT after the first component.
    #[error("only the first component can be on the MDT")]
    MdtNotFirst,
    /// More on the MDT than `dom_stripesize`.
    #[error("a component of {end} bytes on the MDT is too large: at most {bytes_max}")]
    MdtTooLarge {
        /// Where it ends.
        end: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// An extension size that is no positive multiple of 64 KiB, or of the stripe size, or that
    /// Lustre's binary form cannot hold.
    #[error("extension size {0} is not a positive multiple of 65536 and of the stripe size, below 4 TiB")]
    ExtensionBytes(u64),
}

impl From<SpecError> for FsError {
    /// EINVAL, as Lustre answers.
    fn from(_: SpecError) -> Self {
        FsError::Invalid
    }
}

impl StripeSpec {
    /// Whether an OST may get several stripes: by the count, or because it is listed several times
    /// (which Lustre takes, too).
    pub fn is_overstriped(&self) -> bool {
        matches!(self.stripe_count, StripeCount::Overstriped(_) | StripeCount::PerOst(_)) || has_repeated(&self.osts)
    }

    /// Whether every field that is set is within its limits. Whether OSTs and pool exist is for the
    /// placement to say.
    pub fn validate(&self) -> Result<(), SpecError> {
        match self.stripe_count {
            StripeCount::Exactly(count) | StripeCount::Overstriped(count)
                if !(1..=STRIPE_COUNT_MAX).contains(&count) =>
            {
                return Err(SpecError::StripeCount(count));
            }
            StripeCount::PerOst(count) if !(1..=STRIPES_PER_OST_MAX).contains(&count) => {
                return Err(SpecError::StripesPerOst(count));
            }
            StripeCount::Exactly(count) if !self.osts.is_empty() && count as usize != self.osts.len() => {
                return Err(SpecError::CountOfOsts { count, osts: self.osts.len() });
            }
            _ => {}
        }
        if self.osts.len() > STRIPE_COUNT_MAX as usize {
            return Err(SpecError::StripeCount(self.osts.len() as u32));
        }
        if let Some(first) = self.first_ost
            && !self.osts.is_empty()
            && !self.osts.contains(&first)
        {
            return Err(SpecError::FirstNotListed(first));
        }
        if let Some(pool) = &self.pool
            && !is_pool_name(pool)
        {
            return Err(SpecError::PoolName(pool.clone()));
        }
        Ok(self.stripe_bytes.map_or(Ok(()), check_stripe_bytes)?)
    }

    /// The pool whose OSTs it asks for.
    pub fn restricted_to(&self) -> Option<&str> {
        self.pool.as_deref().filter(|name| *name != POOL_IGNORED)
    }

    /// This spec, its open fields filled from `other`.
    pub fn or(&self, other: &StripeSpec) -> StripeSpec {
        let chosen = if self.osts.is_empty() && self.first_ost.is_none() { other } else { self };
        let count_open = self.stripe_count == StripeCount::Default && self.osts.is_empty();
        StripeSpec {
            stripe_count: if count_open { other.stripe_count } else { self.stripe_count },
            stripe_bytes: self.stripe_bytes.or(other.stripe_bytes),
            first_ost: chosen.first_ost,
            osts: if self.stripe_count == StripeCount::Default { chosen.osts.clone() } else { self.osts.clone() },
            pool: self.pool.clone().or_else(|| other.pool.clone()),
        }
    }
}

/// Whether pools can be called so.
pub fn is_pool_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= POOL_NAME_BYTES_MAX && name.bytes().all(allowed)
}

impl ComponentSpec {
    /// Its stripes, if it has some.
    pub fn stripes(&self) -> Option<&StripeSpec> {
        match &self.backing {
            BackingSpec::Striped(stripes) | BackingSpec::Extended(stripes, _) => Some(stripes),
            BackingSpec::Mdt | BackingSpec::Automatic => None,
        }
    }

    fn validate(&self, start: u64, bytes_on_mdt_max: u64) -> Result<(), SpecError> {
        let end = self.end;
        if end <= start {
            return Err(SpecError::Extent { start, end });
        }
        let endless = end == END_OF_FILE;
        if !endless && !end.is_multiple_of(STRIPE_BYTES_MIN) {
            return Err(SpecError::EndUnaligned(end));
        }
        if let Some(stripes) = self.stripes() {
            stripes.validate()?;
            if let Some(stripe_bytes) = stripes.stripe_bytes
                && !endless
                && !end.is_multiple_of(stripe_bytes)
            {
                return Err(SpecError::EndWithinStripe { end, stripe_bytes });
            }
        }
        match &self.backing {
            BackingSpec::Mdt if start > 0 => Err(SpecError::MdtNotFirst),
            BackingSpec::Mdt if end > bytes_on_mdt_max => {
                Err(SpecError::MdtTooLarge { end, bytes_max: bytes_on_mdt_max })
            }
            BackingSpec::Extended(stripes, step) => {
                let unit = stripes.stripe_bytes.unwrap_or(STRIPE_BYTES_MIN);
                let fits = *step != 0 && step.is_multiple_of(STRIPE_BYTES_MIN) && step.is_multiple_of(unit);
                let fits = fits && *step < EXTENSION_BYTES_END;
                if fits { Ok(()) } else { Err(SpecError::ExtensionBytes(*step)) }
            }
            _ => Ok(()),
        }
    }
}

impl LayoutSpec {
    /// Whether it asks for nothing at all.
    pub fn is_open(&self) -> bool {
        *self == LayoutSpec::default()
    }

    /// Whether everything that is set is within its limits; `bytes_on_mdt_max`: most a component on
    /// the MDT may have.
    pub fn validate(&self, bytes_on_mdt_max: u64) -> Result<(), SpecError> {
        let components = match self {
            LayoutSpec::Plain(stripes) => return stripes.validate(),
            LayoutSpec::Automatic => return Ok(()),
            LayoutSpec::Composite(components) => components,
        };
        check_components(components, 0, bytes_on_mdt_max)
    }

    /// The same with at most so many bytes on the MDT: what follows there begins earlier; if
    /// nothing does, stripes of which all is left open take the rest. (Lustre shortens and drops
    /// components on the MDT likewise, by `dom_stripesize`.)
    pub fn with_at_most_on_mdt(self, bytes_on_mdt_max: u64) -> LayoutSpec {
        let LayoutSpec::Composite(mut components) = self else { return self };
        let bytes_on_mdt = bytes_on_mdt_max / STRIPE_BYTES_MIN * STRIPE_BYTES_MIN;
        let Some(first) =
            components.first_mut().filter(|one| one.backing == BackingSpec::Mdt && one.end > bytes_on_mdt)
        else {
            return LayoutSpec::Composite(components);
        };
        let end = std::mem::replace(&mut first.end, bytes_on_mdt);
        if components.len() == 1 {
            components.push(ComponentSpec { end, backing: BackingSpec::Striped(StripeSpec::default()) });
        }
        if bytes_on_mdt == 0 {
            components.remove(0);
        }
        LayoutSpec::Composite(components)
    }

    /// All OSTs it names.
    pub fn named_osts(&self) -> impl Iterator<Item = OstIndex> + '_ {
        self.all_stripes().flat_map(|stripes| stripes.osts.iter().copied().chain(stripes.first_ost))
    }

    /// All pools it names.
    pub fn named_pools(&self) -> impl Iterator<Item = &str> {
        self.all_stripes().filter_map(StripeSpec::restricted_to)
    }

    fn all_stripes(&self) -> impl Iterator<Item = &StripeSpec> {
        let components = match self {
            LayoutSpec::Composite(components) => components.as_slice(),
            LayoutSpec::Plain(_) | LayoutSpec::Automatic => &[],
        };
        let plain = match self {
            LayoutSpec::Plain(stripes) => Some(stripes),
            LayoutSpec::Composite(_) | LayoutSpec::Automatic => None,
        };
        components.iter().filter_map(ComponentSpec::stripes).chain(plain)
    }
}

/// Adds a component after the others. Consecutive automatic components become one.
pub(crate) fn push(components: &mut Vec<ComponentSpec>, next: ComponentSpec) {
    match components.last_mut() {
        Some(last) if last.backing == BackingSpec::Automatic && next.backing == BackingSpec::Automatic => {
            last.end = next.end;
        }
        _ => components.push(next),
    }
}

/// Whether these components can follow each other from `start` on.
pub fn check_components(components: &[ComponentSpec], start: u64, bytes_on_mdt_max: u64) -> Result<(), SpecError> {
    // An extended component becomes two.
    let extended = components.iter().filter(|one| matches!(one.backing, BackingSpec::Extended(..))).count();
    let count = components.len() + extended;
    if components.is_empty() || count > COMPONENTS_MAX {
        return Err(SpecError::Components(count));
    }
    let mut start = start;
    for component in components {
        component.validate(start, bytes_on_mdt_max)?;
        start = component.end;
    }
    Ok(())
}

/// How many stripes a component shall get, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedCount {
    /// This many (1..=2000), fewer if there are fewer usable OSTs.
    AtMost(u32),
    /// One on every usable OST, at most 2000.
    All,
    /// This many, several on one OST if necessary.
    Overstriped(u32),
    /// This many on every usable OST, at most 2000 in all.
    PerOst(u32),
}

/// Complete, valid stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedSpec {
    /// Number of stripes.
    pub stripe_count: ResolvedCount,
    /// Stripe size in bytes.
    pub stripe_bytes: u64,
    /// The OST of the first stripe; `None`: any.
    pub first_ost: Option<OstIndex>,
    /// Exactly these OSTs; empty: any.
    pub osts: Vec<OstIndex>,
    /// Only OSTs of this pool.
    pub pool: Option<String>,
}

impl Default for ResolvedSpec {
    /// What an untouched file system gives.
    fn default() -> Self {
        FileSystemDefault::default().fill(&StripeSpec::default())
    }
}

impl From<ResolvedSpec> for StripeSpec {
    fn from(resolved: ResolvedSpec) -> Self {
        let stripe_count = match resolved.stripe_count {
            ResolvedCount::AtMost(count) => StripeCount::Exactly(count),
            ResolvedCount::All => StripeCount::All,
            ResolvedCount::Overstriped(count) => StripeCount::Overstriped(count),
            ResolvedCount::PerOst(count) => StripeCount::PerOst(count),
        };
        StripeSpec {
            stripe_count,
            stripe_bytes: Some(resolved.stripe_bytes),
            first_ost: resolved.first_ost,
            osts: resolved.osts,
            pool: resolved.pool,
        }
    }
}

/// The file system's default for files without a requested layout (`lod.*.automatic`,
/// `stripecount`, `stripesize`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemDefault {
    /// Let layouts grow with the file.
    pub automatic: bool,
    /// Stripes, where they are not automatic and the request leaves their number open.
    pub stripe_count: ResolvedCount,
    /// Bytes per stripe, likewise.
    pub stripe_bytes: u64,
}

impl Default for FileSystemDefault {
    /// Automatic; where a request leaves stripes open, or automatic layouts are off: one stripe, 4
    /// MiB, anywhere (Lustre 2.17).
    fn default() -> Self {
        Self { automatic: true, stripe_count: ResolvedCount::AtMost(1), stripe_bytes: STRIPE_BYTES_DEFAULT }
    }
}

impl FileSystemDefault {
    /// `asked`, its open fields filled from these.
    pub fn fill(&self, asked: &StripeSpec) -> ResolvedSpec {
        ResolvedSpec {
            stripe_count: match asked.stripe_count {
                StripeCount::Default => self.stripe_count,
                StripeCount::Exactly(count) => ResolvedCount::AtMost(count),
                StripeCount::All => ResolvedCount::All,
                StripeCount::Overstriped(count) => ResolvedCount::Overstriped(count),
                StripeCount::PerOst(count) => ResolvedCount::PerOst(count),
            },
            stripe_bytes: asked.stripe_bytes.unwrap_or(self.stripe_bytes),
            first_ost: asked.first_ost,
            osts: asked.osts.clone(),
            pool: asked.restricted_to().map(str::to_owned),
        }
    }

    /// A component with a stripe size. Where that is left open it is the default, or the largest
    /// divisor of it in which the component's end, and the steps towards it, are whole stripes: so
    /// what is shown of it can be asked for again.
    pub fn sized(&self, asked: &ComponentSpec) -> ComponentSpec {
        let mut sized = asked.clone();
        let (stripes, step) = match &mut sized.backing {
            BackingSpec::Striped(stripes) => (stripes, 0),
            BackingSpec::Extended(stripes, step) => (stripes, *step),
            BackingSpec::Mdt | BackingSpec::Automatic => return sized,
        };
        let end = if asked.end == END_OF_FILE { 0 } else { asked.end };
        let fitting = [end, step].into_iter().fold(self.stripe_bytes, greatest_common_divisor);
        stripes.stripe_bytes.get_or_insert(fitting);
        sized
    }
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// What a new file gets: its own request, else its directory's default, else the file system's.
/// Plain requests are filled field by field from a plain default; anything else replaces what
/// stands after it as a whole.
///
/// ```
/// use layout::{FileSystemDefault, LayoutSpec, StripeCount, StripeSpec, resolve};
///
/// let default = FileSystemDefault::default();
/// assert_eq!(resolve(None, None, &default), LayoutSpec::Automatic);
///
/// let (two, of_4_mib) = (StripeCount::Exactly(2), Some(4 << 20));
/// let request = LayoutSpec::Plain(StripeSpec { stripe_count: two, ..StripeSpec::default() });
/// let directory = LayoutSpec::Plain(StripeSpec { stripe_bytes: of_4_mib, ..StripeSpec::default() });
/// let both = LayoutSpec::Plain(StripeSpec { stripe_count: two, stripe_bytes: of_4_mib, ..StripeSpec::default() });
/// assert_eq!(resolve(Some(&request), Some(&directory), &default), both);
/// ```
pub fn resolve(
    request: Option<&LayoutSpec>,
    directory: Option<&LayoutSpec>,
    default: &FileSystemDefault,
) -> LayoutSpec {
    let asked = request.filter(|spec| !spec.is_open());
    let inherited = directory.filter(|spec| !spec.is_open());
    match (asked, inherited) {
        (Some(LayoutSpec::Plain(own)), Some(LayoutSpec::Plain(other))) => LayoutSpec::Plain(own.or(other)),
        (Some(asked), _) => asked.clone(),
        (None, Some(inherited)) => inherited.clone(),
        (None, None) if default.automatic => LayoutSpec::Automatic,
        (None, None) => LayoutSpec::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MDT_MAX: u64 = 1 << 20;

    fn stripes(stripe_count: StripeCount, stripe_bytes: Option<u64>) -> StripeSpec {
        StripeSpec { stripe_count, stripe_bytes, ..StripeSpec::default() }
    }

    fn component(end: u64, backing: BackingSpec) -> ComponentSpec {
        ComponentSpec { end, backing }
    }

    #[test]
    fn a_request_may_ignore_the_pool_of_its_directory() {
        let in_pool =
            |name: &str| LayoutSpec::Plain(StripeSpec { pool: Some(name.to_owned()), ..StripeSpec::default() });
        let default = FileSystemDefault::default();
        let pool_of = |request: Option<&LayoutSpec>, directory: &LayoutSpec| {
            let LayoutSpec::Plain(stripes) = resolve(request, Some(directory), &default) else { panic!("plain") };
            default.fill(&stripes).pool
        };
        let wide = LayoutSpec::Plain(stripes(StripeCount::All, None));
        assert_eq!(pool_of(Some(&wide), &in_pool("fast")).as_deref(), Some("fast"), "inherited");
        assert_eq!(pool_of(Some(&in_pool("slow")), &in_pool("fast")).as_deref(), Some("slow"));
        assert_eq!(pool_of(Some(&in_pool(POOL_IGNORED)), &in_pool("fast")), None);
        assert_eq!(pool_of(None, &in_pool(POOL_IGNORED)), None);
        assert_eq!(in_pool(POOL_IGNORED).named_pools().count(), 0);
        assert_eq!(in_pool("fast").named_pools().collect::<Vec<_>>(), ["fast"]);
    }

    #[test]
    fn request_beats_directory_beats_file_system() {
        let automatic = FileSystemDefault::default();
        let default = FileSystemDefault { automatic: false, ..automatic };
        let directory = StripeSpec { first_ost: Some(OstIndex(3)), ..stripes(StripeCount::All, Some(1 << 20)) };
        let request = LayoutSpec::Plain(stripes(StripeCount::Exactly(2), None));
        assert_eq!(resolve(None, None, &default), LayoutSpec::default());
        let LayoutSpec::Plain(merged) = resolve(Some(&request), Some(&LayoutSpec::Plain(directory.clone())), &default)
        else {
            panic!("plain and plain is plain")
        };
        let resolved = default.fill(&merged);
        assert_eq!(resolved.stripe_count, ResolvedCount::AtMost(2));
        assert_eq!((resolved.stripe_bytes, resolved.first_ost), (1 << 20, Some(OstIndex(3))));
        let inherited = resolve(None, Some(&LayoutSpec::Plain(directory.clone())), &default);
        assert_eq!(inherited, LayoutSpec::Plain(directory));
        let composite =
            LayoutSpec::Composite(vec![component(END_OF_FILE, BackingSpec::Striped(StripeSpec::default()))]);
        assert_eq!(resolve(Some(&request), Some(&composite), &default), request, "nothing is filled across forms");
        assert_eq!(resolve(Some(&LayoutSpec::default()), Some(&composite), &default), composite);
        assert_eq!(resolve(None, None, &automatic), LayoutSpec::Automatic);
        assert_eq!(resolve(Some(&request), None, &automatic), request);
    }

    #[test]
    fn a_default_stripe_size_fits_the_component() {
        const KIB_64: u64 = STRIPE_BYTES_MIN;
        let default = FileSystemDefault::default();
        let open = || stripes(StripeCount::Exactly(2), None);
        let sized = |asked: ComponentSpec| {
            let sized = default.sized(&asked);
            assert_eq!(LayoutSpec::Composite(vec![sized.clone()]).validate(MDT_MAX), Ok(()));
            sized.stripes().and_then(|stripes| stripes.stripe_bytes)
        };
        for (end, expected) in [(KIB_64, KIB_64), (1 << 20, 1 << 20), (6 << 20, 2 << 20), (64 << 20, 4 << 20)] {
            assert_eq!(sized(component(end, BackingSpec::Striped(open()))), Some(expected), "a component until {end}");
        }
        assert_eq!(sized(component(END_OF_FILE, BackingSpec::Striped(open()))), Some(4 << 20));
        assert_eq!(sized(component(END_OF_FILE, BackingSpec::Extended(open(), 6 << 20))), Some(2 << 20), "its steps");
        let chosen = stripes(StripeCount::Exactly(2), Some(KIB_64));
        assert_eq!(sized(component(1 << 20, BackingSpec::Striped(chosen))), Some(KIB_64), "what was asked for holds");
    }

    #[test]
    fn impossible_stripes_are_named() {
        let check = |stripe_count, stripe_bytes| stripes(stripe_count, stripe_bytes).validate();
        let unaligned = PlainLayoutError::StripeBytesUnaligned;
        assert_eq!(check(StripeCount::Exactly(2001), None), Err(SpecError::StripeCount(2001)));
        assert_eq!(check(StripeCount::Exactly(0), None), Err(SpecError::StripeCount(0)));
        assert_eq!(check(StripeCount::PerOst(33), None), Err(SpecError::StripesPerOst(33)));
        assert_eq!(check(StripeCount::All, Some(100_000)), Err(unaligned(100_000).into()));
        assert_eq!(check(StripeCount::All, Some(0)), Err(unaligned(0).into()));
        assert_eq!(check(StripeCount::All, Some(4 << 30)), Err(PlainLayoutError::StripeBytesTooLarge(4 << 30).into()));
        assert_eq!(check(StripeCount::Exactly(2000), Some(65536)), Ok(()));
        let listed = StripeSpec { osts: vec![OstIndex(0), OstIndex(1)], ..stripes(StripeCount::Exactly(3), None) };
        assert_eq!(listed.validate(), Err(SpecError::CountOfOsts { count: 3, osts: 2 }));
        let first = StripeSpec { osts: vec![OstIndex(1)], first_ost: Some(OstIndex(0)), ..StripeSpec::default() };
        assert_eq!(first.validate(), Err(SpecError::FirstNotListed(OstIndex(0))));
        let pool = StripeSpec { pool: Some("a".repeat(16)), ..StripeSpec::default() };
        assert_eq!(pool.validate(), Err(SpecError::PoolName("a".repeat(16))));
    }

    #[test]
    fn impossible_components_are_named() {
        let striped = || BackingSpec::Striped(StripeSpec::default());
        let check = |components: Vec<ComponentSpec>| LayoutSpec::Composite(components).validate(MDT_MAX);
        assert_eq!(check(vec![]), Err(SpecError::Components(0)));
        assert_eq!(
            check(vec![component(16 << 20, striped()), component(8 << 20, striped())]),
            Err(SpecError::Extent { start: 16 << 20, end: 8 << 20 })
        );
        assert_eq!(check(vec![component(100_000, striped())]), Err(SpecError::EndUnaligned(100_000)));
        let wide = BackingSpec::Striped(stripes(StripeCount::Default, Some(2 << 20)));
        assert_eq!(
            check(vec![component(1 << 20, wide)]),
            Err(SpecError::EndWithinStripe { end: 1 << 20, stripe_bytes: 2 << 20 })
        );
        assert_eq!(
            check(vec![component(1 << 20, striped()), component(2 << 20, BackingSpec::Mdt)]),
            Err(SpecError::MdtNotFirst)
        );
        assert_eq!(
            check(vec![component(END_OF_FILE, BackingSpec::Mdt)]),
            Err(SpecError::MdtTooLarge { end: END_OF_FILE, bytes_max: MDT_MAX })
        );
        for step in [1, 4 << 40, 8 << 40] {
            let extended = BackingSpec::Extended(StripeSpec::default(), step);
            assert_eq!(check(vec![component(END_OF_FILE, extended)]), Err(SpecError::ExtensionBytes(step)));
        }
        assert_eq!(check(vec![component(65536, BackingSpec::Mdt), component(END_OF_FILE, striped())]), Ok(()));
    }
}
