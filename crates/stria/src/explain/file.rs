//! A file: component by component, then as a whole, then what would be better.

use std::fmt::Write as _;

use layout::{
    Backing, Component, Form, Layout, Location,
    automatic::{self, LARGE_REQUEST_STRIPES, WATERMARKS},
    cost::{self, Hardware, Part},
    migration::{Comparison, WORTH_PERCENT},
};
use serde_json::{Value, json};

use super::{Explanation, Speeds, bytes, counted, duration, megabytes, position};

/// Explains the layout of a file of `size` bytes in a file system of so many OSTs.
pub fn explain(name: &str, layout: &Layout, size: u64, osts: u32, speeds: Speeds) -> Explanation {
    let hardware = speeds.hardware(osts);
    let parts = cost::parts(&hardware, layout, size);
    let mut text = String::new();
    let kind = kind(layout);
    let objects = counted(layout.object_count() as u64, "object");
    let _ = writeln!(text, "{name}: {} in {objects}; {kind}", bytes(size));
    let mut components = Vec::new();
    for component in layout.components.iter().filter(|component| !component.extent.is_empty()) {
        let part = parts.iter().find(|part| part.extent.start == component.extent.start);
        let why = why(layout, component);
        text.push_str(&component_text(layout, component, part, &hardware, &why));
        components.push(component_json(layout, component, part, &hardware, &why));
    }
    let own_us: u64 = parts.iter().map(|part| part.one_client_us).sum();
    let whole = cost::speed(size, own_us);
    let better = better(&hardware, size, own_us, osts);
    if size > 0 {
        let _ = writeln!(
            text,
            "  whole file   one client reads or writes it in {} ({})",
            duration(own_us),
            megabytes(whole)
        );
        let _ = writeln!(
            text,
            "               costs {objects}: each is one more request to stat, to sync and to remove it"
        );
        let _ = writeln!(text, "  better       {}", better_text(better.as_ref(), own_us));
        let _ = writeln!(text, "  {}", speeds.assumption(osts));
    }
    let json = json!({
        "path": name,
        "size": size,
        "kind": kind,
        "objects": layout.object_count(),
        "generation": layout.generation.0,
        "components": components,
        "one_client_us": own_us,
        "one_client_bytes_per_second": whole,
        "better": better.map(|better| json!({ "stripe_count": better.stripes, "one_client_us": better.us })),
        "osts": osts,
        "ost_bytes_per_second": hardware.ost_bytes_per_second,
        "client_bytes_per_second": hardware.client_bytes_per_second,
    });
    Explanation { text, json }
}

fn kind(layout: &Layout) -> &'static str {
    match layout.form {
        _ if automatic::is_automatic(layout) => "automatic: the layout grows with the file",
        Form::Plain => "plain: the same stripes from beginning to end",
        Form::Composite => "components, as they were asked for",
    }
}

fn component_text(
    layout: &Layout,
    component: &Component,
    part: Option<&Part>,
    hardware: &Hardware,
    why: &str,
) -> String {
    let extent = component.extent;
    let mut text =
        format!("  {} .. {}: {}\n", position(extent.start), position(extent.end), held_by(layout, component));
    let _ = writeln!(text, "               why: {why}");
    if let Some(part) = part.filter(|part| part.osts > 0) {
        let _ = writeln!(
            text,
            "               holds {}; serves one client {}, all together {}",
            bytes(part.extent.bytes()),
            megabytes(part.one_client_speed()),
            megabytes(part.all_clients_speed(hardware)),
        );
    }
    text
}

fn component_json(
    layout: &Layout,
    component: &Component,
    part: Option<&Part>,
    hardware: &Hardware,
    why: &str,
) -> Value {
    json!({
        "id": component.id.0,
        "start": component.extent.start,
        "end": (component.extent.end != layout::END_OF_FILE).then_some(component.extent.end),
        "held_by": held_by(layout, component),
        "stripe_count": component.slots().len(),
        "why": why,
        "bytes": part.map(|part| part.extent.bytes()),
        "one_client_bytes_per_second": part.filter(|part| part.osts > 0).map(Part::one_client_speed),
        "all_clients_bytes_per_second": part.map(|part| part.all_clients_speed(hardware)),
    })
}

/// Where the bytes of a component are.
fn held_by(layout: &Layout, component: &Component) -> String {
    match &component.backing {
        Backing::Striped { plain, .. } => {
            let osts: Vec<String> = component
                .slots()
                .filter_map(|slot| match layout.location(slot) {
                    Some(Location::Ost(ost)) => Some(ost.0.to_string()),
                    _ => None,
                })
                .collect();
            let stripes = counted(osts.len() as u64, "stripe");
            let target = if osts.len() == 1 { "OST" } else { "OSTs" };
            format!("{stripes} of {} on {target} {}", bytes(plain.stripe_bytes), osts.join(", "))
        }
        Backing::Mdt { .. } => "on the metadata target".to_owned(),
        Backing::Pending(_) => "no objects yet".to_owned(),
        Backing::Extension { step_bytes } => {
            format!("room that the component before grows into by {}", bytes(*step_bytes))
        }
        Backing::Automatic => "not decided yet".to_owned(),
    }
}

