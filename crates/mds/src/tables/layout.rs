//! Layouts within inode records.
//!
//! Layout, form 1 = plain: generation (8), checksum type (1: 0 CRC-32C), form (1), stripes. Layout,
//! form 2 = composite: generation (8), checksum type (1), form (1), next slot (4), next component
//! number (4), count (2), components:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | number |
//! | 16 | extent: start, end (8 each; end 2^64-1: end of file) |
//! | 1 | backing: 0 pending, 1 striped, 2 MDT, 3 extension, 4 automatic; 128 more: a reason follows |
//! | 0 or 1 | reason: why an automatic layout's component has so many stripes (`layout::Reason`) |
//! | .. | pending: request; striped: first slot (4), stripes, request; MDT: slot (4); extension: step in bytes (8) |
//!
//! Forms 3 and 4 are forms 1 and 2 of a layout whose objects are named by another inode (layouts
//! were swapped): its number (8) follows the form.
//!
//! Stripes: stripe bytes (8), count (2), OST indices (2 each). Form 1 is followed by the request
//! too. Request for stripes: count kind 0 default, 1 exactly, 2 all, 3 overstriped, 4 per OST (1),
//! count (4), stripe bytes or 0 (8), whether a first OST is given (1), first OST (2), number of
//! OSTs asked for (2), their indices (2 each), length of the pool's name (1), name. Default layout:
//! 0 none; 1 plain: request; 2 composite: count (2), components; 3 automatic (1 each). Component:
//! end (8), backing 0 striped, 2 MDT, 3 extended, 4 automatic (1); striped: request; extended:
//! request, step in bytes (8).

use layout::{
    Backing, BackingSpec, ChecksumType, Component, ComponentId, ComponentSpec, Extent, Form, Layout, LayoutSpec,
    PlainLayout, Reason, StripeCount, StripeSpec,
};
use types::{
    FsResult, Generation, InodeNumber, OstIndex,
    limits::STRIPE_BYTES_MAX,
    record::{DecodeError, RecordReader, RecordWriter},
};

const FORM_PLAIN: u8 = 1;
const FORM_COMPOSITE: u8 = 2;
/// Added to a form: the number in the objects' names follows.
const FORM_NAMED_BY: u8 = 2;
const BACKING_STRIPES_WANTED: u8 = 0;
const BACKING_STRIPED: u8 = 1;
const BACKING_MDT: u8 = 2;
const BACKING_EXTENSION: u8 = 3;
const BACKING_AUTOMATIC: u8 = 4;
/// Added to the backing of a component: its reason follows.
const HAS_REASON: u8 = 128;

/// What an inode's record takes besides its layout, and more.
const INODE_BYTES_MAX: usize = 1 << 10;

const _: () = assert!(
    layout::record::RECORD_BYTES_MAX + INODE_BYTES_MAX <= kv::VALUE_BYTES_MAX,
    "a layout that grows fits its record"
);

pub(super) fn encode_layout(writer: &mut RecordWriter, layout: &Layout) {
    writer.u64(layout.generation.0).u8(layout.checksum.code());
    if let (Form::Plain, [Component { backing: Backing::Striped { plain, spec, .. }, .. }]) =
        (layout.form, layout.components.as_slice())
    {
        encode_form(writer, FORM_PLAIN, layout);
        encode_stripes(writer, plain);
        encode_request(writer, spec);
        return;
    }
    encode_form(writer, FORM_COMPOSITE, layout);
    writer.u32(layout.slots_next).u32(layout.ids_next);
    writer.u16(u16::try_from(layout.components.len()).expect("a layout has at most 256 components"));
    layout.components.iter().for_each(|component| encode_component(writer, component));
}

fn encode_form(writer: &mut RecordWriter, form: u8, layout: &Layout) {
    match layout.named_by {
        None => writer.u8(form),
        Some(inode) => writer.u8(form + FORM_NAMED_BY).u64(inode.0),
    };
}

