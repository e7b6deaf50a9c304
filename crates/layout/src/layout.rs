//! The layout of a file: components one after the other, and all arithmetic between file ranges and
//! objects.
//!
//! A plain layout is one component for the whole file, instantiated from the start; everything
//! below knows components only.
//!
//! Invariants: components are contiguous from byte 0 in ascending order (an empty component may
//! precede the extension into which it grows, or have objects that hold no range any more; there
//! are no components at all after the last one was deleted); ids are unique; slots are below
//! `slots_next` and belong to one component, or to the parts of a component from which a range was
//! left out ([`Layout::leave_out`]), with the same stripes in all parts. A byte that is in an
//! instantiated component is in bijection with a byte of one of its objects; a byte that does not
//! is a hole. All functions are total on valid layouts ([`Layout::validate`], to be called on
//! whatever comes from disk or wire) as long as the slot exists.
//!
//! Life cycle: made by the MDT with the file; every change (instantiation, addition, deletion,
//! migration) increases the generation. A client with an older generation lacks later components:
//! before it answers from a hole it asks again.

use serde::{Deserialize, Serialize};
use types::{
    Generation, InodeNumber, ObjectId, OstIndex,
    limits::{LAYOUT_GENERATION_MAX, STRIPE_COUNT_MAX},
};

use crate::{
    checksum_type::ChecksumType,
    component::{Backing, Component, ComponentError, ComponentId, Extent, Location},
    limits::{COMPONENTS_MAX, END_OF_FILE},
    plain::PlainLayout,
    range::ObjectRange,
    reason::Reason,
    spec::{BackingSpec, ComponentSpec, StripeSpec},
};

/// More than a layout can give between two moments at which it is durable.
const SLOTS_LOST_MAX: u64 = COMPONENTS_MAX as u64 * STRIPE_COUNT_MAX as u64;

/// How the layout was requested, and how tools show it. Variants are only appended (wire format).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// One component for the whole file, shown without it.
    Plain,
    /// Components.
    Composite,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Grows with every change; a request that carries an old one is refused where that matters.
    pub generation: Generation,
    /// How it is shown.
    pub form: Form,
    /// The components in order.
    pub components: Vec<Component>,
    /// The first slot that was never used.
    pub slots_next: u32,
    /// The first component number that was never used.
    pub ids_next: u32,
    /// The inode number in the names of the objects on OSTs, where that is not the file's own:
    /// after layouts were swapped (module `swap`). Slots are counted for this number.
    pub named_by: Option<InodeNumber>,
    /// How the data are checked.
    #[serde(default)]
    pub checksum: ChecksumType,
}

/// Why a layout cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A component.
    #[error("component {0}: {1}", id.0, problem)]
    Component {
        /// Which.
        id: ComponentId,
        /// Why.
        problem: ComponentError,
    },
    /// Too many components.
    #[error("a layout of {0} components (at most {COMPONENTS_MAX} are possible)")]
    Count(usize),
    /// A component does not begin where the one before it ends.
    #[error("component {} does not begin where the one before it ends", .0.0)]
    Gap(ComponentId),
    /// A component without bytes that nothing can give any.
    #[error("component {} has no bytes", .0.0)]
    Empty(ComponentId),
    /// Two components with one number, or with common slots but other stripes, or one that is yet
    /// to be given.
    #[error("component {} shares its number or its slots with another", .0.0)]
    Shared(ComponentId),
    /// A generation that no layout comes to by changing: there would be none after it.
    #[error("generation {}", .0.0)]
    Generation(Generation),
    /// Data on the MDT after the first component.
    #[error("component {}: only the first one can be on the MDT", .0.0)]
    MdtNotFirst(ComponentId),
    /// Not what a plain layout is.
    #[error("a plain layout has one component with stripes for the whole file")]
    NotPlain,
}

/// What a range needs before it can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All of it has objects.
    Complete,
    /// A component in it has none yet.
    Pending,
    /// It goes beyond the last component, which ends here.
    Beyond(u64),
}

impl Layout {
    /// Generation of a plain layout that was never changed; 0 says "none" in messages.
    pub const FIRST_GENERATION: Generation = Generation(1);
    /// None is larger: each change adds a few at most.
    pub const GENERATION_MAX: Generation = Generation(LAYOUT_GENERATION_MAX);