fn why(layout: &Layout, component: &Component) -> String {
    let extent = component.extent;
    match &component.backing {
        Backing::Automatic if extent.end == layout::END_OF_FILE => {
            format!("decided when the file is written beyond {}", bytes(extent.start))
        }
        Backing::Automatic => "nothing was written here; decided when something is".to_owned(),
        Backing::Pending(_) => "gets objects with the first write to it".to_owned(),
        Backing::Extension { .. } => "asked for with -z".to_owned(),
        Backing::Mdt { .. } => "a small file costs one request to the metadata server and none to an OST".to_owned(),
        Backing::Striped { .. } if !automatic::is_automatic(layout) => "asked for, or the default here".to_owned(),
        Backing::Striped { plain, .. } => why_automatic(extent.start, plain.stripe_count()),
    }
}

/// Why the policy gave so many stripes from `start` on.
fn why_automatic(start: u64, stripes: u32) -> String {
    let watermark = WATERMARKS.iter().find(|watermark| start < watermark.end).unwrap_or(&WATERMARKS[0]);
    let usual = watermark.stripe_count;
    if stripes > usual {
        let large = if stripes <= LARGE_REQUEST_STRIPES { "large requests, " } else { "" };
        return format!(
            "{stripes} instead of {usual}, for one of these: {large}several writers, a length given first, large files with such names"
        );
    }
    if stripes < usual && usual < types::limits::STRIPE_COUNT_MAX {
        return format!(
            "{stripes} instead of {usual}: there were no more OSTs with room, or as many files written at a time to share them"
        );
    }
    if usual == 1 {
        return format!("up to {} one object is enough, and costs least", bytes(watermark.end));
    }
    format!("beyond {} a file is worth {}", bytes(start), counted(u64::from(stripes), "OST"))
}

/// A plain layout that one client would be faster with.
struct Better {
    stripes: u32,
    us: u64,
}

fn better(hardware: &Hardware, size: u64, own_us: u64, osts: u32) -> Option<Better> {
    let counts = (0..32).map(|shift| 1 << shift).take_while(|count| *count < osts).chain([osts]);
    let with = |stripes| Better { stripes, us: cost::one_client_us(hardware, size, stripes, stripes) };
    let all: Vec<Better> = counts.map(with).collect();
    let shortest = all.iter().map(|better| better.us).min()?;
    let best = all.into_iter().find(|better| better.us <= shortest + shortest / 20)?;
    Comparison { own_us, moved_us: best.us }.is_worth_naming().then_some(best)
}

fn better_text(better: Option<&Better>, own_us: u64) -> String {
    match better {
        None => format!("no plain layout would be {WORTH_PERCENT}% faster for one client"),
        Some(better) => format!(
            "for one client that moves the whole file: {} from the beginning, {} instead of {}",
            counted(u64::from(better.stripes), "stripe"),
            duration(better.us),
            duration(own_us)
        ),
    }
}

#[cfg(test)]
mod tests {
    use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Extent, PlainLayout, StripeSpec};
    use types::OstIndex;

    use super::*;

    const SPEEDS: Speeds = Speeds { ost_speed: 350, client_speed: 3000 };

    fn automatic_file() -> Layout {
        let mut layout = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic }]);
        for (start, end, osts) in [(0, 64 << 20, 0..1), (64 << 20, 1 << 30, 1..5)] {
            let position = layout.components.len() - 1;
            let cut = layout.cut(position, Extent { start, end }, StripeSpec::default()).unwrap();
            let plain = PlainLayout { stripe_bytes: 1 << 20, osts: osts.map(OstIndex).collect() };
            layout.instantiate(cut, plain, StripeSpec::default()).unwrap();
        }
        layout
    }

    #[test]
    fn an_automatic_file_is_explained_component_by_component() {
        let explained = explain("f", &automatic_file(), 200 << 20, 8, SPEEDS);
        let expected = "\
f: 200 MiB in 5 objects; automatic: the layout grows with the file
  0 B .. 64 MiB: 1 stripe of 1 MiB on OST 0
               why: up to 64 MiB one object is enough, and costs least
               holds 64 MiB; serves one client 349 MB/s, all together 350 MB/s
  64 MiB .. 1 GiB: 4 stripes of 1 MiB on OSTs 1, 2, 3, 4
               why: beyond 64 MiB a file is worth 4 OSTs
               holds 136 MiB; serves one client 1397 MB/s, all together 1400 MB/s
  1 GiB .. the end: not decided yet
               why: decided when the file is written beyond 1 GiB
  whole file   one client reads or writes it in 294 ms (713 MB/s)
               costs 5 objects: each is one more request to stat, to sync and to remove it
  better       for one client that moves the whole file: 8 stripes from the beginning, 75 ms instead of 294 ms
  Reckoned with 8 OSTs of 350 MB/s and a link of 3000 MB/s per client (--ost-speed, --client-speed).
";
        assert_eq!(explained.text, expected);
        assert_eq!(explained.json["components"][1]["stripe_count"], 4);
        assert_eq!(explained.json["better"]["stripe_count"], 8);
        assert!(explained.json["components"][2]["end"].is_null());
    }

    #[test]
    fn unusual_counts_are_justified() {
        assert!(why_automatic(4 << 20, 6).starts_with("6 instead of 1, for one of these: several writers, a length"));
        assert!(why_automatic(4 << 20, 4).starts_with("4 instead of 1, for one of these: large requests, several"));
        assert!(why_automatic(64 << 20, 2).starts_with("2 instead of 4: there were no more OSTs"));
        assert_eq!(why_automatic(16 << 30, 64), "beyond 16 GiB a file is worth 64 OSTs");
    }
}
