//! Automatic layouts: which component a growing file gets next. Pure.
//!
//! The part of a file whose layout is not decided yet is an *automatic* component. When a write
//! needs objects in it, the next component is cut out of it, based on what is known at that moment:
//!
//! ```text
//! created      | 1: on the MDT to 64 KiB | 2: automatic ...
//! at 64 KiB    | 1 | 3: one stripe to 64 MiB | 2: automatic ...
//! at 64 MiB    | 1 | 3 | 4: four stripes to 1 GiB | 2: automatic ...
//! ```
//!
//! Principles and their sources (Reed et al.: layouts by watermark; Antypas: striping advice;
//! docs/decisions/0010):
//! - The beginning is on the MDT, if allowed (`lod.*.dom_stripesize`): a small file costs no
//!   request to an OST. Otherwise the file starts with one stripe of 4 MiB, up to 64 MiB.
//! - A file that grows by small writes is one object up to 64 MiB: creation, stat and removal cost
//!   one request each (Antypas: file per process, one stripe). A file that is written in large
//!   requests gets four stripes from the start; objects are created only when they are written to.
//! - The larger the file, the more stripes ([`WATERMARKS`]): in a long transfer the cost of
//!   additional objects is small, and later parts of a file are read from more OSTs (Reed: 4, 8, 16
//!   beat the fixed counts).
//! - Several clients that write one file need as many OSTs as there are writers, at once (Antypas:
//!   four stripes limit a shared file to a tenth of what the OSTs can do). The number of writers is
//!   known when the file has grown beyond its first component. They get one component as far as the
//!   decision would be the same, because each component has objects of its own, and each writer has
//!   to sync them.
//! - Writers of a shared file whose length is known have blocks of one length. If a block were a
//!   whole number of rounds of stripes, all writers would start on one OST and stay in step: so the
//!   count has no divisor in common with a block's stripes.
//! - The size of the last files with similar names counts as an announced size, like a truncation
//!   before the first write.
//! - Files written at the same time share the OSTs: stripes beyond the fair share only make each
//!   file wait for more OSTs (Antypas: beyond OSTs / 4 writers, four stripes are worse than one). A
//!   few more stripes are given where files would load OSTs unevenly: of 128 files on 80 OSTs, half
//!   of the OSTs would have one and half two.
//! - No stripe goes where its share of the component does not fit; a component ends where its OSTs
//!   would be half used up, so that the next decision comes before they are full. If one fills up
//!   earlier, the refused range is decided again ([`crate::Layout::leave_out`]).
//! - While the connections of OSTs that would get stripes of the file are interrupted, a component
//!   has stripes only on the OSTs that answer, and is short: if the others are back in a moment,
//!   the next component uses them; if they are dead, the component is extended.
//!
//! Invariants: the new component is within the automatic component and covers the first requested
//! byte; components end at watermarks or are at least one round of stripes long; an automatic
//! component remains after the largest possible file, so that the layout remains recognisable as
//! automatic. A file has at most [`COMPONENTS_SHORTENED_MAX`] components that ended early for lack
//! of space or of OSTs that answer, and two for each watermark.
//!
//! Downside: watermarks are positions in the file, so a file that is written at its end first gets
//! many stripes there.

use types::limits::{FILE_BYTES_MAX, STRIPE_COUNT_MAX};

use crate::{
    component::{Backing, Component, Extent},
    layout::Layout,
    limits::{COMPONENTS_MAX, END_OF_FILE},
    reason::Reason,
    spec::{BackingSpec, ComponentSpec, LayoutSpec},
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Largest stripe of an automatic component: also what all ends are multiples of.
const STRIPE_BYTES_LARGEST: u64 = 4 * MIB;
/// The end of the last component that is cut: no file is larger.
const LAST_END: u64 = FILE_BYTES_MAX.next_multiple_of(STRIPE_BYTES_LARGEST);
/// Where the first component of a new file ends. Files up to here never request more; at its end,
/// the writers are known.
pub const BEGINNING_BYTES: u64 = 4 * MIB;
/// Bytes at the beginning of a file that its MDT keeps, if it may: what one request carries with
/// room to spare, and most small files are smaller (half of those on supercomputers' file systems,
/// by several surveys, are below 64 KiB).
pub const BYTES_ON_MDT: u64 = 64 << 10;
/// Beyond this many components, none is ended early for lack of space.
pub const COMPONENTS_SHORTENED_MAX: usize = COMPONENTS_MAX / 2;
/// OSTs that fill the network link of one client: so many stripes for each client of a shared file.
const OSTS_PER_CLIENT: u32 = 4;
/// A write of this size comes from a program that moves data: copies and simulations write from 256
/// KiB on, logs and databases less.
pub const LARGE_REQUEST_BYTES: u64 = 256 << 10;
/// Stripes that such a file gets from its beginning on, if its fair share is as large.
pub const LARGE_REQUEST_STRIPES: u32 = 4;
/// How much longer than necessary, in percent, the busiest OST may work before more stripes even it
/// out.
const UNEVEN_PERCENT: u32 = 10;
/// What a stripe takes at most of a component that is narrower than it should be for the moment: a
/// second's transfer of one disk, as below the first watermark.
const STRIPE_BYTES_MEANWHILE: u64 = 64 * MIB;
/// By how many percent more stripes must be missing for this: for less, no component ends early.
const MISSED_PERCENT: u64 = 10;

/// What a file gets up to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    /// After the last byte.
    pub end: u64,
    /// Stripes of a file that one client writes.
    pub stripe_count: u32,
    /// Bytes per stripe.
    pub stripe_bytes: u64,
}

