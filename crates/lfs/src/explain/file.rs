//! A file: component by component, then as a whole, then what would be better.

use std::fmt::Write as _;

use layout::{
    Backing, Component, Form, Layout, Location, Reason, StripeSpec,
    automatic::{self, WATERMARKS},
    cost::{self, Hardware, Part},
    migration::{Comparison, WORTH_PERCENT, WORTH_US},
};
use serde_json::{Value, json};
use types::counted;

use super::{
    speeds::OstSpeeds,
    words::{Explanation, bytes, duration, megabytes, range, stripes_asked},
};

/// How much of a file there is.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    /// Its length.
    pub size: u64,
    /// Bytes that take space; the rest are holes.
    pub data: u64,
}

impl Extents {
    /// Whether its length says little about what is in it.
    fn is_sparse(self) -> bool {
        self.data < self.size / 2
    }

    /// Bytes moved by a client that moves all of it.
    fn moved(self) -> u64 {
        if self.is_sparse() { self.data } else { self.size }
    }
}

/// Microseconds in which one client moves the data of these parts: for a sparse file as if the data
/// were evenly distributed in them.
fn own_us(parts: &[Part], extents: Extents) -> u64 {
    let on_osts = || parts.iter().filter(|part| part.osts > 0);
    let (us, bytes) = (on_osts().map(|part| part.one_client_us).sum(), on_osts().map(|part| part.extent.bytes()).sum());
    if !extents.is_sparse() || extents.data >= bytes {
        return us;
    }
    let part = u128::from(us) * u128::from(extents.data) / u128::from(bytes);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Explains the layout of a file in a file system with these OSTs.
pub fn explain(name: &str, layout: &Layout, extents: Extents, speeds: &OstSpeeds) -> Explanation {
    let size = extents.size;
    let hardware = speeds.hardware();
    let parts = cost::parts_on(&hardware, layout, size, |osts| speeds.together(osts));
    let mut text = String::new();
    let kind = kind(layout);
    let objects = counted(layout.object_count(), "object");
    let data = if extents.is_sparse() { format!(" ({} of data)", bytes(extents.data)) } else { String::new() };
    let _ = writeln!(text, "{name}: {}{data} in {objects}; {kind}", bytes(size));
    let mut components = Vec::new();
    for component in layout.components.iter().filter(|component| !component.extent.is_empty()) {
        let part = parts.iter().find(|part| part.extent.start == component.extent.start);
        let why = why(layout, component);
        text.push_str(&component_text(layout, component, part, speeds, &why, extents));
        components.push(component_json(layout, component, part, speeds, &why));
    }
    let own_us = own_us(&parts, extents);
    let whole = cost::speed(extents.moved(), own_us);
    let better = better(&hardware, extents, own_us, speeds.devices());
    let unusable =
        speeds.unusable(&layout.components.iter().flat_map(|component| osts(layout, component)).collect::<Vec<_>>());
    if extents.moved() > 0 {
        let moves = format!("one client reads or writes it in {} ({})", duration(own_us), megabytes(whole));
        let _ = match unusable.is_empty() {
            true => writeln!(text, "  whole file   {moves}"),
            false => writeln!(text, "  whole file   waits for {}; then {moves}", not_answering(&unusable)),
        };
        let _ = writeln!(text, "               costs {objects}: each adds a request to stat, sync and remove the file");
        let _ = writeln!(text, "  better       {}", better_text(better.as_ref(), own_us));
        let _ = writeln!(text, "  {}", speeds.assumption());
    }
    let json = json!({
        "path": name,
        "size": size,
        "data_bytes": extents.data,
        "kind": kind,
        "objects": layout.object_count(),
        "generation": layout.generation.0,
        "components": components,
        "one_client_us": own_us,
        "one_client_bytes_per_second": whole,
        "better": better.map(|better| json!({ "stripe_count": better.stripes, "one_client_us": better.us })),
        "osts": speeds.osts(),
        "devices": speeds.devices(),
        "unreachable_osts": unusable,
        "speed_source": speeds.source().name(),
        "ost_bytes_per_second": hardware.ost_bytes_per_second,
        "client_bytes_per_second": hardware.client_bytes_per_second,
    });
    Explanation { text, json }
}

/// OSTs that do not answer, or are deactivated.
fn not_answering(osts: &[u16]) -> String {
    let listed: Vec<String> = osts.iter().map(u16::to_string).collect();
    match osts.len() {
        1 => format!("OST {}, which does not answer", listed[0]),
        _ => format!("OSTs {}, which do not answer", listed.join(", ")),
    }
}

fn kind(layout: &Layout) -> &'static str {
    match layout.form {
        _ if automatic::is_automatic(layout) => "automatic: the layout grows with the file",
        Form::Plain => "plain: the same stripes from start to end",
        Form::Composite => "components, as requested",
    }
}

