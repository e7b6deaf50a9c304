use proptest::prelude::*;
use types::{Generation, MdtIndex};

use super::*;
use crate::{BackingSpec, ComponentSpec, Extent, PlainLayout, Reason, StripeSpec};

const INODE: InodeNumber = InodeNumber(0x203);

fn stripes(count: u32, bytes: Option<u64>) -> StripeSpec {
    StripeSpec { stripe_count: StripeCount::Exactly(count), stripe_bytes: bytes, ..StripeSpec::default() }
}

fn plain_layout() -> Layout {
    let osts = vec![OstIndex(3), OstIndex(0)];
    Layout::plain(Layout::FIRST_GENERATION, PlainLayout { stripe_bytes: 2097152, osts }, StripeSpec::default())
}

fn pfl() -> Vec<ComponentSpec> {
    let ends = [(16 << 20, 1), (64 << 20, 2), (END_OF_FILE, 4)];
    ends.map(|(end, count)| ComponentSpec { end, backing: BackingSpec::Striped(stripes(count, None)) }).to_vec()
}

fn grown() -> Layout {
    let mut layout = Layout::composite(&pfl());
    for (position, osts) in [(0, &[1][..]), (1, &[3, 0])] {
        let osts = osts.iter().map(|ost| OstIndex(*ost)).collect();
        layout.instantiate(position, PlainLayout { stripe_bytes: 4 << 20, osts }, StripeSpec::default()).unwrap();
    }
    layout.generation = Generation(4);
    layout
}

#[test]
fn a_file_is_shown_in_lustres_columns() {
    let expected = "\
lmm_magic:         0x0BD10BD0
lmm_seq:           0x200000400
lmm_object_id:     0x203
lmm_fid:           [0x200000400:0x203:0x0]
lmm_stripe_count:  2
lmm_stripe_size:   2097152
lmm_pattern:       raid0
lmm_layout_gen:    0
lmm_stripe_offset: 0x3
\tobdidx\t\t objid\t\t objid\t\t group
\t   0x3\t             0\t            0\t         0x203
\t     0\t             1\t          0x1\t         0x203

";
    let style = Style { verbose: true, hexadecimal: true, ..Style::default() };
    assert_eq!(file(InodeNumber::new(MdtIndex(0), 0x203), &plain_layout(), style), expected);
}

#[test]
fn yaml_names_the_objects() {
    let text = file(INODE, &plain_layout(), Style { yaml: true, ..Style::default() });
    let end = "lmm_objects:\n      - l_ost_idx: 3\n        l_fid:     0x203:0x0:0x0\n      - l_ost_idx: 0\n        l_fid:     0x203:0x1:0x0\n";
    assert!(text.ends_with(end), "{text}");
}

/// The texts captured for `pfl` after the write at 20 MiB, but for objects' FIDs and what is after
/// the second component.
#[test]
fn components_are_shown_in_lustres_columns() {
    let begin = "  lcm_layout_gen:    4
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   16777216
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 1
      lmm_objects:
      -   0: { l_ost_idx:   1, l_fid: [0x203:0x0:0x0] }

    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 16777216
    lcme_extent.e_end:   67108864
      lmm_stripe_count:  2
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 3
      lmm_objects:
      -   0: { l_ost_idx:   3, l_fid: [0x203:0x1:0x0] }
      -   1: { l_ost_idx:   0, l_fid: [0x203:0x2:0x0] }

    lcme_id:             3
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 67108864
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  4
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

";
    assert_eq!(file(INODE, &grown(), Style::default()), begin);
    let yaml = file(INODE, &grown(), Style { yaml: true, ..Style::default() });
    let expected = "lcm_layout_gen:    4
lcm_mirror_count:  1
lcm_entry_count:   3
components:
  - lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   16777216
    sub_layout:
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 1
      lmm_objects:
      - l_ost_idx: 1
        l_fid:     0x203:0x0:0x0
  - lcme_id:             2
";
    assert_eq!(&yaml[..expected.len()], expected);
    assert!(yaml.ends_with("      lmm_layout_gen:    0\n      lmm_stripe_offset: -1\n"), "{yaml}");
}