const fn watermark(end: u64, stripe_count: u32, stripe_bytes: u64) -> Watermark {
    Watermark { end, stripe_count, stripe_bytes }
}

/// The watermarks. One object suffices for a second's transfer of one disk (64 MiB); from 16 GiB
/// on, a transfer lasts so long on any number of OSTs that the requests to all of them do not
/// count. The later ones repeat the decision, so that OSTs added since are used.
pub const WATERMARKS: [Watermark; 7] = [
    watermark(64 * MIB, 1, MIB),
    watermark(GIB, 4, MIB),
    watermark(16 * GIB, 16, 2 * MIB),
    watermark(256 * GIB, STRIPE_COUNT_MAX, STRIPE_BYTES_LARGEST),
    watermark(4 * TIB, STRIPE_COUNT_MAX, STRIPE_BYTES_LARGEST),
    watermark(64 * TIB, STRIPE_COUNT_MAX, STRIPE_BYTES_LARGEST),
    watermark(LAST_END, STRIPE_COUNT_MAX, STRIPE_BYTES_LARGEST),
];

/// Components that watermarks alone can make: what is cut, and what remains before it.
pub(crate) const COMPONENTS_OF_WATERMARKS: usize = 2 * (WATERMARKS.len() + 1) + 1;
const _: () = assert!(COMPONENTS_SHORTENED_MAX + COMPONENTS_OF_WATERMARKS < COMPONENTS_MAX, "any growth fits");
/// Beyond this many components, no part is left out of one whose OST is full: any growth still
/// fits.
pub const COMPONENTS_LEFT_OUT_MAX: usize = COMPONENTS_MAX - COMPONENTS_OF_WATERMARKS - 2;
const _: () = assert!(LAST_END < END_OF_FILE, "the mark of an automatic layout remains");

/// What is known when a component is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation<'a> {
    /// The automatic component.
    pub rest: Extent,
    /// What is to be written; it begins within `rest` or before it, and ends after its start.
    pub request: Extent,
    /// The file's size as far as the MDT knows it; 0 if it knows nothing.
    pub size: u64,
    /// What finished files with such names grew to; 0 if nothing is known.
    pub expected: u64,
    /// Components the layout has, as they count ([`Layout::components_counted`]).
    pub components: usize,
    /// Opens for writing of this file.
    pub writers: u32,
    /// Clients they belong to.
    pub clients: u32,
    /// Files that are open for writing on this MDT, this one among them.
    pub files_written: u32,
    /// Free bytes of each OST that takes new objects, in any order.
    pub available: &'a [u64],
    /// OSTs besides these that would, were their connections not interrupted at the moment.
    pub interrupted: u32,
}

/// The component to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextComponent {
    /// Its bytes.
    pub extent: Extent,
    /// Its stripes, at most.
    pub stripe_count: u32,
    /// Bytes per stripe.
    pub stripe_bytes: u64,
    /// Why so many stripes.
    pub reason: Reason,
}

impl NextComponent {
    /// What each of its objects has to hold if it is filled.
    pub fn bytes_per_stripe(&self) -> u64 {
        self.extent.bytes().div_ceil(u64::from(self.stripe_count))
    }
}

/// Whether the layout's end is decided by this module.
///
/// ```
/// use layout::{Layout, LayoutSpec, automatic};
///
/// let layout = Layout::composite(&automatic::components(automatic::BYTES_ON_MDT));
/// assert!(automatic::is_automatic(&layout));
/// assert_eq!(layout.position_at(0), Some(0), "the beginning is on the MDT");
/// assert_eq!(automatic::recognised(automatic::components(0)), LayoutSpec::Automatic);
/// ```
pub fn is_automatic(layout: &Layout) -> bool {
    layout.components.last().is_some_and(|last| last.backing == Backing::Automatic && last.extent.end == END_OF_FILE)
}

/// A new file's components: its beginning on the MDT, if that may have so many bytes, and the
/// automatic rest.
pub fn components(bytes_on_mdt_max: u64) -> Vec<ComponentSpec> {
    let rest = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic };
    if bytes_on_mdt_max < BYTES_ON_MDT {
        return vec![rest];
    }
    vec![ComponentSpec { end: BYTES_ON_MDT, backing: BackingSpec::Mdt }, rest]
}

/// What asks for these components: an automatic layout if they are what one begins with.
pub fn recognised(asked: Vec<ComponentSpec>) -> LayoutSpec {
    let is_beginning = [0, BYTES_ON_MDT].into_iter().any(|bytes_on_mdt_max| components(bytes_on_mdt_max) == asked);
    if is_beginning { LayoutSpec::Automatic } else { LayoutSpec::Composite(asked) }
}

