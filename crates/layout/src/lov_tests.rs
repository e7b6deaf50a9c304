//! The bytes that Lustre 2.17.0 gave for these layouts, read and written. Its objects have FIDs of
//! their OSTs where ours have (inode, slot), so these are taken out of the comparison.

use proptest::prelude::*;
use types::{Generation, MdtIndex};

use super::*;
use crate::{ChecksumType, ComponentId, Extent, PlainLayout};

const PLAIN: &str =
    "d00bd10b0100000002000000000000000204000002000000000040000100ffff010400000300000002000000000000000000000002000000";
const C4: &str = "d00bd10b0100000003000000000000000204000002000000000040000200ffff010400c00200000003000000000000000000000001000000010400000300000004000000000000000000000002000000";
const PFL: &str = "d00bd60b58010000040000000000030000000000000000000000000000000000010000001000000000000000000000000000000100000000b00000003800000000000000000000000000000000000000020000001000000000000001000000000000000400000000e8000000500000000000000000000000000000000000000003000000000000000000000400000000ffffffffffffffff380100002000000000000000000000000000000000000000d00bd10b0100000000000000000000000000000000000000000040000100ffff010400c00200000007000000000000000000000001000000d00bd10b0100000000000000000000000000000000000000000040000200ffff010400400300000006000000000000000000000003000000010400800200000007000000000000000000000000000000d00bd10b0100000000000000000000000000000000000000000040000400ffff";
const DOM: &str = "d00bd60bc000000002000000000002000000000000000000000000000000000001000000100000000000000000000000000001000000000080000000200000000000000000000000000000000000000002000000000000000000010000000000ffffffffffffffffa00000002000000000000000000000000000000000000000d00bd10b0001000000000000000000000000000000000000000001000000ffffd00bd10b0100000000000000000000000000000000000000000040000200ffff";
const DIRECTORY: &str = "d00bd10b0100000000000000000000000000000000000000000040000200ffff";

fn bytes(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

/// [0x200000402:object:0x0]
fn inode(object: u64) -> InodeNumber {
    InodeNumber::new(MdtIndex(0), 2 << 32 | object)
}

fn count(count: u32) -> StripeSpec {
    StripeSpec { stripe_count: StripeCount::Exactly(count), stripe_bytes: Some(4 << 20), ..StripeSpec::default() }
}

fn plain(osts: &[u16]) -> PlainLayout {
    PlainLayout { stripe_bytes: 4 << 20, osts: osts.iter().map(|ost| OstIndex(*ost)).collect() }
}

/// The same bytes with objects numbered as ours.
fn renumbered(text: &str, objects: &[usize], inode: InodeNumber) -> Vec<u8> {
    let mut bytes = bytes(text);
    for (slot, offset) in objects.iter().enumerate() {
        bytes[*offset..offset + 8].copy_from_slice(&inode.0.to_le_bytes());
        bytes[offset + 8..offset + 12].copy_from_slice(&(slot as u32).to_le_bytes());
    }
    bytes
}

#[test]
fn plain_layouts_are_written_and_read_as_lustre_does() {
    let layout = Layout::plain(Generation(1), plain(&[2]), count(1));
    assert_eq!(encode(inode(2), &layout), renumbered(PLAIN, &[32], inode(2)));
    let layout = Layout::plain(Generation(1), plain(&[1, 2]), count(2));
    assert_eq!(encode(inode(3), &layout), renumbered(C4, &[32, 56], inode(3)));
    assert_eq!(decode(&bytes(PLAIN)), Ok(LayoutSpec::Plain(count(1))));
    assert_eq!(decode(&bytes(C4)), Ok(LayoutSpec::Plain(count(2))));
    let default = LayoutSpec::Plain(count(2));
    assert_eq!(encode_default(&default), bytes(DIRECTORY));
    assert_eq!(decode(&bytes(DIRECTORY)), Ok(default));
}

#[test]
fn components_are_written_and_read_as_lustre_does() {
    let asked = [(16 << 20, 1), (64 << 20, 2), (END_OF_FILE, 4)];
    let asked = asked.map(|(end, stripes)| ComponentSpec { end, backing: BackingSpec::Striped(count(stripes)) });
    let mut layout = Layout::composite(&asked);
    layout.instantiate(0, plain(&[1]), count(1)).unwrap();
    layout.instantiate(1, plain(&[3, 0]), count(2)).unwrap();
    layout.generation = Generation(4);
    let objects = [176 + 32, 232 + 32, 232 + 32 + 24];
    assert_eq!(encode(inode(8), &layout), renumbered(PFL, &objects, inode(8)));
    assert_eq!(decode(&bytes(PFL)), Ok(LayoutSpec::Composite(asked.to_vec())));

    let asked = [
        ComponentSpec { end: 65536, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(count(2)) },
    ];
    assert_eq!(encode(inode(15), &Layout::composite(&asked)), bytes(DOM));
    assert_eq!(decode(&bytes(DOM)), Ok(LayoutSpec::Composite(asked.to_vec())));
}

/// What the captured layouts do not have: pools, exact OSTs, overstriping, extensions, in a default
/// and back.
#[test]
fn requests_survive_the_way_there_and_back() {
    let pool = StripeSpec { pool: Some("flash".to_owned()), first_ost: Some(OstIndex(3)), ..count(2) };
    let exact = StripeSpec { osts: vec![OstIndex(7), OstIndex(0)], stripe_bytes: Some(65536), ..StripeSpec::default() };
    let per_ost = StripeSpec { stripe_count: StripeCount::PerOst(2), ..StripeSpec::default() };
    let over = StripeSpec { stripe_count: StripeCount::Overstriped(8), ..StripeSpec::default() };
    let all = StripeSpec { stripe_count: StripeCount::All, ..StripeSpec::default() };
    for stripes in [pool, exact.clone(), per_ost, over, all, StripeSpec::default()] {
        let spec = LayoutSpec::Plain(stripes);
        assert_eq!(decode(&encode_default(&spec)), Ok(spec));
    }
    let composite = LayoutSpec::Composite(vec![
        ComponentSpec { end: 1 << 20, backing: BackingSpec::Striped(exact) },
        ComponentSpec { end: 1 << 30, backing: BackingSpec::Extended(count(2), 64 << 20) },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Extended(count(4), 128 << 20) },
    ]);
    assert_eq!(decode(&encode_default(&composite)), Ok(composite));
    assert_eq!(decode(&encode_default(&LayoutSpec::Automatic)), Ok(LayoutSpec::Automatic));
}

