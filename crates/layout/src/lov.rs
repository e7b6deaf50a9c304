//! Layouts in Lustre's binary form, the value of the attributes `lustre.lov` and `trusted.lov`
//! (lustre_user.h: `lov_user_md_v1`, `lov_user_md_v3`, `lov_comp_md_v1`). Little-endian, packed.
//!
//! ```text
//! stripes, v1 0x0BD10BD0, v3 0x0BD30BD0, with exact OSTs 0x0BD50BD0
//!   0  4 magic    4  4 pattern: 1 raid0, 0x100 mdt, 0x200 overstriped    8  8 object id of the file    16  8 its sequence
//!  24  4 stripe size (of an extension: its step, in KiB)    28  2 stripe count    30  2 first OST; 0xffff: chosen
//!  32 16 pool (v3 and exact OSTs only), then per object: 16 FID, 4 generation, 4 OST
//! components, 0x0BD60BD0
//!   0  4 magic    4  4 size    8  4 generation    12  2 flags    14  2 components    16  2 mirrors - 1    18 14 zero
//!  32 48 per component: 0 4 id    4 4 flags: 0x10 init, 0x40 extension, 0x4000_0000 automatic    8 8 start    16 8 end
//!          24 4 offset of its stripes    28 4 their size    32 16 zero
//! ```
//!
//! Objects are shown as FIDs (inode number : slot : 0). Decoding gives a request: objects are
//! ignored, because a layout that is set on another file gets its own. Decoding never panics,
//! whatever the bytes.
//!
//! Components that the file system decides, or has decided, have a flag of StriaFS's own: programs
//! that know it request an automatic layout again, also for a file whose components already have
//! their stripes. Other programs see these stripes, or, for components that are not decided yet,
//! stripes of the default count.

use std::ops::Range;

use types::{Fid, InodeNumber, OstIndex, limits::STRIPE_COUNT_MAX};

use crate::{
    automatic,
    component::{Backing, Component},
    layout::{Form, Layout},
    limits::{COMPONENTS_MAX, END_OF_FILE, EXTENSION_UNIT_BYTES},
    spec::{self, BackingSpec, ComponentSpec, LayoutSpec, POOL_NAME_BYTES_MAX, StripeCount, StripeSpec},
};

/// Magic of stripes.
pub const V1_MAGIC: u32 = 0x0BD1_0BD0;
/// Magic of stripes in a pool.
pub const V3_MAGIC: u32 = 0x0BD3_0BD0;
/// Magic of stripes on OSTs that were requested one by one.
pub const SPECIFIC_MAGIC: u32 = 0x0BD5_0BD0;
/// Magic of components.
pub const COMPOSITE_MAGIC: u32 = 0x0BD6_0BD0;
/// Bytes of stripes before their objects.
pub const V1_BYTES: usize = 32;
/// The same with a pool.
pub const V3_BYTES: usize = V1_BYTES + POOL_NAME_BYTES_MAX + 1;
/// Bytes per object.
pub const OBJECT_BYTES: usize = 24;
/// Bytes of the head of components.
pub const COMPOSITE_BYTES: usize = 32;
/// Bytes per component, without its stripes.
pub const ENTRY_BYTES: usize = 48;

const PATTERN_RAID0: u32 = 1;
const PATTERN_MDT: u32 = 0x100;
const PATTERN_OVERSTRIPED: u32 = 0x200;
const FLAG_INIT: u32 = 0x10;
const FLAG_EXTENSION: u32 = 0x40;
/// Not Lustre's, which uses bits 0 to 10 and 31.
const FLAG_AUTOMATIC: u32 = 0x4000_0000;
const ANY_OST: u16 = 0xffff;
const ALL_OSTS: u16 = 0xffff;