/// The watermark above the byte at `offset`, and the watermark before that.
fn watermark_of(offset: u64) -> (u64, Watermark) {
    let position = WATERMARKS.iter().position(|watermark| offset < watermark.end).unwrap_or(WATERMARKS.len() - 1);
    let start = position.checked_sub(1).map_or(0, |before| WATERMARKS[before].end);
    (start, WATERMARKS[position])
}

/// A file that one client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneWriter {
    /// Bytes that it has, or is known to get.
    pub size: u64,
    /// It is written in large requests.
    pub large_requests: bool,
    /// Files that are written at a time, this one among them.
    pub files_written: u32,
}

impl OneWriter {
    /// Stripes if nothing else were written.
    fn stripes_alone(&self) -> u32 {
        let (_, watermark) = watermark_of(self.size);
        watermark.stripe_count.max(if self.large_requests { LARGE_REQUEST_STRIPES } else { 1 })
    }

    /// Stripes among so many OSTs.
    pub fn stripes(&self, osts: u32) -> u32 {
        let files = self.files_written.max(1);
        let fair_share = if files > osts && self.large_requests { evening_out(files, osts) } else { osts / files };
        self.stripes_alone().min(fair_share).min(osts).max(1)
    }
}

/// The fewest stripes for each of more files than there are OSTs, with which the busiest OST has at
/// most a tenth more than its share; if none is that even, the most even.
fn evening_out(files: u32, osts: u32) -> u32 {
    let files = u64::from(files);
    let osts = u64::from(osts.max(1));
    // Files on the busiest OST, in parts of a hundred.
    let busiest = |stripes: u32| (files * u64::from(stripes)).div_ceil(osts) * 100 / u64::from(stripes);
    let enough = files * u64::from(100 + UNEVEN_PERCENT) / osts;
    let counts = 1..=LARGE_REQUEST_STRIPES;
    counts
        .clone()
        .find(|stripes| busiest(*stripes) <= enough)
        .or(counts.min_by_key(|stripes| busiest(*stripes)))
        .unwrap_or(1)
}

/// Stripes that writers of a shared file need: one OST each, and what fills their clients' links.
pub fn stripes_of_writers(writers: u32, clients: u32) -> u32 {
    if clients > 1 { writers.max(clients.saturating_mul(OSTS_PER_CLIENT)) } else { writers }
}

/// By how much, in percent, a count may differ from what writers need to let them begin on
/// different OSTs, and by how much the busiest OST may have more bytes for it.
const OUT_OF_STEP_PERCENT: u64 = 10;

/// The stripe count nearest to `stripes` with which writers of equal blocks of a file of `size`
/// bytes do not go over the OSTs in step; `stripes` itself where their blocks are no whole number
/// of stripes, or where any other count would cost too much.
fn out_of_step(stripes: u32, osts: u32, writers: u32, size: u64, stripe_bytes: u64) -> u32 {
    let (all, writers) = (size / stripe_bytes, u64::from(writers));
    if writers < 2 || size == 0 || !size.is_multiple_of(stripe_bytes * writers) {
        return stripes;
    }
    let block = all / writers;
    // Stripes on the busiest OST: of few stripes, one OST less may take a whole round more.
    let busiest = |count: u32| all.div_ceil(u64::from(count)) * 100;
    let busiest_max = all.div_ceil(u64::from(stripes)) * (100 + OUT_OF_STEP_PERCENT);
    let distance_max = (u64::from(stripes) * OUT_OF_STEP_PERCENT / 100).max(1) as u32;
    let near = (0..=distance_max).flat_map(|distance| [stripes - distance.min(stripes - 1), stripes + distance]);
    let good = |count: &u32| {
        *count <= osts && greatest_common_divisor(block, u64::from(*count)) == 1 && busiest(*count) <= busiest_max
    };
    near.into_iter().find(good).unwrap_or(stripes)
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// How wide, whatever room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Width {
    stripe_count: u32,
    stripe_bytes: u64,
    /// Others that write at a time did not make it smaller.
    is_full: bool,
}

