//! A directory: the layout of new files in it, and its speed for files of different sizes.

use std::fmt::Write as _;

use layout::{
    BackingSpec, LayoutSpec, StripeCount, StripeSpec,
    automatic::{BYTES_ON_MDT, LARGE_REQUEST_BYTES, OneWriter, WATERMARKS},
};
use serde_json::{Value, json};
use types::counted;

use super::{
    speeds::OstSpeeds,
    words::{Explanation, bytes, megabytes, position, stripes_asked},
};

/// Explains what new files get. `own`: set on the directory itself.
pub fn explain(name: &str, own: bool, effective: &LayoutSpec, speeds: &OstSpeeds) -> Explanation {
    let (hardware, osts) = (speeds.hardware(), speeds.osts());
    let whose = if own {
        "set on this directory"
    } else {
        "nothing is set here: the default of the root or of the file system"
    };
    let mut text = format!("{name}: new files get ");
    let (mut sizes, mut components) = (Vec::new(), Vec::new());
    match effective {
        LayoutSpec::Automatic => {
            let _ = writeln!(text, "automatic layouts ({whose})");
            let mut start = 0;
            for watermark in WATERMARKS {
                let writer = |large_requests| OneWriter { size: start, large_requests, files_written: 1 };
                let (stripes, of_large) = (writer(false).stripes(osts), writer(true).stripes(osts));
                let one = u64::from(stripes.min(speeds.devices())).saturating_mul(hardware.ost_bytes_per_second);
                let speed = one.min(hardware.client_bytes_per_second);
                let _ = writeln!(
                    text,
                    "  from {:<8} {} of {}: {} for one client",
                    bytes(start),
                    counted(stripes, "stripe"),
                    bytes(watermark.stripe_bytes),
                    megabytes(speed)
                );
                if of_large > stripes {
                    let _ = writeln!(
                        text,
                        "                {} if it is written in requests of {} or more",
                        counted(of_large, "stripe"),
                        bytes(LARGE_REQUEST_BYTES)
                    );
                }
                sizes.push(json!({
                    "start": start,
                    "stripe_count": stripes,
                    "stripe_count_of_large_requests": of_large,
                    "stripe_bytes": watermark.stripe_bytes,
                }));
                start = watermark.end;
                if stripes == osts && watermark.stripe_count > osts {
                    break;
                }
            }
            let _ = writeln!(
                text,
                "  The first {} are on the metadata target, if it accepts data (lod.*.dom_stripesize).",
                bytes(BYTES_ON_MDT)
            );
            text.push_str("  A file written by several clients gets a stripe for each writer after its beginning;\n");
            text.push_str("  files that are being written at the same time share the OSTs.\n");
            let _ = writeln!(text, "  {}", speeds.assumption());
        }
        LayoutSpec::Plain(stripes) => {
            let _ = writeln!(text, "{} from start to end ({whose})", stripes_asked(stripes));
            components.push(component_json(layout::END_OF_FILE, Some(stripes), &stripes_asked(stripes)));
        }
        LayoutSpec::Composite(asked) => {
            let _ = writeln!(text, "{} ({whose})", counted(asked.len(), "component"));
            for component in asked {
                let backing = match &component.backing {
                    BackingSpec::Striped(stripes) => stripes_asked(stripes),
                    BackingSpec::Extended(stripes, step) => {
                        format!("{}, extended in steps of {}", stripes_asked(stripes), bytes(*step))
                    }
                    BackingSpec::Mdt => "on the metadata target".to_owned(),
                    BackingSpec::Automatic => "decided as the file grows".to_owned(),
                };
                let _ = writeln!(text, "  up to {}: {backing}", position(component.end));
                components.push(component_json(component.end, component.stripes(), &backing));
            }
        }
    }
    let kind = match effective {
        LayoutSpec::Automatic => "automatic",
        LayoutSpec::Plain(_) => "plain",
        LayoutSpec::Composite(_) => "composite",
    };
    let json = json!({ "path": name, "kind": kind, "set_here": own, "watermarks": sizes, "components": components, "osts": osts });
    Explanation { text, json }
}

/// A component of a default, for programs; stripe counts as Lustre's tools have them (-1: on all
/// OSTs, -n: n on each).
fn component_json(end: u64, stripes: Option<&StripeSpec>, asked: &str) -> Value {
    let count = |stripes: &StripeSpec| match stripes.stripe_count {
        StripeCount::Default if stripes.osts.is_empty() => None,
        StripeCount::Default => Some(stripes.osts.len() as i64),
        StripeCount::Exactly(count) | StripeCount::Overstriped(count) => Some(i64::from(count)),
        StripeCount::All => Some(-1),
        StripeCount::PerOst(count) => Some(-i64::from(count)),
    };
    json!({
        "end": (end != layout::END_OF_FILE).then_some(end),
        "asked": asked,
        "stripe_count": stripes.and_then(count),
        "stripe_bytes": stripes.and_then(|stripes| stripes.stripe_bytes),
        "osts": stripes.map(|stripes| stripes.osts.iter().map(|ost| ost.0).collect::<Vec<_>>()),
        "pool": stripes.and_then(StripeSpec::restricted_to),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::speeds::Speeds, *};

    fn alike(osts: u32) -> OstSpeeds {
        OstSpeeds::alike(osts, Speeds { ost_speed: Some(350), client_speed: 3000 })
    }

    #[test]
    fn automatic_directories_show_the_watermarks() {
        let explained = explain("d", false, &LayoutSpec::Automatic, &alike(8));
        let expected = "\
d: new files get automatic layouts (nothing is set here: the default of the root or of the file system)
  from 0 B      1 stripe of 1 MiB: 350 MB/s for one client
                4 stripes if it is written in requests of 256 KiB or more
  from 64 MiB   4 stripes of 1 MiB: 1400 MB/s for one client
  from 1 GiB    8 stripes of 2 MiB: 2800 MB/s for one client
  The first 64 KiB are on the metadata target, if it accepts data (lod.*.dom_stripesize).
  A file written by several clients gets a stripe for each writer after its beginning;
  files that are being written at the same time share the OSTs.
  Estimated with 8 OSTs of 350 MB/s (--ost-speed) and a link of 3000 MB/s per client (--client-speed).
";
        assert_eq!(explained.text, expected);
        assert_eq!(explained.json["watermarks"].as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn other_defaults_are_put_in_words() {
        let stripes =
            StripeSpec { stripe_count: StripeCount::All, stripe_bytes: Some(1 << 20), ..StripeSpec::default() };
        let explained = explain("d", true, &LayoutSpec::Plain(stripes), &alike(8));
        assert_eq!(
            explained.text,
            "d: new files get a stripe of 1 MiB on every OST from start to end (set on this directory)\n"
        );
    }
}
