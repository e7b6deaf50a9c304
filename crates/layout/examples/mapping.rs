//! What mapping a file range to its objects costs: nanoseconds per object range, one JSON line per layout.
//!
//! `cargo run --release -p layout --example mapping`

#![allow(missing_docs)]

use std::{hint::black_box, time::Instant};

use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, PlainLayout, StripeSpec};
use types::OstIndex;

const MIB: u64 = 1 << 20;
const ROUNDS: u64 = 2_000_000;

fn stripes(stripe_count: u16) -> PlainLayout {
    PlainLayout { stripe_bytes: MIB, osts: (0..stripe_count).map(OstIndex).collect() }
}

/// Components of 1, 2, 4 and 8 stripes.
fn composite() -> Layout {
    let ends = [8 * MIB, 64 * MIB, 1024 * MIB, END_OF_FILE];
    let spec = |end| ComponentSpec { end, backing: BackingSpec::Striped(StripeSpec::default()) };
    let spec = LayoutSpec::Composite(ends.map(spec).to_vec());
    let LayoutSpec::Composite(components) = &spec else { unreachable!("made above") };
    let mut layout = Layout::composite(components);
    for position in 0..ends.len() {
        layout.instantiate(position, stripes(1 << position), StripeSpec::default()).expect("stripes are valid");
    }
    layout.validate().expect("the layout is valid");
    layout
}

/// Maps ranges of `bytes` all over the first 4 GiB.
fn measure(name: &str, layout: &Layout, bytes: u64) {
    let (mut ranges, mut sum, mut offset) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        for range in layout.ranges(black_box(offset), bytes) {
            sum = sum.wrapping_add(range.offset ^ u64::from(range.slot));
            ranges += 1;
        }
        // A prime number of blocks: it comes to every place in time.
        offset = (offset + 104_729 * 4096) % (4096 * MIB);
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    black_box(sum);
    println!(
        r#"{{"benchmark":"mapping","layout":"{name}","bytes":{bytes},"ns_per_call":{:.1},"ns_per_range":{:.1}}}"#,
        nanoseconds / ROUNDS as f64,
        nanoseconds / ranges as f64
    );
}

fn main() {
    let plain = Layout::plain(Layout::FIRST_GENERATION, stripes(8), StripeSpec::default());
    for bytes in [4096, 4 * MIB] {
        measure("plain, 8 stripes", &plain, bytes);
        measure("4 components", &composite(), bytes);
    }
}