fn encode_component(writer: &mut RecordWriter, component: &Component) {
    writer.u32(component.id.0).u64(component.extent.start).u64(component.extent.end);
    let backing = match &component.backing {
        Backing::Pending(_) => BACKING_STRIPES_WANTED,
        Backing::Striped { .. } => BACKING_STRIPED,
        Backing::Mdt { .. } => BACKING_MDT,
        Backing::Extension { .. } => BACKING_EXTENSION,
        Backing::Automatic => BACKING_AUTOMATIC,
    };
    match component.reason {
        None => writer.u8(backing),
        Some(reason) => writer.u8(backing | HAS_REASON).u8(reason.code()),
    };
    match &component.backing {
        Backing::Pending(spec) => encode_request(writer, spec),
        Backing::Striped { plain, first_slot, spec } => {
            writer.u32(*first_slot);
            encode_stripes(writer, plain);
            encode_request(writer, spec);
        }
        Backing::Mdt { slot } => {
            writer.u32(*slot);
        }
        Backing::Extension { step_bytes } => {
            writer.u64(*step_bytes);
        }
        Backing::Automatic => {}
    }
}

fn encode_osts(writer: &mut RecordWriter, osts: &[OstIndex]) {
    writer.u16(u16::try_from(osts.len()).expect("a layout has at most 2000 stripes"));
    for ost in osts {
        writer.u16(ost.0);
    }
}

fn encode_stripes(writer: &mut RecordWriter, plain: &PlainLayout) {
    writer.u64(plain.stripe_bytes);
    encode_osts(writer, &plain.osts);
}

fn encode_request(writer: &mut RecordWriter, spec: &StripeSpec) {
    let (kind, count) = match spec.stripe_count {
        StripeCount::Default => (0, 0),
        StripeCount::Exactly(count) => (1, count),
        StripeCount::All => (2, 0),
        StripeCount::Overstriped(count) => (3, count),
        StripeCount::PerOst(count) => (4, count),
    };
    writer.u8(kind).u32(count).u64(spec.stripe_bytes.unwrap_or(0));
    writer.u8(u8::from(spec.first_ost.is_some())).u16(spec.first_ost.map_or(0, |ost| ost.0));
    encode_osts(writer, &spec.osts);
    let pool = spec.pool.as_deref().unwrap_or_default().as_bytes();
    writer.u8(u8::try_from(pool.len()).expect("a pool has a short name"));
    writer.rest(pool);
}

pub(super) fn decode_layout(reader: &mut RecordReader<'_>) -> FsResult<Layout> {
    let generation = Generation(reader.u64()?);
    let code = reader.u8()?;
    let unknown = || reader.invalid(format!("checksums of type {code}, which this version cannot verify"));
    let checksum = ChecksumType::from_code(code).ok_or_else(unknown)?;
    let form = reader.u8()?;
    let swapped = form > FORM_COMPOSITE;
    let named_by = if swapped { Some(InodeNumber(reader.u64()?)) } else { None };
    let layout = match if swapped { form - FORM_NAMED_BY } else { form } {
        FORM_PLAIN => {
            let plain = decode_stripes(reader)?;
            plain.validate().map_err(|problem| reader.invalid(problem))?;
            Layout { named_by, checksum, ..Layout::plain(generation, plain, decode_request(reader)?) }
        }
        FORM_COMPOSITE => {
            let (slots_next, ids_next) = (reader.u32()?, reader.u32()?);
            let count = reader.u16()?;
            let components = (0..count).map(|_| decode_component(reader)).collect::<FsResult<Vec<_>>>()?;
            Layout { generation, form: Form::Composite, components, slots_next, ids_next, named_by, checksum }
        }
        _ => return Err(reader.invalid("unknown form of layout").into()),
    };
    layout.validate().map_err(|problem| reader.invalid(problem))?;
    Ok(layout)
}

fn decode_component(reader: &mut RecordReader<'_>) -> FsResult<Component> {
    let id = ComponentId(reader.u32()?);
    let extent = Extent { start: reader.u64()?, end: reader.u64()? };
    let kind = reader.u8()?;
    let reason = if kind & HAS_REASON == 0 { None } else { Reason::from_code(reader.u8()?) };
    let backing = match kind & !HAS_REASON {
        BACKING_STRIPES_WANTED => Backing::Pending(decode_request(reader)?),
        BACKING_STRIPED => {
            let first_slot = reader.u32()?;
            Backing::Striped { first_slot, plain: decode_stripes(reader)?, spec: decode_request(reader)? }
        }
        BACKING_MDT => Backing::Mdt { slot: reader.u32()? },
        BACKING_EXTENSION => Backing::Extension { step_bytes: reader.u64()? },
        BACKING_AUTOMATIC => Backing::Automatic,
        _ => return Err(reader.invalid("unknown backing of a component").into()),
    };
    Ok(Component { id, extent, backing, reason })
}