/// Captured for `pfl` before its second component had objects, and for `dom`.
#[test]
fn verbose_components_tell_offsets_as_lustre_does() {
    let mut layout = Layout::composite(&pfl());
    let first = PlainLayout { stripe_bytes: 4 << 20, osts: vec![OstIndex(1)] };
    layout.instantiate(0, first, StripeSpec::default()).unwrap();
    let text = file(INODE, &layout, Style { verbose: true, ..Style::default() });
    let begin = "composite_header:
  lcm_magic:         0x0BD60BD0
  lcm_size:          344
  lcm_flags:         0
  lcm_layout_gen:    3
  lcm_mirror_count:  1
  lcm_entry_count:   3
components:
  - lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   16777216
    lcme_offset:         176
    lcme_size:           56
    sub_layout:
      lmm_magic:         0x0BD10BD0
      lmm_seq:           0x200000400
      lmm_object_id:     0x203
      lmm_fid:           [0x200000400:0x203:0x0]
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 1
      lmm_objects:
      -   0: { l_ost_idx:   1, l_fid: [0x203:0x0:0x0] }

  - lcme_id:             2
";
    assert_eq!(&text[..begin.len()], begin);
    assert!(text.contains("lcme_offset:         232\n    lcme_size:           56\n"), "{text}");
    assert!(text.contains("lcme_offset:         288\n    lcme_size:           56\n"), "{text}");
    let dom = [
        ComponentSpec { end: 65536, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes(2, None)) },
    ];
    let text = file(INODE, &Layout::composite(&dom), Style { verbose: true, ..Style::default() });
    assert!(text.contains("lcm_size:          216\n"), "{text}");
    assert!(text.contains("lcme_offset:         128\n    lcme_size:           32\n"), "{text}");
    assert!(text.contains("      lmm_stripe_count:  0\n      lmm_stripe_size:   65536\n      lmm_pattern:       mdt\n      lmm_layout_gen:    0\n      lmm_mdt_index:     0\n\n  - lcme_id:             2\n"), "{text}");
}

/// Captured for `sel`.
#[test]
fn extensions_are_shown_as_components_of_their_own() {
    let asked = [
        ComponentSpec { end: 1 << 20, backing: BackingSpec::Striped(stripes(1, Some(65536))) },
        ComponentSpec { end: 64 << 20, backing: BackingSpec::Extended(stripes(2, Some(65536)), 64 << 20) },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Extended(stripes(4, Some(65536)), 128 << 20) },
    ];
    let text = file(INODE, &Layout::composite(&asked), Style::default());
    let extension = "    lcme_id:             3
    lcme_mirror_id:      0
    lcme_flags:          extension
    lcme_extent.e_start: 1048576
    lcme_extent.e_end:   67108864
      lmm_stripe_count:  0
      lmm_extension_size: 67108864
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

";
    assert!(text.contains(extension), "{text}");
    assert!(text.contains("  lcm_layout_gen:    5\n"), "{text}");
}

/// Captured for `dpfl`.
#[test]
fn directory_defaults_of_components_are_shown_without_numbers() {
    let rows = rows_of_default(&pfl());
    let shown = Composite { inode: None, generation: 0, entry_count: 3, bytes: 0, rows: &rows[..1] };
    let header = "  lcm_layout_gen:    0\n  lcm_mirror_count:  1\n  lcm_entry_count:   3\n";
    let entry = "    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 0
    lcme_extent.e_end:   16777216
      stripe_count:  1       stripe_size:   4194304       pattern:       raid0       stripe_offset: -1

";
    assert_eq!(composite(&shown, Style::default()), format!("{header}{entry}"));
    let yaml = composite(&shown, Style { yaml: true, ..Style::default() });
    let end = "    sub_layout:\n      stripe_count:  1\n      stripe_size:   4194304\n      pattern:       raid0\n      stripe_offset: -1\n";
    assert!(yaml.ends_with(end), "{yaml}");
}

/// The lines captured for `getstripe -d` of a directory without and with a default, and raw.
#[test]
fn directory_defaults_are_shown_on_one_line() {
    let own = LayoutSpec::Plain(stripes(2, None));
    for (own, raw, expected) in [
        (None, false, "stripe_count:  1 stripe_size:   4194304 pattern:       0 stripe_offset: -1\n"),
        (Some(&own), false, "stripe_count:  2 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n"),
        (None, true, "stripe_count:  0 stripe_size:   0 pattern:       0 stripe_offset: -1\n"),
    ] {
        assert_eq!(DirectoryDefault::new(own, None, raw).text(false), expected);
    }
    let yaml = DirectoryDefault::new(Some(&own), None, false).text(true);
    assert_eq!(yaml, "stripe_count:  2\nstripe_size:   4194304\npattern:       raid0\nstripe_offset: -1\n");
}