/// Why bytes are no layout in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LovError {
    /// They end too early.
    #[error("{0} bytes are too few for what they announce")]
    Short(usize),
    /// Unknown magic.
    #[error("unknown magic {0:#010x}")]
    Magic(u32),
    /// A pattern that StriaFS does not have.
    #[error("unknown pattern {0:#x}")]
    Pattern(u32),
    /// More components or stripes than there can be.
    #[error("{0} components or stripes are too many")]
    Count(usize),
    /// More than one mirror.
    #[error("mirrored layouts are not supported")]
    Mirrored,
    /// The stripes of a component begin within those of another one, or within the table of
    /// components.
    #[error("the stripes of a component begin at byte {0}, inside another structure")]
    Overlap(usize),
    /// A component does not begin where the one before it ends.
    #[error("a component begins at {0}, not where the one before it ends")]
    Gap(u64),
    /// The pool's name.
    #[error("the pool's name is not UTF-8")]
    PoolName,
}

/// One set of stripes, ready to be written.
#[derive(Default)]
struct Stripes<'a> {
    pattern: u32,
    owner: Option<InodeNumber>,
    size: u32,
    count: u16,
    first: Option<OstIndex>,
    pool: Option<&'a str>,
    /// Slot and OST.
    objects: Vec<(u32, OstIndex)>,
    /// OSTs that were requested one by one.
    specific: &'a [OstIndex],
}

impl<'a> Stripes<'a> {
    fn of(component: &'a Component, owner: InodeNumber) -> Self {
        match &component.backing {
            Backing::Pending(spec) => Stripes::asked(spec),
            Backing::Striped { plain, first_slot, spec } => {
                let overstriped = plain.is_overstriped();
                Stripes {
                    pattern: PATTERN_RAID0 | if overstriped { PATTERN_OVERSTRIPED } else { 0 },
                    owner: Some(owner),
                    size: plain.stripe_bytes as u32,
                    count: plain.osts.len() as u16,
                    pool: spec.pool.as_deref(),
                    objects: (*first_slot..).zip(plain.osts.iter().copied()).collect(),
                    ..Stripes::default()
                }
            }
            Backing::Mdt { .. } => Stripes::mdt(component.extent.bytes()),
            Backing::Extension { step_bytes } => Stripes::extension(*step_bytes),
            Backing::Automatic => Stripes { pattern: PATTERN_RAID0, ..Stripes::default() },
        }
    }

    fn asked(spec: &'a StripeSpec) -> Self {
        let (count, overstriped) = match spec.stripe_count {
            StripeCount::Default => (spec.osts.len() as u16, false),
            StripeCount::Exactly(count) => (count as u16, false),
            StripeCount::All => (ALL_OSTS, false),
            StripeCount::Overstriped(count) => (count as u16, true),
            StripeCount::PerOst(count) => ((count as u16).wrapping_neg(), true),
        };
        Stripes {
            pattern: PATTERN_RAID0 | if overstriped { PATTERN_OVERSTRIPED } else { 0 },
            size: spec.stripe_bytes.unwrap_or(0) as u32,
            count,
            first: spec.first_ost,
            pool: spec.pool.as_deref(),
            specific: &spec.osts,
            ..Stripes::default()
        }
    }

    fn mdt(bytes: u64) -> Self {
        Stripes { pattern: PATTERN_MDT, size: bytes as u32, ..Stripes::default() }
    }

    fn extension(step_bytes: u64) -> Self {
        let units = (step_bytes / EXTENSION_UNIT_BYTES) as u32;
        Stripes { pattern: PATTERN_RAID0, size: units, ..Stripes::default() }
    }

    /// `namer`: the number in the objects' names.
    fn encode(&self, bytes: &mut Vec<u8>, namer: InodeNumber) {
        let magic = match (self.specific.is_empty(), self.pool) {
            (false, _) => SPECIFIC_MAGIC,
            (true, Some(_)) => V3_MAGIC,
            (true, None) => V1_MAGIC,
        };
        put32(bytes, magic);
        put32(bytes, self.pattern);
        let fid = self.owner.map(Fid::from);
        put64(bytes, fid.map_or(0, |fid| u64::from(fid.object)));
        put64(bytes, fid.map_or(0, |fid| fid.sequence));
        put32(bytes, self.size);
        put16(bytes, self.count);
        put16(bytes, self.first.map_or(ANY_OST, |ost| ost.0));
        if magic != V1_MAGIC {
            let mut pool = [0; POOL_NAME_BYTES_MAX + 1];
            let name = self.pool.unwrap_or_default().as_bytes();
            let length = name.len().min(POOL_NAME_BYTES_MAX);
            pool[..length].copy_from_slice(&name[..length]);
            bytes.extend_from_slice(&pool);
        }
        for (slot, ost) in &self.objects {
            put_object(bytes, namer.0, *slot, *ost);
        }
        for ost in self.specific {
            put_object(bytes, 0, 0, *ost);
        }
    }
}