fn component_text(
    layout: &Layout,
    component: &Component,
    part: Option<&Part>,
    speeds: &OstSpeeds,
    why: &str,
    extents: Extents,
) -> String {
    let extent = component.extent;
    let mut text = format!("  {}: {}\n", range(extent), held_by(layout, component));
    let _ = writeln!(text, "               why: {why}");
    if let Some(part) = part.filter(|part| part.osts > 0) {
        let unusable = speeds.unusable(&osts(layout, component));
        let serves = match unusable.is_empty() {
            true => format!(
                "serves one client at {}, all clients at {}",
                megabytes(part.one_client_speed()),
                megabytes(part.all_clients_speed())
            ),
            false => format!("waits for {}", not_answering(&unusable)),
        };
        let holds = if extents.is_sparse() { "spans" } else { "holds" };
        let _ = writeln!(text, "               {holds} {}; {serves}", bytes(part.extent.bytes()));
    }
    text
}

fn component_json(layout: &Layout, component: &Component, part: Option<&Part>, speeds: &OstSpeeds, why: &str) -> Value {
    let unusable = speeds.unusable(&osts(layout, component));
    let serving = part.filter(|part| part.osts > 0 && unusable.is_empty());
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
        "unreachable_osts": unusable,
        "one_client_bytes_per_second": serving.map(Part::one_client_speed),
        "all_clients_bytes_per_second": serving.map(Part::all_clients_speed),
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
            let stripes = counted(osts.len(), "stripe");
            let target = if osts.len() == 1 { "OST" } else { "OSTs" };
            let pool = spec.restricted_to().map(|pool| format!(" of pool '{pool}'")).unwrap_or_default();
            format!("{stripes} of {} on {target} {}{pool}", bytes(plain.stripe_bytes), osts.join(", "))
        }
        Backing::Mdt { .. } => "on the metadata target".to_owned(),
        Backing::Pending(spec) => format!("no objects yet; requested: {}", stripes_asked(spec)),
        Backing::Extension { step_bytes } => {
            format!("reserved for the growth of the previous component, in steps of {}", bytes(*step_bytes))
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
        Backing::Automatic => "nothing was written here yet; decided at the first write".to_owned(),
        Backing::Pending(_) => "gets objects with the first write to it".to_owned(),
        Backing::Extension { .. } => "requested with -z".to_owned(),
        Backing::Mdt { .. } => "a small file costs one request to the metadata server and none to an OST".to_owned(),
        Backing::Striped { .. } if !automatic::is_automatic(layout) => "requested, or the default here".to_owned(),
        Backing::Striped { plain, .. } => match component.reason {
            Some(reason) => {
                let why = why_automatic(reason, extent.start, plain.stripe_count());
                why + &why_it_went_on(component, plain.stripe_count())
            }
            None => "requested, or decided by a version that did not record reasons".to_owned(),
        },
    }
}

/// The note for a component that was extended beyond a watermark where more stripes were due: it
/// keeps its first reason.
fn why_it_went_on(component: &Component, stripes: u32) -> String {
    let passed = |watermark: &&automatic::Watermark| watermark.end >= component.extent.end;
    let first = WATERMARKS.iter().find(|watermark| component.extent.start < watermark.end);
    let (Some(first), Some(last)) = (first, WATERMARKS.iter().find(passed)) else { return String::new() };
    if first.end >= last.end || last.stripe_count <= stripes {
        return String::new();
    }
    let beyond = bytes(first.end);
    format!("; beyond {beyond} more stripes were due, but concurrently written files share the OSTs with free space")
}

/// Why the policy gave so many stripes from `start` on.
fn why_automatic(reason: Reason, start: u64, stripes: u32) -> String {
    let watermark = WATERMARKS.iter().find(|watermark| start < watermark.end).unwrap_or(&WATERMARKS[0]);
    let osts = counted(stripes, "OST");
    match reason {
        Reason::Position if watermark.stripe_count == 1 => {
            format!("up to {} one object is enough, and costs least", bytes(watermark.end))
        }
        Reason::Position => format!("beyond {} a file is worth {osts}", bytes(start)),
        Reason::LargeRequests => format!("written in large requests: such files start with {osts}"),
        Reason::Size => format!("the file was expected to grow: it is worth {osts}"),
        Reason::Names => format!("recent files with similar names became larger: it is worth {osts}"),
        Reason::Writers => format!("several writers at the same time: {osts} for them"),
        Reason::OutOfStep => format!("with {osts}, writers of equal blocks do not all use the same OST at once"),
        Reason::Share => format!("{osts} was the fair share among all files being written"),
        Reason::Osts => format!("no more than {osts} accepted new objects"),
        Reason::Space => format!("no more than {osts} had space for it"),
    }
}

/// A plain layout that one client would be faster with.
struct Better {
    stripes: u32,
    us: u64,
}