fn decode_osts(reader: &mut RecordReader<'_>) -> Result<Vec<OstIndex>, DecodeError> {
    let count = reader.u16()?;
    (0..count).map(|_| reader.u16().map(OstIndex)).collect()
}

fn decode_stripes(reader: &mut RecordReader<'_>) -> FsResult<PlainLayout> {
    Ok(PlainLayout { stripe_bytes: reader.u64()?, osts: decode_osts(reader)? })
}

fn decode_request(reader: &mut RecordReader<'_>) -> FsResult<StripeSpec> {
    let (kind, count) = (reader.u8()?, reader.u32()?);
    let stripe_count = match kind {
        0 => StripeCount::Default,
        1 => StripeCount::Exactly(count),
        2 => StripeCount::All,
        3 => StripeCount::Overstriped(count),
        4 => StripeCount::PerOst(count),
        _ => return Err(reader.invalid("unknown kind of stripe count").into()),
    };
    let stripe_bytes = Some(reader.u64()?).filter(|bytes| *bytes != 0);
    let (given, ost) = (reader.u8()?, reader.u16()?);
    let osts = decode_osts(reader)?;
    let pool_bytes = reader.u8()?;
    let pool = String::from_utf8(reader.take(usize::from(pool_bytes))?.to_vec());
    let pool = Some(pool.map_err(|_| reader.invalid("pool name"))?).filter(|pool| !pool.is_empty());
    let first_ost = (given != 0).then_some(OstIndex(ost));
    let spec = StripeSpec { stripe_count, stripe_bytes, first_ost, osts, pool };
    spec.validate().map_err(|problem| reader.invalid(problem))?;
    Ok(spec)
}

pub(super) fn encode_spec(writer: &mut RecordWriter, spec: Option<&LayoutSpec>) {
    match spec {
        None => {
            writer.u8(0);
        }
        Some(LayoutSpec::Plain(stripes)) => {
            writer.u8(1);
            encode_request(writer, stripes);
        }
        Some(LayoutSpec::Composite(components)) => {
            writer.u8(2).u16(u16::try_from(components.len()).expect("a layout has at most 256 components"));
            components.iter().for_each(|component| encode_component_spec(writer, component));
        }
        Some(LayoutSpec::Automatic) => {
            writer.u8(3);
        }
    }
}

fn encode_component_spec(writer: &mut RecordWriter, component: &ComponentSpec) {
    writer.u64(component.end);
    match &component.backing {
        BackingSpec::Striped(stripes) => {
            writer.u8(BACKING_STRIPES_WANTED);
            encode_request(writer, stripes);
        }
        BackingSpec::Mdt => {
            writer.u8(BACKING_MDT);
        }
        BackingSpec::Extended(stripes, step_bytes) => {
            writer.u8(BACKING_EXTENSION);
            encode_request(writer, stripes);
            writer.u64(*step_bytes);
        }
        BackingSpec::Automatic => {
            writer.u8(BACKING_AUTOMATIC);
        }
    }
}

pub(super) fn decode_spec(reader: &mut RecordReader<'_>) -> FsResult<Option<LayoutSpec>> {
    let spec = match reader.u8()? {
        0 => return Ok(None),
        1 => LayoutSpec::Plain(decode_request(reader)?),
        2 => {
            let count = reader.u16()?;
            LayoutSpec::Composite((0..count).map(|_| decode_component_spec(reader)).collect::<FsResult<Vec<_>>>()?)
        }
        3 => LayoutSpec::Automatic,
        _ => return Err(reader.invalid("unknown kind of default layout").into()),
    };
    // The limit of data on the MDT may have been lowered since.
    spec.validate(STRIPE_BYTES_MAX).map_err(|problem| reader.invalid(problem))?;
    Ok(Some(spec))
}