fn put16(bytes: &mut Vec<u8>, value: u16) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn put32(bytes: &mut Vec<u8>, value: u32) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn put64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn put_object(bytes: &mut Vec<u8>, sequence: u64, object: u32, ost: OstIndex) {
    put64(bytes, sequence);
    put32(bytes, object);
    put32(bytes, 0);
    put32(bytes, 0);
    put32(bytes, u32::from(ost.0));
}

/// The layout of a file.
pub fn encode(inode: InodeNumber, layout: &Layout) -> Vec<u8> {
    let mut bytes = Vec::new();
    let namer = layout.namer(inode);
    match (layout.form, layout.components.as_slice()) {
        (Form::Plain, [component]) => Stripes::of(component, inode).encode(&mut bytes, namer),
        (_, components) => {
            let stripes = |component| Stripes { owner: None, ..Stripes::of(component, inode) };
            // Within components the stripes do not name the file, but their objects do.
            let encoded = components.iter().map(|component| {
                let mut one = Vec::new();
                let stripes = stripes(component);
                Stripes { objects: Vec::new(), ..stripes }.encode(&mut one, namer);
                Stripes::of(component, inode).objects.iter().for_each(|(slot, ost)| {
                    put_object(&mut one, namer.0, *slot, *ost);
                });
                one
            });
            encode_composite(&mut bytes, layout.generation.0, components, &encoded.collect::<Vec<_>>(), false);
        }
    }
    bytes
}

/// The default layout of a directory.
pub fn encode_default(spec: &LayoutSpec) -> Vec<u8> {
    let mut bytes = Vec::new();
    let of_policy;
    let components = match spec {
        LayoutSpec::Automatic => {
            of_policy = automatic::components(automatic::BYTES_ON_MDT);
            &of_policy
        }
        LayoutSpec::Plain(stripes) => {
            Stripes::asked(stripes).encode(&mut bytes, InodeNumber(0));
            return bytes;
        }
        LayoutSpec::Composite(components) => components,
    };
    let layout = Layout::composite(components);
    let encoded = layout.components.iter().map(|component| {
        let mut one = Vec::new();
        Stripes { owner: None, ..Stripes::of(component, InodeNumber(0)) }.encode(&mut one, InodeNumber(0));
        one
    });
    encode_composite(&mut bytes, 0, &layout.components, &encoded.collect::<Vec<_>>(), true);
    bytes
}

fn encode_composite(
    bytes: &mut Vec<u8>,
    generation: u64,
    components: &[Component],
    stripes: &[Vec<u8>],
    is_default: bool,
) {
    let mut offset = COMPOSITE_BYTES + components.len() * ENTRY_BYTES;
    let size = offset + stripes.iter().map(Vec::len).sum::<usize>();
    put32(bytes, COMPOSITE_MAGIC);
    put32(bytes, size as u32);
    put32(bytes, generation as u32);
    put16(bytes, 0);
    put16(bytes, components.len() as u16);
    bytes.extend_from_slice(&[0; 16]);
    for (component, stripes) in components.iter().zip(stripes) {
        let init = if component.is_instantiated() && !is_default { FLAG_INIT } else { 0 };
        let extension = if matches!(component.backing, Backing::Extension { .. }) { FLAG_EXTENSION } else { 0 };
        put32(bytes, if is_default { 0 } else { component.id.0 });
        let automatic = if component.is_automatic() { FLAG_AUTOMATIC } else { 0 };
        put32(bytes, init | extension | automatic);
        put64(bytes, component.extent.start);
        put64(bytes, component.extent.end);
        put32(bytes, offset as u32);
        put32(bytes, stripes.len() as u32);
        bytes.extend_from_slice(&[0; 16]);
        offset += stripes.len();
    }
    stripes.iter().for_each(|one| bytes.extend_from_slice(one));
}