#[test]
fn yaml_is_read_back() {
    let style = Style { yaml: true, ..Style::default() };
    let asked = vec![
        ComponentSpec { end: 65536, backing: BackingSpec::Mdt },
        ComponentSpec { end: 1 << 30, backing: BackingSpec::Extended(stripes(2, Some(65536)), 64 << 20) },
        ComponentSpec { end: 2 << 30, backing: BackingSpec::Automatic },
        ComponentSpec {
            end: END_OF_FILE,
            backing: BackingSpec::Striped(StripeSpec {
                stripe_count: StripeCount::All,
                pool: Some("flash".to_owned()),
                ..stripes(1, Some(1 << 20))
            }),
        },
    ];
    let text = file(INODE, &Layout::composite(&asked), style);
    assert_eq!(yaml::parse(&text), Ok(LayoutSpec::Composite(asked)), "{text}");
    let plain = yaml::parse(&file(INODE, &plain_layout(), style));
    assert_eq!(plain, Ok(LayoutSpec::Plain(stripes(2, Some(2097152)))), "chosen OSTs are not asked for again");
    let default =
        yaml::parse("stripe_count:  8\nstripe_size:   65536\npattern:       raid0,overstriped\nstripe_offset: 0x2\n");
    let expected = StripeSpec {
        stripe_count: StripeCount::Overstriped(8),
        first_ost: Some(OstIndex(2)),
        ..stripes(1, Some(65536))
    };
    assert_eq!(default, Ok(LayoutSpec::Plain(expected)));
}

#[test]
fn yaml_of_what_the_file_system_decides_asks_it_to_decide_again() {
    let style = Style { yaml: true, ..Style::default() };
    let mut grown = Layout::composite(&crate::automatic::components(crate::automatic::BYTES_ON_MDT));
    let spec = StripeSpec { stripe_count: StripeCount::Exactly(1), ..StripeSpec::default() };
    // An end that nobody could ask for: what lay after it was left out.
    let extent = Extent { start: 65536, end: (1 << 20) + 4096 };
    let decided = grown.cut(1, extent, spec.clone(), Reason::Position).unwrap();
    grown.instantiate(decided, PlainLayout { stripe_bytes: 1 << 20, osts: vec![OstIndex(1)] }, spec).unwrap();
    let text = file(INODE, &grown, style);
    assert!(text.contains("lcme_flags:          init,automatic\n"), "{text}");
    assert_eq!(yaml::parse(&text), Ok(LayoutSpec::Automatic), "{text}");
    assert!(!file(INODE, &grown, Style::default()).contains("init,automatic"), "Lustre's columns are Lustre's");
}

#[test]
fn wrong_yaml_is_refused_by_line() {
    let field = |line, text: &str| Err(yaml::YamlError::Field { line, text: text.to_owned() });
    assert_eq!(yaml::parse(""), Err(yaml::YamlError::Empty));
    assert_eq!(yaml::parse("lmm_stripe_count: 1\nnonsense\n"), field(2, "nonsense"));
    assert_eq!(yaml::parse("lmm_strip_count: 1\n"), field(1, "lmm_strip_count: 1"));
    assert_eq!(yaml::parse("lcm_mirror_count: 2\n"), Err(yaml::YamlError::Mirrored));
    let value = yaml::parse("lmm_stripe_count: many\n").unwrap_err().to_string();
    assert_eq!(value, "line 1: 'many' is not a value of lmm_stripe_count");
    let gap = "components:\n- lcme_extent.e_start: 65536\n  lcme_extent.e_end: EOF\n";
    assert_eq!(yaml::parse(gap), Err(yaml::YamlError::Gap(65536)));
}

proptest! {
    #[test]
    fn any_text_is_a_layout_or_an_error(text in "[-a-z_.: 0-9EOF\n]{0,200}") {
        let _ = yaml::parse(&text);
    }
}

#[test]
fn an_ost_that_is_listed_twice_makes_a_default_overstriped() {
    for (osts, expected) in [(&[0, 1][..], "raid0"), (&[0, 0, 1], "raid0,overstriped")] {
        let osts = osts.iter().copied().map(OstIndex).collect();
        let stripes = StripeSpec { osts, ..StripeSpec::default() };
        let plain = LayoutSpec::Plain(stripes.clone());
        assert_eq!(DirectoryDefault::new(Some(&plain), Some(&plain), false).pattern, expected);
        let rows = rows_of_default(&[ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes) }]);
        assert_eq!(rows[0].pattern.name(), expected);
    }
}