impl Situation<'_> {
    fn osts(&self) -> u32 {
        u32::try_from(self.available.len()).unwrap_or(STRIPE_COUNT_MAX)
    }

    /// Whether the byte at `offset` would get noticeably more stripes if all OSTs answered.
    fn is_narrow_for_now(&self, offset: u64) -> bool {
        let stripes = |osts: u32| u64::from(self.stripes(offset, osts));
        let all = self.osts().saturating_add(self.interrupted);
        self.interrupted > 0 && stripes(all) * 100 > stripes(self.osts()) * (100 + MISSED_PERCENT)
    }

    /// Stripes for the byte at `offset` among so many OSTs, whether or not its writers go over them
    /// in step.
    fn stripes(&self, offset: u64, osts: u32) -> u32 {
        let wide = stripes_of_writers(self.writers, self.clients);
        self.alone(offset).stripes(osts).max(wide).min(osts).clamp(1, STRIPE_COUNT_MAX)
    }

    /// The file as one client would write it, for the byte at `offset`.
    fn alone(&self, offset: u64) -> OneWriter {
        let size = offset.max(self.size).max(self.expected);
        let large_requests = self.request.bytes() >= LARGE_REQUEST_BYTES;
        OneWriter { size, large_requests, files_written: self.files_written }
    }

    /// What the byte at `offset` would get.
    fn width_at(&self, offset: u64) -> Width {
        let (osts, alone) = (self.osts(), self.alone(offset));
        let (narrow, wide) = (alone.stripes(osts), stripes_of_writers(self.writers, self.clients));
        let (_, watermark) = watermark_of(offset);
        let (_, of_size) = watermark_of(alone.size);
        let stripe_bytes = watermark.stripe_bytes.max(of_size.stripe_bytes);
        let stripes = self.stripes(offset, osts);
        let known = self.size.max(self.expected);
        Width {
            stripe_count: out_of_step(stripes, osts.min(STRIPE_COUNT_MAX), self.writers, known, stripe_bytes),
            stripe_bytes,
            is_full: wide >= narrow || narrow == alone.stripes_alone().min(osts),
        }
    }

    /// Why the byte at `offset` gets so many stripes, if all have room.
    fn reason(&self, offset: u64, stripe_count: u32) -> Reason {
        let (osts, alone) = (self.osts(), self.alone(offset));
        let (narrow, wide) = (alone.stripes(osts), stripes_of_writers(self.writers, self.clients));
        let of = |size: u64| watermark_of(size).1.stripe_count;
        let (of_position, of_size, of_names) = (of(offset), of(offset.max(self.size)), of(alone.size));
        let wanted = alone.stripes_alone();
        if stripe_count != self.stripes(offset, osts) {
            Reason::OutOfStep
        } else if self.is_narrow_for_now(offset) {
            Reason::Osts
        } else if wide > narrow {
            Reason::Writers
        } else if narrow < wanted.min(osts) {
            Reason::Share
        } else if osts < wanted && wanted < STRIPE_COUNT_MAX {
            Reason::Osts
        } else if wanted > of_names {
            Reason::LargeRequests
        } else if of_names > of_size {
            Reason::Names
        } else if of_size > of_position {
            Reason::Size
        } else {
            Reason::Position
        }
    }

    /// Where what is decided alike as for the byte at `offset` begins: a watermark at which nothing
    /// changes is none. (Upwards, the component grows when a write comes there.) Not where others
    /// that write at a time made it smaller: they may be done by then.
    fn begin_of_width(&self, offset: u64) -> u64 {
        let width = self.width_at(offset);
        let (mut start, _) = watermark_of(offset);
        while width.is_full && start > self.rest.start && self.width_at(start - 1) == width {
            (start, _) = watermark_of(start - 1);
        }
        start.max(self.rest.start)
    }
}

/// The component to be cut for the first byte of the request that is in the automatic component.
pub fn next_component(situation: &Situation<'_>) -> NextComponent {
    let Situation { rest, request, .. } = *situation;
    let asked = request.intersection(rest.start, rest.end).expect("the request needs this component");
    let Width { stripe_count, stripe_bytes, .. } = situation.width_at(asked.start);
    let start = situation.begin_of_width(asked.start);
    let is_beginning = start == 0 && asked.end <= BEGINNING_BYTES;
    let (_, watermark) = watermark_of(asked.start);
    let end = if is_beginning { BEGINNING_BYTES } else { watermark.end }.min(rest.end);
    let reason = situation.reason(asked.start, stripe_count);
    let whole = NextComponent { extent: Extent { start, end }, stripe_count, stripe_bytes, reason };
    if situation.components >= COMPONENTS_SHORTENED_MAX {
        return whole;
    }
    let bytes_per_stripe_max = match situation.is_narrow_for_now(asked.start) {
        true => STRIPE_BYTES_MEANWHILE,
        false => u64::MAX,
    };
    fitting(whole, asked, situation.available, bytes_per_stripe_max)
}