/// Bytes that may be anything.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N], LovError> {
        let field = offset.checked_add(N).and_then(|end| self.0.get(offset..end));
        field.and_then(|field| field.try_into().ok()).ok_or(LovError::Short(self.0.len()))
    }

    fn u16(&self, offset: usize) -> Result<u16, LovError> {
        self.array(offset).map(u16::from_le_bytes)
    }

    fn u32(&self, offset: usize) -> Result<u32, LovError> {
        self.array(offset).map(u32::from_le_bytes)
    }

    fn u64(&self, offset: usize) -> Result<u64, LovError> {
        self.array(offset).map(u64::from_le_bytes)
    }
}

/// What the bytes ask for. Whether it is possible is [`LayoutSpec::validate`]'s to say.
///
/// ```
/// use layout::{Layout, LayoutSpec, PlainLayout, StripeCount, StripeSpec, lov};
/// use types::{Generation, InodeNumber, OstIndex};
///
/// let plain = PlainLayout { stripe_bytes: 4 << 20, osts: vec![OstIndex(1), OstIndex(0)] };
/// let layout = Layout::plain(Generation(1), plain, StripeSpec::default());
/// // What `getfattr -n lustre.lov` shows, and what setting it on another file asks for: the same
/// // number and size of stripes, on any OSTs.
/// let bytes = lov::encode(InodeNumber(0x101), &layout);
/// let LayoutSpec::Plain(asked) = lov::decode(&bytes).unwrap() else { panic!("a plain layout") };
/// assert_eq!((asked.stripe_count, asked.stripe_bytes), (StripeCount::Exactly(2), Some(4 << 20)));
/// assert!(lov::decode(&bytes[..20]).is_err());
/// ```
pub fn decode(bytes: &[u8]) -> Result<LayoutSpec, LovError> {
    let fields = Fields(bytes);
    match fields.u32(0)? {
        COMPOSITE_MAGIC => decode_composite(&fields).map(automatic::recognised),
        _ => match decode_stripes(bytes)? {
            Decoded::Striped(stripes, _) => Ok(LayoutSpec::Plain(stripes)),
            Decoded::Mdt => Err(LovError::Pattern(PATTERN_MDT)),
        },
    }
}

enum Decoded {
    /// Stripes, and the raw stripe size.
    Striped(StripeSpec, u32),
    Mdt,
}

fn decode_composite(fields: &Fields<'_>) -> Result<Vec<ComponentSpec>, LovError> {
    let (count, mirrors) = (usize::from(fields.u16(14)?), fields.u16(16)?);
    if mirrors > 0 {
        return Err(LovError::Mirrored);
    }
    if count > COMPONENTS_MAX {
        return Err(LovError::Count(count));
    }
    let (mut components, mut at): (Vec<ComponentSpec>, u64) = (Vec::with_capacity(count), 0);
    let table_end = COMPOSITE_BYTES + count * ENTRY_BYTES;
    let mut taken: Vec<Range<usize>> = Vec::with_capacity(count);
    for index in 0..count {
        let entry = COMPOSITE_BYTES + index * ENTRY_BYTES;
        let (flags, start, end) = (fields.u32(entry + 4)?, fields.u64(entry + 8)?, fields.u64(entry + 16)?);
        let (offset, size) = (fields.u32(entry + 24)? as usize, fields.u32(entry + 28)? as usize);
        let stripes = offset.checked_add(size).and_then(|end| fields.0.get(offset..end));
        let place = offset..offset.saturating_add(size);
        if offset < table_end || taken.iter().any(|other| place.start < other.end && other.start < place.end) {
            return Err(LovError::Overlap(offset));
        }
        taken.push(place);
        let stripes = decode_stripes(stripes.ok_or(LovError::Short(fields.0.len()))?)?;
        if start != at {
            return Err(LovError::Gap(start));
        }
        at = end;
        let backing = match stripes {
            _ if flags & FLAG_AUTOMATIC != 0 => BackingSpec::Automatic,
            Decoded::Mdt => BackingSpec::Mdt,
            Decoded::Striped(_, units) if flags & FLAG_EXTENSION != 0 => {
                let step_bytes = u64::from(units) * EXTENSION_UNIT_BYTES;
                if let Some(before) = components.last_mut()
                    && let BackingSpec::Striped(stripes) = &before.backing
                {
                    before.backing = BackingSpec::Extended(stripes.clone(), step_bytes);
                    before.end = end;
                    continue;
                }
                BackingSpec::Extended(StripeSpec::default(), step_bytes)
            }
            Decoded::Striped(stripes, _) => BackingSpec::Striped(stripes),
        };
        spec::push(&mut components, ComponentSpec { end, backing });
    }
    Ok(components)
}

