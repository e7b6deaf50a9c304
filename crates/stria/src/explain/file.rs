//! A file: component by component, then as a whole, then what would be better.

use std::fmt::Write as _;

use layout::{
    Backing, Component, Form, Layout, Location, Reason, StripeSpec,
    automatic::{self, WATERMARKS},
    cost::{self, Hardware, Part},
    migration::{Comparison, WORTH_PERCENT},
};
use serde_json::{Value, json};

use super::{Explanation, Speeds, bytes, counted, duration, megabytes, range, stripes_asked};

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
    let mut text = format!("  {}: {}\n", range(extent), held_by(layout, component));
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
        "stripe_bytes": asked(component).and_then(|stripes| stripes.stripe_bytes),
        "osts": osts(layout, component),
        "pool": asked(component).and_then(|stripes| stripes.restricted_to().map(str::to_owned)),
        "why": why,
        "reason": component.reason.map(Reason::name),
        "bytes": part.map(|part| part.extent.bytes()),
        "one_client_bytes_per_second": part.filter(|part| part.osts > 0).map(Part::one_client_speed),
        "all_clients_bytes_per_second": part.map(|part| part.all_clients_speed(hardware)),
    })
}

/// The OSTs of a component's objects, stripe by stripe.
fn osts(layout: &Layout, component: &Component) -> Vec<u16> {
    let of_slot = |slot| match layout.location(slot) {
        Some(Location::Ost(ost)) => Some(ost.0),
        _ => None,
    };
    component.slots().filter_map(of_slot).collect()
}

/// What was asked for a component, or decided, with the stripe size it has got.
fn asked(component: &Component) -> Option<StripeSpec> {
    match &component.backing {
        Backing::Striped { plain, spec, .. } => {
            Some(StripeSpec { stripe_bytes: Some(plain.stripe_bytes), ..spec.clone() })
        }
        Backing::Pending(spec) => Some(spec.clone()),
        Backing::Mdt { .. } | Backing::Extension { .. } | Backing::Automatic => None,
    }
}

/// Where the bytes of a component are.
fn held_by(layout: &Layout, component: &Component) -> String {
    match &component.backing {
        Backing::Striped { plain, spec, .. } => {
            let osts: Vec<String> = osts(layout, component).iter().map(u16::to_string).collect();
            let stripes = counted(osts.len() as u64, "stripe");
            let target = if osts.len() == 1 { "OST" } else { "OSTs" };
            let pool = spec.restricted_to().map(|pool| format!(" of pool '{pool}'")).unwrap_or_default();
            format!("{stripes} of {} on {target} {}{pool}", bytes(plain.stripe_bytes), osts.join(", "))
        }
        Backing::Mdt { .. } => "on the metadata target".to_owned(),
        Backing::Pending(spec) => format!("no objects yet; asked for: {}", stripes_asked(spec)),
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
        Backing::Striped { plain, .. } => match component.reason {
            Some(reason) => why_automatic(reason, extent.start, plain.stripe_count()),
            None => "asked for, or decided before reasons were kept".to_owned(),
        },
    }
}

/// Why the policy gave so many stripes from `start` on.
fn why_automatic(reason: Reason, start: u64, stripes: u32) -> String {
    let watermark = WATERMARKS.iter().find(|watermark| start < watermark.end).unwrap_or(&WATERMARKS[0]);
    let osts = counted(u64::from(stripes), "OST");
    match reason {
        Reason::Position if watermark.stripe_count == 1 => {
            format!("up to {} one object is enough, and costs least", bytes(watermark.end))
        }
        Reason::Position => format!("beyond {} a file is worth {osts}", bytes(start)),
        Reason::LargeRequests => format!("written in large requests: who moves data gets {osts} from the beginning"),
        Reason::Size => format!("the file was known to become larger, and worth {osts}"),
        Reason::Names => format!("the last files of such a name became larger: worth {osts}"),
        Reason::Writers => format!("several wrote the file at a time: {osts} for them"),
        Reason::OutOfStep => format!("with {osts}, writers of equal blocks do not all go on to the same one"),
        Reason::Share => format!("{osts} was the share of a file, of all that were written at a time"),
        Reason::Osts => format!("there were no more than {osts} that took new objects"),
        Reason::Room => format!("no more than {osts} had room for it"),
    }
}

/// A plain layout that one client would be faster with.
struct Better {
    stripes: u32,
    us: u64,
}

fn better(hardware: &Hardware, size: u64, own_us: u64, osts: u32) -> Option<Better> {
    let counts = (0..32).map(|shift| 1 << shift).take_while(|count| *count < osts).chain((osts > 0).then_some(osts));
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
    use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Extent, PlainLayout};
    use types::OstIndex;

    use super::*;

    const SPEEDS: Speeds = Speeds { ost_speed: 350, client_speed: 3000 };

    fn automatic_file() -> Layout {
        let mut layout = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic }]);
        for (start, end, osts) in [(0, 64 << 20, 0..1), (64 << 20, 1 << 30, 1..5)] {
            let position = layout.components.len() - 1;
            let extent = Extent { start, end };
            let cut = layout.cut(position, extent, StripeSpec::default(), Reason::Position).unwrap();
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
        assert_eq!(explained.json["components"][1]["stripe_bytes"], 1 << 20);
        assert_eq!(explained.json["components"][1]["osts"], json!([1, 2, 3, 4]));
        assert_eq!(explained.json["better"]["stripe_count"], 8);
        assert!(explained.json["components"][2]["end"].is_null());
    }

    #[test]
    fn what_was_decided_is_justified_by_what_decided_it() {
        let mut layout = automatic_file();
        let json = |layout: &Layout| explain("f", layout, 200 << 20, 8, SPEEDS).json["components"][1].clone();
        assert_eq!(json(&layout)["reason"], "position");
        layout.components[1].reason = Some(Reason::Writers);
        assert_eq!(json(&layout)["reason"], "writers");
        assert_eq!(json(&layout)["why"], "several wrote the file at a time: 4 OSTs for them");
        layout.components[1].reason = None;
        assert!(json(&layout)["reason"].is_null());
        assert_eq!(json(&layout)["why"], "asked for, or decided before reasons were kept");
        let all: std::collections::BTreeSet<String> =
            Reason::ALL.iter().map(|reason| why_automatic(*reason, 16 << 30, 64)).collect();
        assert_eq!(all.len(), Reason::ALL.len(), "each says something of its own");
        assert_eq!(why_automatic(Reason::Position, 16 << 30, 64), "beyond 16 GiB a file is worth 64 OSTs");
    }
}