    /// The generation as Lustre's users know it: that of a plain layout begins with 0.
    pub fn shown_generation(&self) -> u64 {
        match self.form {
            Form::Plain => self.generation.0.saturating_sub(Self::FIRST_GENERATION.0),
            Form::Composite => self.generation.0,
        }
    }

    /// One component for the whole file.
    pub fn plain(generation: Generation, plain: PlainLayout, spec: StripeSpec) -> Self {
        let slots_next = plain.stripe_count();
        let backing = Backing::Striped { plain, first_slot: 0, spec };
        let component = Component { id: ComponentId(1), extent: Extent::WHOLE, backing, reason: None };
        Self {
            generation,
            form: Form::Plain,
            components: vec![component],
            slots_next,
            ids_next: 2,
            named_by: None,
            checksum: ChecksumType::default(),
        }
    }

    /// Components as asked for, none with objects yet but data on the MDT. The request must be
    /// valid.
    pub fn composite(asked: &[ComponentSpec]) -> Self {
        let mut layout = Self {
            generation: Generation(0),
            form: Form::Composite,
            components: Vec::new(),
            slots_next: 0,
            ids_next: 1,
            named_by: None,
            checksum: ChecksumType::default(),
        };
        asked.iter().for_each(|component| layout.append(component));
        layout.generation = Generation(layout.components.len() as u64);
        layout
    }

    /// Adds a component after the last one. One that is extended step by step becomes two: itself,
    /// without bytes yet, and the extension space into which it grows.
    pub fn append(&mut self, asked: &ComponentSpec) {
        let start = self.end();
        match &asked.backing {
            BackingSpec::Striped(stripes) => self.push(start, asked.end, Backing::Pending(stripes.clone())),
            BackingSpec::Automatic => self.push(start, asked.end, Backing::Automatic),
            BackingSpec::Mdt => {
                let slot = self.slots_next;
                self.slots_next += 1;
                self.push(start, asked.end, Backing::Mdt { slot });
            }
            BackingSpec::Extended(stripes, step_bytes) => {
                self.push(start, start, Backing::Pending(stripes.clone()));
                self.push(start, asked.end, Backing::Extension { step_bytes: *step_bytes });
            }
        }
    }

    fn new_id(&mut self) -> ComponentId {
        let id = ComponentId(self.ids_next);
        self.ids_next += 1;
        id
    }

    fn push(&mut self, start: u64, end: u64, backing: Backing) {
        let id = self.new_id();
        self.components.push(Component { id, extent: Extent { start, end }, backing, reason: None });
    }

    /// The stripes of a layout shown as plain.
    pub fn as_plain(&self) -> Option<&PlainLayout> {
        match (self.form, self.components.as_slice()) {
            (Form::Plain, [Component { backing: Backing::Striped { plain, .. }, .. }]) => Some(plain),
            _ => None,
        }
    }

    /// Whether all functions of this layout may be used, and an MDT may store it. To be asked of
    /// every layout that comes from disk or wire; nothing that a valid layout becomes by its own
    /// functions has to be asked again.
    pub fn validate(&self) -> Result<(), LayoutError> {
        if self.components.len() > COMPONENTS_MAX {
            return Err(LayoutError::Count(self.components.len()));
        }
        if self.generation > Self::GENERATION_MAX {
            return Err(LayoutError::Generation(self.generation));
        }
        let mut start = 0;
        for (position, component) in self.components.iter().enumerate() {
            let id = component.id;
            component.validate().map_err(|problem| LayoutError::Component { id, problem })?;
            if component.extent.start != start || component.extent.end < start {
                return Err(LayoutError::Gap(id));
            }
            let extended = |next: &Component| matches!(next.backing, Backing::Extension { .. });
            let may_be_empty = component.is_instantiated() || self.components.get(position + 1).is_some_and(extended);
            if component.extent.is_empty() && !may_be_empty {
                return Err(LayoutError::Empty(id));
            }
            if position > 0 && matches!(component.backing, Backing::Mdt { .. }) {
                return Err(LayoutError::MdtNotFirst(id));
            }
            self.check_unique(position)?;
            start = component.extent.end;
        }
        if self.form == Form::Plain && (self.as_plain().is_none() || self.components[0].extent != Extent::WHOLE) {
            return Err(LayoutError::NotPlain);
        }
        Ok(())
    }