fn decode_stripes(bytes: &[u8]) -> Result<Decoded, LovError> {
    let fields = Fields(bytes);
    let (magic, pattern) = (fields.u32(0)?, fields.u32(4)?);
    if !matches!(magic, V1_MAGIC | V3_MAGIC | SPECIFIC_MAGIC) {
        return Err(LovError::Magic(magic));
    }
    let (size, count, first) = (fields.u32(24)?, fields.u16(28)?, fields.u16(30)?);
    match pattern {
        PATTERN_MDT => return Ok(Decoded::Mdt),
        _ if pattern & !(PATTERN_RAID0 | PATTERN_OVERSTRIPED) == 0 => {}
        _ => return Err(LovError::Pattern(pattern)),
    }
    let (pool, objects) = if magic == V1_MAGIC { (None, V1_BYTES) } else { (decode_pool(&fields)?, V3_BYTES) };
    let osts = if magic == SPECIFIC_MAGIC { decode_osts(&fields, objects, count)? } else { Vec::new() };
    // The first OST of a file that has objects was chosen for it; it says nothing about the next
    // one.
    let chosen = first == ANY_OST || bytes.len() > objects;
    let stripes = StripeSpec {
        stripe_count: if osts.is_empty() { decode_count(count, pattern)? } else { StripeCount::Default },
        stripe_bytes: Some(u64::from(size)).filter(|bytes| *bytes != 0),
        first_ost: (!chosen).then_some(OstIndex(first)),
        osts,
        pool,
    };
    Ok(Decoded::Striped(stripes, size))
}

fn decode_count(count: u16, pattern: u32) -> Result<StripeCount, LovError> {
    let overstriped = pattern & PATTERN_OVERSTRIPED != 0;
    match (count, overstriped) {
        (0, _) => Ok(StripeCount::Default),
        (ALL_OSTS, false) => Ok(StripeCount::All),
        (count, _) if u32::from(count) <= STRIPE_COUNT_MAX => {
            let count = u32::from(count);
            Ok(if overstriped { StripeCount::Overstriped(count) } else { StripeCount::Exactly(count) })
        }
        (count, true) if count >= ALL_OSTS - 31 => Ok(StripeCount::PerOst(u32::from(count.wrapping_neg()))),
        (count, _) => Err(LovError::Count(usize::from(count))),
    }
}

fn decode_pool(fields: &Fields<'_>) -> Result<Option<String>, LovError> {
    let name: [u8; POOL_NAME_BYTES_MAX + 1] = fields.array(V1_BYTES)?;
    let length = name.iter().position(|byte| *byte == 0).ok_or(LovError::PoolName)?;
    let name = std::str::from_utf8(&name[..length]).map_err(|_| LovError::PoolName)?;
    Ok(Some(name.to_owned()).filter(|name| !name.is_empty()))
}

fn decode_osts(fields: &Fields<'_>, objects: usize, count: u16) -> Result<Vec<OstIndex>, LovError> {
    if u32::from(count) > STRIPE_COUNT_MAX {
        return Err(LovError::Count(usize::from(count)));
    }
    let index = |object: usize| {
        let index = fields.u32(objects + object * OBJECT_BYTES + OBJECT_BYTES - 4)?;
        u16::try_from(index).map(OstIndex).map_err(|_| LovError::Count(index as usize))
    };
    (0..usize::from(count)).map(index).collect()
}

/// Whether a component ends with the file, which Lustre writes the same way.
const _: () = assert!(END_OF_FILE == u64::MAX, "LUSTRE_EOF");

#[cfg(test)]
#[path = "lov_tests.rs"]
mod tests;
