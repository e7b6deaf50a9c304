//! The cost of mapping a file range to its objects: nanoseconds per object range, one JSON line per
//! layout.
//!
//! `cargo run --release -p stria-layout --example mapping`

#![allow(missing_docs)]

use std::{hint::black_box, time::Instant};

use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, PlainLayout, StripeSpec};
use types::OstIndex;

const MIB: u64 = 1 << 20;
/// The best batch counts: whatever else the machine does makes others slower, never faster.
const BATCHES: u32 = 40;
const CALLS: u64 = 50_000;

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

/// Maps ranges of `bytes` all over the first 4 GiB; nanoseconds per call and per object range.
fn batch(layout: &Layout, bytes: u64) -> (f64, f64) {
    let (mut ranges, mut sum, mut offset) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    for _ in 0..CALLS {
        for range in layout.ranges(black_box(offset), bytes) {
            sum = sum.wrapping_add(range.offset ^ u64::from(range.slot));
            ranges += 1;
        }
        // A prime number of blocks: it comes to every place in time.
        offset = (offset + 104_729 * 4096) % (4096 * MIB);
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    black_box(sum);
    (nanoseconds / CALLS as f64, nanoseconds / ranges as f64)
}

fn measure(name: &str, layout: &Layout, bytes: u64) {
    let batches = (0..BATCHES).map(|_| batch(layout, bytes));
    let (call, range) = batches.reduce(|best, next| if next < best { next } else { best }).expect("there are batches");
    println!(
        r#"{{"benchmark":"mapping","layout":"{name}","bytes":{bytes},"ns_per_call":{call:.1},"ns_per_range":{range:.1}}}"#
    );
}

fn main() {
    let plain = Layout::plain(Layout::FIRST_GENERATION, stripes(8), StripeSpec::default());
    for bytes in [4096, 4 * MIB] {
        measure("plain, 8 stripes", &plain, bytes);
        measure("4 components", &composite(), bytes);
    }
}