/// `whole`, with fewer stripes or ended earlier if its OSTs would be more than half used up, or its
/// objects get too large.
fn fitting(whole: NextComponent, asked: Extent, available: &[u64], bytes_per_stripe_max: u64) -> NextComponent {
    let mut most_free: Vec<u64> = available.to_vec();
    most_free.sort_unstable_by(|a, b| b.cmp(a));
    // The count for which the most bytes fit, the largest of them: an OST that is nearly full would
    // end it for all.
    let per_stripe = |count: u32| (most_free[count as usize - 1] / 2).min(bytes_per_stripe_max);
    let capacity = |count: u32| u64::from(count).saturating_mul(per_stripe(count));
    let counts = 1..=whole.stripe_count.min(u32::try_from(most_free.len()).unwrap_or(u32::MAX));
    let fits = counts.clone().rev().find(|count| capacity(*count) >= whole.extent.bytes());
    let best = fits.or_else(|| counts.max_by_key(|count| (capacity(*count), *count)));
    let Some(stripe_count) = best else { return whole };
    let round = u64::from(stripe_count) * whole.stripe_bytes;
    // From the requested stripe on: the stripes before it may never be written.
    let start = if asked.start - whole.extent.start > capacity(stripe_count) {
        whole.extent.start.max(asked.start / STRIPE_BYTES_LARGEST * STRIPE_BYTES_LARGEST)
    } else {
        whole.extent.start
    };
    let bytes = capacity(stripe_count).max(round).max(STRIPE_BYTES_LARGEST);
    let end = start.saturating_add(bytes) / STRIPE_BYTES_LARGEST * STRIPE_BYTES_LARGEST;
    let end = end.max(asked.start / STRIPE_BYTES_LARGEST * STRIPE_BYTES_LARGEST + STRIPE_BYTES_LARGEST);
    let reason = if stripe_count < whole.stripe_count { Reason::Space } else { whole.reason };
    NextComponent { extent: Extent { start, end: end.min(whole.extent.end) }, stripe_count, reason, ..whole }
}