    fn check_unique(&self, position: usize) -> Result<(), LayoutError> {
        let component = &self.components[position];
        let (id, slots) = (component.id, component.slots());
        let shares = |other: &Component| {
            let both = other.slots();
            let overlap = slots.start < both.end && both.start < slots.end;
            other.id == id || (overlap && other.backing != component.backing)
        };
        if id.0 >= self.ids_next || slots.end > self.slots_next || self.components[..position].iter().any(shares) {
            return Err(LayoutError::Shared(id));
        }
        Ok(())
    }

    /// Where the last component ends; nothing can be written from there on.
    pub fn end(&self) -> u64 {
        self.components.last().map_or(0, |component| component.extent.end)
    }

    /// Whether a component has no objects yet, or could be added: then other holders of the layout
    /// may know of more.
    pub fn may_grow(&self) -> bool {
        !self.is_endless() || self.components.iter().any(|component| !component.is_instantiated())
    }

    /// The components with objects, parts of one component once.
    fn owners(&self) -> impl Iterator<Item = &Component> + '_ {
        let is_first = |(position, component): &(usize, &Component)| {
            let slots = component.slots();
            !slots.is_empty() && !self.components[..*position].iter().any(|other| other.slots() == slots)
        };
        self.components.iter().enumerate().filter(is_first).map(|(_, component)| component)
    }

    /// All objects, each once, in slot order within each component: slot and holder.
    pub fn objects(&self) -> impl Iterator<Item = (u32, Location)> + '_ {
        self.owners().flat_map(|component| component.slots().map(|slot| (slot, component.location(slot))))
    }

    /// Number of objects.
    pub fn object_count(&self) -> usize {
        self.owners().map(|component| component.slots().len()).sum()
    }

    /// About what it takes in a message: never less, so that a collector of layouts knows when
    /// there is no room for more.
    pub fn bytes_estimate(&self) -> usize {
        const LAYOUT_BYTES: usize = 64;
        LAYOUT_BYTES + self.components.iter().map(Component::bytes_estimate).sum::<usize>()
    }

    /// The target that holds the object of a slot, if there is one.
    pub fn location(&self, slot: u32) -> Option<Location> {
        self.find(slot).map(|component| component.location(slot))
    }

    /// The name of the object of `slot`, which must exist, in the layout of the file `inode`. Data
    /// on the MDT are always named by their file.
    pub fn object(&self, inode: InodeNumber, slot: u32) -> ObjectId {
        match self.owner(slot).0.location(slot) {
            Location::Ost(_) => ObjectId::new(self.namer(inode), slot),
            Location::Mdt => ObjectId::new(inode, slot),
        }
    }

    /// The inode number in the names of the objects on OSTs of the file `inode`.
    pub fn namer(&self, inode: InodeNumber) -> InodeNumber {
        self.named_by.unwrap_or(inode)
    }

    fn find(&self, slot: u32) -> Option<&Component> {
        self.components.iter().find(|component| component.slots().contains(&slot))
    }

    /// The component of a slot (its first part) and the number of its stripe.
    fn owner(&self, slot: u32) -> (&Component, u32) {
        let component = self.find(slot).unwrap_or_else(|| panic!("slot {slot} is not in the layout"));
        (component, slot - component.slots().start)
    }

    /// The extent whose bytes the object of `slot` holds: from the first one on to after the last
    /// one.
    pub fn extent_of(&self, slot: u32) -> Extent {
        let (first, _) = self.owner(slot);
        let last = self.components.iter().rfind(|component| component.slots().contains(&slot));
        Extent { start: first.extent.start, end: last.map_or(first.extent.end, |last| last.extent.end) }
    }

    /// The first byte at or after `offset` whose component has this slot.
    pub fn next_of(&self, slot: u32, offset: u64) -> Option<u64> {
        let parts = self.components.iter().filter(|component| component.slots().contains(&slot));
        parts.filter_map(|part| part.extent.intersection(offset, u64::MAX)).map(|rest| rest.start).next()
    }

    /// The component that contains the byte at `offset`.
    pub fn component_at(&self, offset: u64) -> Option<&Component> {
        self.position_at(offset).map(|position| &self.components[position])
    }

    /// Its position.
    pub fn position_at(&self, offset: u64) -> Option<usize> {
        self.components.iter().position(|component| component.extent.start <= offset && offset < component.extent.end)
    }

    /// What writing `bytes` from `offset` needs.
    pub fn coverage(&self, offset: u64, bytes: u64) -> Coverage {
        let end = offset.saturating_add(bytes);
        if end > self.end() {
            return Coverage::Beyond(self.end());
        }
        let pending = |component: &Component| {
            !component.is_instantiated() && component.extent.intersection(offset, end).is_some()
        };
        if self.components.iter().any(pending) { Coverage::Pending } else { Coverage::Complete }
    }

    /// Splits the file range of `bytes` from `offset`: one entry per object touched, component by
    /// component, in the order in which the range first touches them. Holes (what has no objects)
    /// are left out.
    pub fn ranges(&self, offset: u64, bytes: u64) -> impl Iterator<Item = ObjectRange> + '_ {
        let end = offset.saturating_add(bytes);
        self.components.iter().flat_map(move |component| {
            let striping = component.striping();
            let part = component.extent.intersection(offset, end);
            let found = striping.zip(part);
            found.into_iter().flat_map(move |(striping, part)| {
                striping.ranges(part.start, part.bytes()).map(move |range| {
                    let slot = component.slots().start + range.index;
                    ObjectRange {
                        slot,
                        location: component.location(slot),
                        offset: range.offset,
                        bytes: range.bytes,
                        striping,
                        index: range.index,
                    }
                })
            })
        })
    }

    /// The size of the object of `slot` in a file of `file_size` bytes; a truncation truncates each
    /// object to this. Bytes of the file before the object's component count (they are a hole in
    /// it), bytes after do not.
    pub fn object_size(&self, slot: u32, file_size: u64) -> u64 {
        let (component, index) = self.owner(slot);
        if file_size <= component.extent.start {
            return 0;
        }
        self.striping_of(component).object_size(index, file_size.min(self.extent_of(slot).end))
    }

    /// The file size that an object of `object_size` bytes implies; the file's size is the largest
    /// over all objects.
    pub fn file_size(&self, slot: u32, object_size: u64) -> u64 {
        let (component, index) = self.owner(slot);
        self.striping_of(component).file_size(index, object_size)
    }

    /// Which byte of the file is the byte at `object_offset` of the object of `slot`.
    pub fn file_offset(&self, slot: u32, object_offset: u64) -> u64 {
        let (component, index) = self.owner(slot);
        self.striping_of(component).file_offset(index, object_offset)
    }

    /// How many bytes before `offset` of the file the object of `slot` can hold: its first byte at
    /// or after `offset` is there.
    pub fn object_position(&self, slot: u32, offset: u64) -> u64 {
        let (component, index) = self.owner(slot);
        self.striping_of(component).object_size(index, offset.max(component.extent.start))
    }

    /// The object that keeps the length of a file of `size` bytes whose end is not decided yet:
    /// that of the first component, if it is its only one. Then an offset in the object is one in
    /// the file, so it may be longer than the component. A truncation to such a size takes no
    /// objects; the first write decides, with all writers known. `None`: the end is in a
    /// component that has objects, or has to be given some.
    pub fn keeper_of_length(&self, size: u64) -> Option<u32> {
        let end = self.component_at(size.checked_sub(1)?)?;
        let slots = self.components.first().filter(|first| first.extent.start < first.extent.end)?.slots();
        (end.backing == Backing::Automatic && slots.len() == 1).then_some(slots.start)
    }

    fn striping_of(&self, component: &Component) -> crate::striping::Striping {
        component.striping().expect("a component with slots has stripes")
    }

    /// The first byte at or after `offset` that has no object, within the layout.
    pub fn next_gap(&self, offset: u64) -> Option<u64> {
        let gaps = self.components.iter().filter(|component| !component.is_instantiated());
        let gap = gaps.filter_map(|component| component.extent.intersection(offset, u64::MAX)).next();
        gap.map(|gap| gap.start)
    }

    /// Positions of the components that must be instantiated before `start..end` can be written.
    pub fn pending(&self, start: u64, end: u64) -> Vec<usize> {
        let needed =
            |component: &Component| !component.is_instantiated() && component.extent.intersection(start, end).is_some();
        (0..self.components.len()).filter(|position| needed(&self.components[*position])).collect()
    }

    /// Gives a pending component its objects.
    pub fn instantiate(&mut self, position: usize, plain: PlainLayout, spec: StripeSpec) -> Result<(), LayoutError> {
        let id = self.components[position].id;
        let slots = |problem| LayoutError::Component { id, problem };
        plain.validate().map_err(|error| slots(error.into()))?;
        let first_slot = self.slots_next;
        self.slots_next = first_slot.checked_add(plain.stripe_count()).ok_or(slots(ComponentError::Slots))?;
        self.components[position].backing = Backing::Striped { plain, first_slot, spec };
        Ok(())
    }

    /// The next objects get other slots than any that a growth of this layout can have given that
    /// was lost with the MDT's power: it is not known what is, or is still being, written to those.
    /// `era`: how often it lost power. Each loss begins a range of slots of its own; there are some
    /// 8,000.
    pub fn skip_lost_slots(&mut self, era: u64) {
        let first = u32::try_from(era.saturating_mul(SLOTS_LOST_MAX)).unwrap_or(u32::MAX);
        self.slots_next = self.slots_next.max(first);
    }

    /// The range in which the next slot is, see [`Layout::skip_lost_slots`]. It is beyond that of
    /// the MDT's era if the file comes from an MDT that lost its power more often.
    pub fn slot_range(&self) -> u64 {
        u64::from(self.slots_next) / SLOTS_LOST_MAX
    }

    /// The first slot after all that components have.
    pub fn slots_end(&self) -> u32 {
        self.components.iter().map(|component| component.slots().end).max().unwrap_or(0)
    }

    /// Whether this is what `older` can have become by growth alone: objects were added, under
    /// slots that `older` has not given, and all that were there are where they were.
    pub fn has_grown_from(&self, older: &Layout) -> bool {
        let kept = |known: &Component| {
            let same = |mine: &&Component| mine.id == known.id && mine.backing == known.backing;
            let mine = self.components.iter().find(same).map(|mine| mine.extent);
            !known.is_instantiated()
                || mine.is_some_and(|mine| mine.start == known.extent.start && mine.end >= known.extent.end)
        };
        let added = |mine: &Component| {
            let slots = mine.slots();
            slots.is_empty() || slots.start >= older.slots_next || older.find(slots.start).is_some()
        };
        self.generation > older.generation
            && self.form == older.form
            && self.named_by == older.named_by
            && self.slots_next >= older.slots_next
            && self.ids_next >= older.ids_next
            && self.end() >= older.end()
            && older.components.iter().all(kept)
            && self.components.iter().all(added)
    }

    /// Makes `extent`, a part of the automatic component at `position`, one of its own with these
    /// stripes asked for, for this reason, and returns its position. What is left before and after
    /// it stays automatic.
    pub fn cut(
        &mut self,
        position: usize,
        extent: Extent,
        spec: StripeSpec,
        reason: Reason,
    ) -> Result<usize, LayoutError> {
        let rest = self.components[position].clone();
        assert_eq!(rest.backing, Backing::Automatic, "only what is automatic is cut");
        assert!(rest.extent.start <= extent.start && extent.end <= rest.extent.end, "a part is cut");
        let backing = Backing::Pending(spec);
        let mut parts = vec![Component { id: self.new_id(), extent, backing, reason: Some(reason) }];
        if extent.end < rest.extent.end {
            parts.push(Component { extent: Extent { start: extent.end, ..rest.extent }, ..rest.clone() });
        }
        let mut cut = position;
        if rest.extent.start < extent.start {
            let id = if extent.end < rest.extent.end { self.new_id() } else { rest.id };
            let before = Extent { end: extent.start, ..rest.extent };
            parts.insert(0, Component { id, extent: before, backing: Backing::Automatic, reason: None });
            cut += 1;
        }
        let count = self.components.len() - 1 + parts.len();
        if count > COMPONENTS_MAX {
            return Err(LayoutError::Count(count));
        }
        self.components.splice(position..=position, parts);
        Ok(cut)
    }

    /// Lets the component at `position` grow to `end`, into the one after it, which has no objects.
    /// Objects keep what they have: a holder of an older layout merely misses bytes.
    pub fn extend(&mut self, position: usize, end: u64) -> Result<(), LayoutError> {
        let next = self.components.get(position + 1).ok_or(LayoutError::Count(self.components.len()))?;
        assert!(!next.is_instantiated() && next.extent.end >= end, "a component grows into space without objects");
        assert!(self.components[position].extent.end <= end, "a component does not shrink");
        self.components[position].extent.end = end;
        self.components[position + 1].extent.start = end;
        if self.components[position + 1].extent.is_empty() {
            self.components.remove(position + 1);
        }
        Ok(())
    }

    /// Removes the extension space at `position` in favour of the component after it, which begins
    /// where the one before ends; that one is removed too if it has neither bytes nor objects.
    pub fn spill(&mut self, position: usize) {
        assert!(
            matches!(self.components[position].backing, Backing::Extension { .. }),
            "only extension space is given away"
        );
        let extension = self.components.remove(position);
        self.components[position].extent.start = extension.extent.start;
        let is_void = |component: &Component| component.extent.is_empty() && !component.is_instantiated();
        if position > 0 && is_void(&self.components[position - 1]) {
            self.components.remove(position - 1);
        }
    }

    /// Puts a component like the one before the extension space at `position`, without bytes and
    /// objects, between them, and returns its position.
    pub fn repeat(&mut self, position: usize) -> Result<usize, LayoutError> {
        if self.components.len() >= COMPONENTS_MAX {
            return Err(LayoutError::Count(self.components.len() + 1));
        }
        let Backing::Striped { spec, .. } = self.components[position - 1].backing.clone() else {
            panic!("a component with objects is repeated");
        };
        let start = self.components[position].extent.start;
        let id = self.new_id();
        let repeated =
            Component { id, extent: Extent { start, end: start }, backing: Backing::Pending(spec), reason: None };
        self.components.insert(position, repeated);
        Ok(position)
    }

    /// Gives the object of `slot` another OST. Only for an object that was never made: its name
    /// means no other by then.
    pub fn relocate(&mut self, slot: u32, ost: OstIndex) {
        let mut found = false;
        for component in self.components.iter_mut().filter(|component| component.slots().contains(&slot)) {
            if let Backing::Striped { plain, first_slot, .. } = &mut component.backing {
                plain.osts[(slot - *first_slot) as usize] = ost;
                found = true;
            }
        }
        assert!(found, "slot {slot} is not one of an OST's");
    }

    /// Leaves `hole` out of the component at `position`, whose objects have nothing there: it is
    /// decided again where that part is. The data of the component before and after it stay in
    /// its objects, which the layout keeps, if in a component without bytes: they are to be
    /// destroyed with the file, and the fence before them stands until then.
    ///
    /// Not growth: clients with the old layout must be kept from the objects before.
    pub fn leave_out(&mut self, position: usize, hole: Extent) -> Result<(), LayoutError> {
        self.leave_out_to(position, hole, Backing::Automatic)
    }

    /// Likewise; the hole gets this backing, without objects. It becomes part of the component
    /// after it if that has the same.
    pub fn leave_out_to(&mut self, position: usize, hole: Extent, backing: Backing) -> Result<(), LayoutError> {
        let whole = self.components[position].clone();
        assert!(whole.extent.start <= hole.start && hole.end <= whole.extent.end, "the hole is within the component");
        assert!(!hole.is_empty(), "a part is left out");
        assert!(!matches!(backing, Backing::Striped { .. } | Backing::Mdt { .. }), "nothing is stored there yet");
        let mut parts = Vec::new();
        let is_last = |other: &Component| other.id == whole.id || other.slots() != whole.slots();
        if whole.extent.start < hole.start || (hole == whole.extent && self.components.iter().all(is_last)) {
            parts.push(Component { extent: Extent { end: hole.start, ..whole.extent }, ..whole.clone() });
        }
        let next = self.components.get(position + 1).map(|next| &next.backing);
        if hole.end == whole.extent.end && next == Some(&backing) {
            self.components[position + 1].extent.start = hole.start;
        } else {
            parts.push(Component { id: self.new_id(), extent: hole, backing, reason: None });
        }
        if hole.end < whole.extent.end {
            let id = if parts.first().is_some_and(|first| first.id == whole.id) { self.new_id() } else { whole.id };
            parts.push(Component { id, extent: Extent { start: hole.end, ..whole.extent }, ..whole });
        }
        let count = self.components.len() - 1 + parts.len();
        if count > COMPONENTS_MAX {
            return Err(LayoutError::Count(count));
        }
        self.components.splice(position..=position, parts);
        Ok(())
    }

    /// Whether the whole file has a place.
    pub fn is_endless(&self) -> bool {
        self.end() == END_OF_FILE
    }
}