fn decode_component_spec(reader: &mut RecordReader<'_>) -> FsResult<ComponentSpec> {
    let end = reader.u64()?;
    let backing = match reader.u8()? {
        BACKING_STRIPES_WANTED => BackingSpec::Striped(decode_request(reader)?),
        BACKING_MDT => BackingSpec::Mdt,
        BACKING_EXTENSION => {
            let stripes = decode_request(reader)?;
            BackingSpec::Extended(stripes, reader.u64()?)
        }
        BACKING_AUTOMATIC => BackingSpec::Automatic,
        _ => return Err(reader.invalid("unknown backing of a component").into()),
    };
    Ok(ComponentSpec { end, backing })
}

#[cfg(test)]
mod tests {
    use layout::END_OF_FILE;

    use super::*;

    const WHAT: &str = "layout";

    fn request() -> StripeSpec {
        StripeSpec {
            stripe_count: StripeCount::Overstriped(3),
            stripe_bytes: Some(65536),
            first_ost: Some(OstIndex(1)),
            osts: vec![OstIndex(1), OstIndex(4)],
            pool: Some("flash".to_owned()),
        }
    }

    fn components() -> Vec<ComponentSpec> {
        let component = |end, backing| ComponentSpec { end, backing };
        vec![
            component(65536, BackingSpec::Mdt),
            component(1 << 20, BackingSpec::Striped(request())),
            component(1 << 30, BackingSpec::Extended(request(), 1 << 20)),
            component(END_OF_FILE, BackingSpec::Automatic),
        ]
    }

    #[test]
    fn every_layout_round_trips() {
        let plain = PlainLayout { stripe_bytes: 1 << 20, osts: vec![OstIndex(3), OstIndex(0)] };
        let mut composite = Layout::composite(&components());
        composite.instantiate(1, plain.clone(), request()).unwrap();
        let rest = composite.components.len() - 1;
        let extent = Extent { start: 1 << 30, end: 2 << 30 };
        composite.cut(rest, extent, request(), Reason::Share).unwrap();
        let plain = Layout::plain(Generation(9), plain, request());
        let (swapped_plain, swapped_composite) =
            layout::swap::swapped((InodeNumber(1), &composite), (InodeNumber(2), &plain));
        for layout in [plain, composite, swapped_plain, swapped_composite] {
            let mut writer = RecordWriter::new(1);
            encode_layout(&mut writer, &layout);
            let value = writer.finish();
            let mut reader = RecordReader::new(WHAT, &value, 1).unwrap();
            assert_eq!(decode_layout(&mut reader), Ok(layout));
            reader.finish().unwrap();
        }
    }

    /// What a later version may say: the file is whole without it.
    #[test]
    fn a_reason_that_nobody_knows_is_none() {
        let mut layout = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic }]);
        layout.cut(0, Extent { start: 0, end: 1 << 20 }, request(), Reason::Share).unwrap();
        let mut writer = RecordWriter::new(1);
        encode_layout(&mut writer, &layout);
        let mut value = writer.finish();
        let marks = [HAS_REASON | BACKING_STRIPES_WANTED, Reason::Share.code()];
        let place = value.windows(2).position(|pair| pair == marks).expect("the reason is there") + 1;
        for unknown in [0, Reason::ALL.len() as u8 + 1, 255] {
            value[place] = unknown;
            let mut reader = RecordReader::new(WHAT, &value, 1).unwrap();
            layout.components[0].reason = None;
            assert_eq!(decode_layout(&mut reader), Ok(layout.clone()), "{unknown}");
            reader.finish().unwrap();
        }
    }

    #[test]
    fn every_default_round_trips() {
        let all = [
            None,
            Some(LayoutSpec::Plain(request())),
            Some(LayoutSpec::Composite(components())),
            Some(LayoutSpec::Automatic),
        ];
        for spec in all {
            let mut writer = RecordWriter::new(1);
            encode_spec(&mut writer, spec.as_ref());
            let value = writer.finish();
            let mut reader = RecordReader::new(WHAT, &value, 1).unwrap();
            assert_eq!(decode_spec(&mut reader), Ok(spec));
            reader.finish().unwrap();
        }
    }
}