/// Whether the component before the one to be cut can take its place by growing, with the objects
/// it has: then a file that crosses a watermark with nothing changed keeps its objects. Whether
/// they have room is the caller's to say.
pub fn may_continue(before: &Component, next: &NextComponent) -> bool {
    let Backing::Striped { plain, spec, .. } = &before.backing else { return false };
    before.extent.end == next.extent.start
        && plain.stripe_count() == next.stripe_count
        && plain.stripe_bytes == next.stripe_bytes
        && spec.pool.is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use types::OstIndex;

    use super::*;
    use crate::{
        layout::Coverage,
        plain::PlainLayout,
        spec::{StripeCount, StripeSpec},
    };

    /// A file of nothing known, written by one client in small requests, on 80 idle OSTs with room.
    const IDLE: Situation<'static> = Situation {
        rest: Extent { start: BYTES_ON_MDT, end: END_OF_FILE },
        request: Extent { start: BYTES_ON_MDT, end: BYTES_ON_MDT + 4096 },
        size: 0,
        expected: 0,
        components: 2,
        writers: 1,
        clients: 1,
        files_written: 1,
        available: &[TIB; 80],
        interrupted: 0,
    };

    fn automatic() -> Layout {
        Layout::composite(&components(0))
    }

    /// What the MDT does, with OSTs that are all the same to the placement.
    fn grow(layout: &mut Layout, request: Extent, writers: (u32, u32), files_written: u32, available: &[u64]) {
        let (writers, clients) = writers;
        grow_as(layout, Situation { request, writers, clients, files_written, available, ..IDLE });
    }

    fn grow_as(layout: &mut Layout, known: Situation<'_>) {
        let request = known.request;
        while let Some(position) = layout.pending(request.start, request.end).first().copied() {
            let (rest, components) = (layout.components[position].extent, layout.components.len());
            let next = next_component(&Situation { rest, components, ..known });
            let before = position.checked_sub(1).map(|before| &layout.components[before]);
            if before.is_some_and(|before| may_continue(before, &next)) {
                layout.extend(position - 1, next.extent.end).unwrap();
                continue;
            }
            let spec = StripeSpec {
                stripe_count: StripeCount::Exactly(next.stripe_count),
                stripe_bytes: Some(next.stripe_bytes),
                ..StripeSpec::default()
            };
            let position = layout.cut(position, next.extent, spec.clone(), next.reason).unwrap();
            let osts = (0..next.stripe_count as u16).map(OstIndex).collect();
            layout.instantiate(position, PlainLayout { stripe_bytes: next.stripe_bytes, osts }, spec).unwrap();
        }
    }

    fn bytes(start: u64, end: u64) -> Extent {
        Extent { start, end }
    }

    /// Ends in MiB and counts of the components with objects.
    fn shape(layout: &Layout) -> Vec<(u64, usize)> {
        let striped = layout.components.iter().filter(|component| component.is_instantiated());
        striped.map(|component| (component.extent.end / MIB, component.slots().len())).collect()
    }

    #[test]
    fn a_file_of_one_writer_grows_wider_at_each_watermark() {
        let mut layout = automatic();
        let available = [TIB; 64];
        grow(&mut layout, bytes(0, 1), (1, 1), 1, &available);
        assert_eq!(shape(&layout), [(4, 1)]);
        grow(&mut layout, bytes(5 * MIB, 5 * MIB + 4096), (1, 1), 1, &available);
        assert_eq!(shape(&layout), [(64, 1)], "the same object");
        grow(&mut layout, bytes(64 * MIB, 65 * MIB), (1, 1), 1, &available);
        grow(&mut layout, bytes(GIB, GIB + 1), (1, 1), 1, &available);
        grow(&mut layout, bytes(16 * GIB, 16 * GIB + 1), (1, 1), 1, &available);
        assert_eq!(shape(&layout), [(64, 1), (1024, 4), (16 * 1024, 16), (256 * 1024, 64)]);
        assert!(is_automatic(&layout));
    }

    #[test]
    fn the_beginning_lies_on_the_mdt_if_it_may() {
        let mut layout = Layout::composite(&components(1 << 20));
        assert_eq!(layout.coverage(0, BYTES_ON_MDT), Coverage::Complete);
        grow(&mut layout, bytes(BYTES_ON_MDT - 1, BYTES_ON_MDT + 1), (1, 1), 1, &[TIB; 8]);
        assert_eq!(layout.components[1].extent, bytes(BYTES_ON_MDT, 64 * MIB));
        assert!(is_automatic(&layout));
    }

    /// Also if nothing is on the MDT: a first component of several stripes could not
    /// ([`Layout::keeper_of_length`]).
    #[test]
    fn a_file_that_gets_its_length_first_takes_no_objects_for_it() {
        for (bytes_on_mdt, files_written) in [(0, 1), (0, 81), (BYTES_ON_MDT - 1, 1), (BYTES_ON_MDT, 1)] {
            let mut layout = Layout::composite(&components(bytes_on_mdt));
            grow(&mut layout, bytes(0, 1), (1, 1), files_written, &[TIB; 80]);
            let before = layout.clone();
            for size in [5 * MIB, GIB, FILE_BYTES_MAX] {
                let keeper = layout.keeper_of_length(size);
                assert_eq!(keeper, layout.objects().next().map(|(slot, _)| slot), "{bytes_on_mdt} {files_written}");
            }
            grow(&mut layout, bytes(5 * MIB, 6 * MIB), (10, 10), files_written, &[TIB; 80]);
            assert!(layout.components.len() > before.components.len(), "the first write decides");
        }
    }

    #[test]
    fn counts_by_writers_files_and_osts() {
        // (size, OSTs, writers, clients, files being written) -> stripes after the beginning.
        let table = [
            ((5 * MIB, 80, 1, 1, 1), 1),
            ((65 * MIB, 80, 1, 1, 1), 4),
            ((2 * GIB, 80, 1, 1, 1), 16),
            ((65 * MIB, 80, 1, 1, 20), 4),
            ((65 * MIB, 80, 1, 1, 40), 2),
            ((65 * MIB, 80, 1, 1, 80), 1),
            ((2 * GIB, 80, 1, 1, 4096), 1),
            ((5 * MIB, 80, 512, 64, 1), 80),
            ((5 * MIB, 80, 11, 11, 1), 44),
            ((5 * MIB, 80, 2, 1, 1), 2),
            ((5 * MIB, 80, 16, 1, 1), 16),
            ((2 * GIB, 3, 1, 1, 1), 3),
            ((2 * GIB, 0, 1, 1, 1), 1),
        ];
        for ((offset, osts, writers, clients, files_written), stripes) in table {
            let next = next_component(&Situation {
                rest: bytes(BEGINNING_BYTES, END_OF_FILE),
                request: bytes(offset, offset + 1),
                writers,
                clients,
                files_written,
                available: &vec![TIB; osts],
                ..IDLE
            });
            assert_eq!(next.stripe_count, stripes, "{offset} {osts} {writers} {clients} {files_written}");
        }
    }

    #[test]
    fn each_decision_says_what_made_its_count() {
        let far = |offset: u64| Situation { request: bytes(offset, offset + 4096), ..IDLE };
        let large = bytes(BYTES_ON_MDT, BYTES_ON_MDT + MIB);
        let uneven: Vec<u64> = (0..80).map(|ost| if ost < 2 { TIB } else { 10 * MIB }).collect();
        let in_step = Situation { size: 400 * MIB, writers: 10, clients: 10, ..IDLE };
        let table = [
            (IDLE, 1, Reason::Position),
            (far(65 * MIB), 4, Reason::Position),
            (far(20 * GIB), 80, Reason::Position),
            (Situation { request: large, ..IDLE }, 4, Reason::LargeRequests),
            (Situation { request: large, size: 2 * GIB, ..IDLE }, 16, Reason::Size),
            (Situation { size: 100 * MIB, expected: 2 * GIB, ..IDLE }, 16, Reason::Names),
            (Situation { size: 100 * MIB, expected: 70 * MIB, ..IDLE }, 4, Reason::Size),
            (Situation { writers: 2, ..IDLE }, 2, Reason::Writers),
            (Situation { writers: 512, clients: 64, ..IDLE }, 80, Reason::Writers),
            (in_step, 39, Reason::OutOfStep),
            (Situation { files_written: 40, ..far(65 * MIB) }, 2, Reason::Share),
            (Situation { request: large, files_written: 128, ..IDLE }, 3, Reason::Share),
            (Situation { available: &[TIB; 3], ..far(65 * MIB) }, 3, Reason::Osts),
            (Situation { available: &[TIB; 3], interrupted: 1, ..far(65 * MIB) }, 3, Reason::Osts),
            (Situation { available: &[TIB; 40], interrupted: 40, ..far(20 * GIB) }, 40, Reason::Osts),
            (Situation { available: &[TIB; 79], interrupted: 1, ..far(20 * GIB) }, 79, Reason::Position),
            (Situation { available: &uneven, ..far(65 * MIB) }, 2, Reason::Space),
        ];
        for (situation, stripes, reason) in table {
            let next = next_component(&situation);
            assert_eq!((next.stripe_count, next.reason), (stripes, reason), "{situation:?}");
        }
    }

    #[test]
    fn a_known_size_counts_from_the_beginning() {
        let next = next_component(&Situation {
            rest: bytes(BEGINNING_BYTES, END_OF_FILE),
            request: bytes(BEGINNING_BYTES, 5 * MIB),
            size: 2 * GIB,
            available: &[TIB; 20],
            ..IDLE
        });
        assert_eq!((next.extent.end, next.stripe_count, next.stripe_bytes), (64 * MIB, 16, 2 * MIB));
    }

    fn of_one_writer(offset: u64, bytes: u64, osts: usize, files_written: u32) -> NextComponent {
        next_component(&Situation {
            request: self::bytes(offset, offset + bytes),
            files_written,
            available: &vec![TIB; osts],
            ..IDLE
        })
    }

    #[test]
    fn writers_of_equal_blocks_do_not_go_over_the_osts_in_step() {
        // (MiB in all, writers, clients, OSTs) -> stripes.
        let table = [
            ((0, 10, 10, 80), 40),    // not known
            ((400, 10, 10, 80), 39),  // blocks of 40: one round of 40
            ((401, 10, 10, 80), 40),  // blocks that are no whole stripes begin anywhere
            ((25, 5, 1, 20), 6),      // blocks of 5
            ((25, 5, 1, 5), 5),       // no sixth OST, and with 4 one would have seven stripes instead of five
            ((480, 160, 80, 80), 80), // blocks of 3 need no other count
            ((40, 20, 1, 20), 20),    // blocks of 2: with 19, one OST would have three stripes instead of two
            ((3200, 80, 80, 80), 79), // blocks of 20 stripes of 2 MiB
        ];
        for ((mebibytes, writers, clients, osts), stripes) in table {
            let next = next_component(&Situation {
                request: bytes(BYTES_ON_MDT, MIB),
                size: mebibytes * MIB,
                writers,
                clients,
                available: &vec![TIB; osts],
                ..IDLE
            });
            assert_eq!(next.stripe_count, stripes, "{mebibytes} {writers} {clients} {osts}");
        }
        for (block, stripes) in [(40, 40), (80, 80), (1024, 64), (30, 30), (77, 77)] {
            let count = out_of_step(stripes, 80, 100, block * 100 * MIB, MIB);
            let begins: std::collections::BTreeSet<u64> =
                (0..u64::from(count)).map(|rank| rank * block % u64::from(count)).collect();
            assert_eq!(begins.len(), count as usize, "each OST is one writer's first: {block} {stripes}");
        }
    }

    /// As if the size were known; a part of the OSTs' fair share all the same.
    #[test]
    fn names_tell_what_a_file_will_need() {
        let next = |expected: u64, files_written: u32| {
            next_component(&Situation { expected, files_written, ..IDLE }).stripe_count
        };
        assert_eq!([0, MIB, 100 * MIB, 2 * GIB, 20 * GIB].map(|expected| next(expected, 1)), [1, 1, 4, 16, 80]);
        assert_eq!(next(20 * GIB, 8), 10);
    }

    #[test]
    fn large_requests_get_four_stripes_at_once_if_the_osts_are_idle() {
        // (bytes of the request, files being written) -> stripes of the beginning, on 80 OSTs.
        let table =
            [((4096, 1), 1), ((256 << 10, 1), 4), ((MIB, 20), 4), ((MIB, 40), 2), ((MIB, 80), 1), ((MIB, 160), 1)];
        for ((bytes, files), stripes) in table {
            let next = of_one_writer(BYTES_ON_MDT, bytes, 80, files);
            assert_eq!((next.extent.end, next.stripe_count), (64 * MIB, stripes), "{bytes} {files}");
        }
        assert_eq!(of_one_writer(BYTES_ON_MDT, MIB, 2, 1).stripe_count, 2);
    }

    #[test]
    fn files_that_would_leave_osts_uneven_get_some_stripes() {
        let stripes =
            [81, 100, 128, 159, 160, 400, 4096].map(|files| of_one_writer(BYTES_ON_MDT, MIB, 80, files).stripe_count);
        assert_eq!(stripes, [4, 3, 3, 1, 1, 1, 1]);
        assert_eq!(of_one_writer(BYTES_ON_MDT, 4096, 80, 128).stripe_count, 1, "not for small writes");
    }

    /// The last rank of a shared file may be the first to write: its component begins where the
    /// file's part on OSTs does.
    #[test]
    fn writers_of_a_shared_file_get_one_component_whoever_comes_first() {
        let mut layout = Layout::composite(&components(1 << 20));
        for mebibyte in [400, 100, 1, 0] {
            grow(&mut layout, bytes(mebibyte * MIB, (mebibyte + 1) * MIB), (160, 80), 1, &[TIB; 80]);
        }
        assert_eq!(shape(&layout), [(0, 1), (1024, 80)]);
        assert_eq!(layout.components.len(), 3);
    }

    #[test]
    fn stripes_avoid_osts_without_space_and_components_end_before_them() {
        let next = |available: &[u64]| {
            let next = next_component(&Situation {
                rest: bytes(64 * MIB, END_OF_FILE),
                request: bytes(64 * MIB, 65 * MIB),
                available,
                ..IDLE
            });
            (next.extent.end / MIB, next.stripe_count)
        };
        assert_eq!(next(&[TIB; 4]), (1024, 4));
        assert_eq!(next(&[TIB, TIB, TIB, 10 * MIB]), (1024, 3));
        assert_eq!(next(&[100 * MIB; 4]), (64 + 200, 4), "half of each");
        assert_eq!(next(&[100 * MIB, 10 * MIB]), (64 + 48, 1));
        assert_eq!(next(&[0; 4]).0, 64 + 4, "the last bytes are for the OSTs to refuse");
    }

    /// Half of the OSTs do not answer when the file crosses a watermark.
    #[test]
    fn a_short_interruption_makes_no_large_part_of_a_file_narrow() {
        let story = |still_interrupted: u32, osts_then: usize| {
            let mut layout = automatic();
            let mut write = |offset: u64, available: &[u64], interrupted: u32| {
                let request = bytes(offset, offset + 4096);
                grow_as(&mut layout, Situation { request, size: offset, available, interrupted, ..IDLE });
                shape(&layout)
            };
            write(0, &[TIB; 8], 0);
            write(4 * MIB, &[TIB; 8], 0);
            let narrow = write(2 * GIB, &[TIB; 4], 4);
            assert_eq!(narrow, [(64, 1), (2048 + 256, 4)], "a second's transfer to each of four");
            write((2048 + 256) * MIB, &vec![TIB; osts_then], still_interrupted)
        };
        assert_eq!(story(0, 8), [(64, 1), (2048 + 256, 4), (16 << 10, 8)], "they are back");
        assert_eq!(story(0, 4), [(64, 1), (16 << 10, 4)], "they are dead: the same objects go on");
        assert_eq!(story(4, 4), [(64, 1), (2048 + 512, 4)], "not known yet");
    }

    #[test]
    fn interruptions_that_cost_few_stripes_end_no_component() {
        let end = |osts: usize, interrupted: u32, offset: u64| {
            let request = bytes(offset, offset + 4096);
            let situation = Situation { request, available: &vec![TIB; osts], interrupted, ..IDLE };
            next_component(&situation).extent.end
        };
        assert_eq!(end(79, 1, 20 * GIB), 256 * GIB);
        assert_eq!(end(7, 1, 20 * GIB), 20 * GIB + 7 * 64 * MIB);
        assert_eq!(end(7, 1, 65 * MIB), GIB, "four stripes are all it would have");
        assert_eq!(end(1, 7, BYTES_ON_MDT), 64 * MIB);
    }

    #[test]
    fn a_sparse_file_of_16_tib_has_few_components() {
        let mut layout = automatic();
        for shift in (0..=44).rev() {
            grow(&mut layout, bytes(1 << shift, (1 << shift) + 1), (1, 1), 1, &[TIB; 4]);
            layout.validate().unwrap();
        }
        assert!(layout.components.len() <= COMPONENTS_OF_WATERMARKS, "{}", layout.components.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_growth_is_covered_by_few_contiguous_components(
            requests in prop::collection::vec(
                (prop_oneof![0..=FILE_BYTES_MAX - (1 << 40), 0..=(64 * GIB), 0..=(16 * TIB)], 1u64..=(1 << 30)),
                1..50,
            ),
            writers in (1u32..=600, 1u32..=600),
            files_written in 1u32..=4096,
            available in prop::collection::vec(prop_oneof![0..=GIB, 0..=(64 * TIB)], 1..20),
            interrupted in 0u32..=20,
        ) {
            let mut layout = automatic();
            for (offset, length) in requests {
                let known: Vec<(u32, Extent)> =
                    layout.objects().map(|(slot, _)| (slot, layout.extent_of(slot))).collect();
                let request = bytes(offset, offset + length);
                let (writers, clients, available) = (writers.0, writers.1, &available[..]);
                let known_now = Situation { request, writers, clients, files_written, available, interrupted, ..IDLE };
                grow_as(&mut layout, known_now);
                prop_assert_eq!(layout.validate(), Ok(()));
                prop_assert_eq!(layout.coverage(offset, length), Coverage::Complete);
                prop_assert!(is_automatic(&layout));
                for (slot, extent) in known {
                    let now = layout.extent_of(slot);
                    prop_assert!(now.start == extent.start && now.end >= extent.end, "objects only gain bytes");
                }
            }
            prop_assert!(layout.components.len() < COMPONENTS_MAX);
            for component in layout.components.iter().filter(|component| component.is_instantiated()) {
                prop_assert!(component.slots().len() <= available.len());
            }
        }
    }
}