/// Whatever its state; its stripes are visible to programs that do not know the flag.
#[test]
fn an_automatic_layout_is_read_as_one() {
    let mut layout = Layout::composite(&automatic::components(automatic::BYTES_ON_MDT));
    assert_eq!(decode(&encode(inode(5), &layout)), Ok(LayoutSpec::Automatic));
    let extent = Extent { start: 64 << 10, end: 64 << 20 };
    let cut = layout.cut(1, extent, count(2), crate::Reason::LargeRequests).unwrap();
    layout.instantiate(cut, plain(&[1, 2]), count(2)).unwrap();
    let mut written = encode(inode(5), &layout);
    assert_eq!(decode(&written), Ok(LayoutSpec::Automatic));
    for component in 0..layout.components.len() {
        let flags = COMPOSITE_BYTES + component * ENTRY_BYTES + 7;
        written[flags] &= !0x40;
    }
    let end = |end, backing| ComponentSpec { end, backing };
    let seen = [
        end(64 << 10, BackingSpec::Mdt),
        end(64 << 20, BackingSpec::Striped(count(2))),
        end(END_OF_FILE, BackingSpec::Striped(StripeSpec::default())),
    ];
    assert_eq!(decode(&written), Ok(LayoutSpec::Composite(seen.to_vec())));
}

#[test]
fn damaged_bytes_are_refused_by_cause() {
    assert_eq!(decode(&[]), Err(LovError::Short(0)));
    assert_eq!(decode(&[1, 2, 3, 4]), Err(LovError::Short(4)));
    assert_eq!(decode(&[9; 32]), Err(LovError::Magic(0x0909_0909)));
    assert_eq!(decode(&bytes(DOM)[..40]), Err(LovError::Short(40)));
    let mut mirrored = bytes(DOM);
    mirrored[16] = 1;
    assert_eq!(decode(&mirrored), Err(LovError::Mirrored));
    let mut gap = bytes(DOM);
    gap[32 + 48 + 8] = 1;
    assert!(matches!(decode(&gap), Err(LovError::Gap(_))));
}

/// A few bytes could ask for as many OSTs as there can be components, each time with the same list.
#[test]
fn components_do_not_share_their_stripes() {
    let mut shared = bytes(DOM);
    let of_first = shared[32 + 24..32 + 32].to_vec();
    shared[80 + 24..80 + 32].copy_from_slice(&of_first);
    assert_eq!(decode(&shared), Err(LovError::Overlap(128)));
    let mut table = bytes(DOM);
    table[80 + 24..80 + 28].copy_from_slice(&100_u32.to_le_bytes());
    assert_eq!(decode(&table), Err(LovError::Overlap(100)));
}

fn layouts() -> impl Strategy<Value = Layout> {
    // Twice the same OST would be read as overstriped.
    (1_u64..9, proptest::collection::btree_set(any::<u16>(), 1..20)).prop_map(|(end, osts)| {
        let osts: Vec<u16> = osts.into_iter().collect();
        let backing = Backing::Striped { plain: plain(&osts), first_slot: 1, spec: count(osts.len() as u32) };
        let mdt = Component {
            id: ComponentId(1),
            extent: Extent { start: 0, end: end << 16 },
            backing: Backing::Mdt { slot: 0 },
            reason: None,
        };
        let extent = Extent { start: end << 16, end: END_OF_FILE };
        let rest = Component { id: ComponentId(2), extent, backing, reason: None };
        let (slots_next, ids_next) = (1 + osts.len() as u32, 3);
        let components = vec![mdt, rest];
        Layout {
            generation: Generation(2),
            form: Form::Composite,
            components,
            slots_next,
            ids_next,
            named_by: None,
            checksum: ChecksumType::default(),
        }
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_layout_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    /// One byte of what Lustre wrote is different.
    #[test]
    fn any_damage_is_a_layout_or_an_error(which in 0_usize..4, at in any::<usize>(), value in any::<u8>(), cut in any::<usize>()) {
        let mut bytes = bytes([PLAIN, C4, PFL, DOM][which]);
        let at = at % bytes.len();
        bytes[at] = value;
        let _ = decode(&bytes);
        bytes.truncate(cut % bytes.len());
        let _ = decode(&bytes);
    }

    #[test]
    fn what_is_written_asks_for_the_same(layout in layouts()) {
        let asked = decode(&encode(inode(5), &layout)).unwrap();
        prop_assert_eq!(Some(asked), layout.request());
    }
}