fn better(hardware: &Hardware, extents: Extents, own_us: u64, osts: u32) -> Option<Better> {
    let counts = (0..32).map(|shift| 1 << shift).take_while(|count| *count < osts).chain((osts > 0).then_some(osts));
    let with = |stripes| Better { stripes, us: cost::one_client_us(hardware, extents.moved(), stripes, stripes) };
    let all: Vec<Better> = counts.map(with).collect();
    let shortest = all.iter().map(|better| better.us).min()?;
    let best = all.into_iter().find(|better| better.us <= shortest + shortest / 20)?;
    Comparison { own_us, moved_us: best.us }.is_worth_naming().then_some(best)
}

fn better_text(better: Option<&Better>, own_us: u64) -> String {
    match better {
        None => format!(
            "no plain layout would save one client more than {WORTH_PERCENT}% of the time and at least {}",
            duration(WORTH_US)
        ),
        Some(better) => format!(
            "for one client that reads or writes the whole file: {} from the start, {} instead of {}",
            counted(better.stripes, "stripe"),
            duration(better.us),
            duration(own_us)
        ),
    }
}

#[cfg(test)]
mod tests {
    use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Extent, PlainLayout};
    use types::OstIndex;

    use super::{super::speeds::Speeds, *};

    fn alike(osts: u32) -> OstSpeeds {
        OstSpeeds::alike(osts, Speeds { ost_speed: Some(350), client_speed: 3000 })
    }

    fn whole(size: u64) -> Extents {
        Extents { size, data: size }
    }

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
        let explained = explain("f", &automatic_file(), whole(200 << 20), &alike(8));
        let expected = "\
f: 200 MiB in 5 objects; automatic: the layout grows with the file
  0 B .. 64 MiB: 1 stripe of 1 MiB on OST 0
               why: up to 64 MiB one object is enough, and costs least
               holds 64 MiB; serves one client at 349 MB/s, all clients at 350 MB/s
  64 MiB .. 1 GiB: 4 stripes of 1 MiB on OSTs 1, 2, 3, 4
               why: beyond 64 MiB a file is worth 4 OSTs
               holds 136 MiB; serves one client at 1397 MB/s, all clients at 1400 MB/s
  1 GiB .. the end: not decided yet
               why: decided when the file is written beyond 1 GiB
  whole file   one client reads or writes it in 294 ms (713 MB/s)
               costs 5 objects: each adds a request to stat, sync and remove the file
  better       for one client that reads or writes the whole file: 8 stripes from the start, 75 ms instead of 294 ms
  Estimated with 8 OSTs of 350 MB/s (--ost-speed) and a link of 3000 MB/s per client (--client-speed).
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
        let json = |layout: &Layout| explain("f", layout, whole(200 << 20), &alike(8)).json["components"][1].clone();
        assert_eq!(json(&layout)["reason"], "position");
        layout.components[1].reason = Some(Reason::Writers);
        assert_eq!(json(&layout)["reason"], "writers");
        assert_eq!(json(&layout)["why"], "several writers at the same time: 4 OSTs for them");
        layout.components[1].reason = None;
        assert!(json(&layout)["reason"].is_null());
        assert_eq!(json(&layout)["why"], "requested, or decided by a version that did not record reasons");
        let all: std::collections::BTreeSet<String> =
            Reason::ALL.iter().map(|reason| why_automatic(*reason, 16 << 30, 64)).collect();
        assert_eq!(all.len(), Reason::ALL.len(), "each says something of its own");
        assert_eq!(why_automatic(Reason::Position, 16 << 30, 64), "beyond 16 GiB a file is worth 64 OSTs");
    }
    #[test]
    fn holes_are_not_taken_for_data() {
        let extents = Extents { size: 16 << 40, data: 1 << 20 };
        let explained = explain("f", &automatic_file(), extents, &alike(8));
        assert!(explained.text.starts_with("f: 16 TiB (1 MiB of data) in 5 objects"), "{}", explained.text);
        assert!(explained.text.contains("spans 64 MiB;") && !explained.text.contains("holds"), "{}", explained.text);
        assert!(explained.json["one_client_bytes_per_second"].as_u64().unwrap() < 3_000_000_000, "{}", explained.json);
        assert_eq!(explained.json["data_bytes"], 1 << 20);
    }

    #[test]
    fn a_component_that_went_on_behind_a_watermark_says_why_it_is_narrow() {
        let mut layout = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic }]);
        let extent = Extent { start: 0, end: 1 << 30 };
        let cut = layout.cut(0, extent, StripeSpec::default(), Reason::Position).unwrap();
        let plain = PlainLayout { stripe_bytes: 1 << 20, osts: vec![OstIndex(0)] };
        layout.instantiate(cut, plain, StripeSpec::default()).unwrap();
        let why = &explain("f", &layout, whole(130 << 20), &alike(8)).json["components"][0]["why"];
        assert!(
            why.as_str().unwrap().ends_with(
                "; beyond 64 MiB more stripes were due, but concurrently written files share the OSTs with free space"
            ),
            "{why}"
        );
    }

    #[test]
    fn no_ost_is_better_than_none() {
        assert!(explain("f", &automatic_file(), whole(200 << 20), &alike(0)).json["better"].is_null());
    }
}
