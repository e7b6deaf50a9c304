//! Layouts within a transaction: those of new files, and the instantiation of components as files
//! grow.

use std::collections::BTreeSet;

use layout::{
    Backing, ComponentSpec, Extent, FileSystemDefault, Layout, LayoutError, LayoutSpec, OstStatus, PlainLayout,
    StripeCount, StripeSpec,
    automatic::{self, Situation},
    extension::{self, Step, StepSpace},
};
use types::{Damage, FsError, FsResult, OstIndex, Refusal};

use super::Transaction;
use crate::{
    opens::Writers,
    tables::inode::{Inode, InodeData},
};

/// What is known of the file whose layout grows.
#[derive(Clone, Copy, Debug)]
struct Growth {
    /// Its size, as far as the MDT knows it.
    size: u64,
    /// What files with such names grew to.
    expected: u64,
    /// Who writes it.
    writers: Writers,
}

impl Transaction<'_> {
    /// The layout of a new file. The first component has its objects from the start, so that the
    /// first write finds them; data on the MDT need none.
    pub fn new_layout(&mut self, spec: &LayoutSpec) -> FsResult<Layout> {
        spec.validate(self.context.parameters.bytes_on_mdt_max)?;
        let components = match spec {
            LayoutSpec::Plain(stripes) => {
                let (plain, stripes) = self.place(stripes)?;
                return Ok(Layout::plain(Layout::FIRST_GENERATION, plain, stripes));
            }
            LayoutSpec::Composite(components) => self.sized(components),
            LayoutSpec::Automatic => automatic::components(self.context.bytes_on_mdt_by_default()),
        };
        let mut layout = Layout::composite(&components);
        let others = self.volatile.opens.files_written();
        let growth = Growth { size: 0, expected: 0, writers: Writers { opens: 1, clients: 1, files: others + 1 } };
        self.instantiate_range(&mut layout, 0, 1, growth)?;
        Ok(layout)
    }

    /// Components with stripe sizes, where these are left open.
    pub fn sized(&self, components: &[ComponentSpec]) -> Vec<ComponentSpec> {
        components.iter().map(|component| self.context.parameters.default_layout.sized(component)).collect()
    }

    /// Whether all requested OSTs and pools exist.
    pub fn check_named(&self, spec: &LayoutSpec) -> FsResult<()> {
        let targets = &self.volatile.targets;
        if !spec.named_osts().all(|ost| targets.is_known(ost)) {
            return Err(FsError::Invalid);
        }
        let unknown = spec.named_pools().find(|pool| !targets.pools.is_pool(pool));
        unknown.map_or(Ok(()), |pool| Err(Refusal::UnknownPool(pool.to_owned()).into()))
    }

    /// Chooses targets, and says what was asked for in the end: of another pool, if that one
    /// spills.
    fn place(&mut self, stripes: &StripeSpec) -> FsResult<(PlainLayout, StripeSpec)> {
        let default: FileSystemDefault = self.context.parameters.default_layout;
        let targets = &mut self.volatile.targets;
        let stripes = targets.pass_on(stripes);
        let plain = targets.place(&default.fill(&stripes), &self.context.parameters.placement);
        self.lacks_osts |= plain == Err(FsError::NoSpace);
        Ok((plain?, stripes))
    }

    /// Chooses targets that have this much space and are connected, if there are any.
    fn place_with_space(&mut self, stripes: &StripeSpec, bytes_per_stripe: u64) -> FsResult<PlainLayout> {
        let default: FileSystemDefault = self.context.parameters.default_layout;
        let policy = self.context.parameters.placement;
        let has_space = |status: &OstStatus| !status.interrupted && status.bytes_available >= bytes_per_stripe;
        match self.volatile.targets.place_where(&default.fill(stripes), &policy, has_space) {
            // Stripes of automatic components are of no pool.
            Err(FsError::NoSpace) => self.place(stripes).map(|(plain, _)| plain),
            placed => placed,
        }
    }

    /// Gives all components that `start..end` of the file touches their objects; true if anything
    /// changed.
    fn instantiate_range(&mut self, layout: &mut Layout, start: u64, end: u64, growth: Growth) -> FsResult<bool> {
        let mut changed = false;
        // Each turn gives objects to the first byte of the range that has none; or prepares that
        // within extension space, by a step that is taken once for each component.
        while let Some(position) = layout.pending(start, end).first().copied() {
            match layout.components[position].backing.clone() {
                Backing::Pending(stripes) => {
                    let (plain, stripes) = self.place(&stripes)?;
                    layout.instantiate(position, plain, stripes).map_err(refused)?;
                }
                Backing::Automatic => self.instantiate_automatic(layout, position, Extent { start, end }, growth)?,
                Backing::Extension { .. } => self.grow_into_extension(layout, position, Extent { start, end })?,
                Backing::Striped { .. } | Backing::Mdt { .. } => unreachable!("has objects"),
            }
            changed = true;
        }
        Ok(changed)
    }

    /// Cuts the component that `request` needs next out of an automatic one; or the one before it
    /// takes its place.
    fn instantiate_automatic(
        &mut self,
        layout: &mut Layout,
        position: usize,
        request: Extent,
        growth: Growth,
    ) -> FsResult<()> {
        let policy = self.context.parameters.placement;
        let available: Vec<u64> =
            self.volatile.targets.available_parts(&policy).into_iter().map(|(_, bytes)| bytes).collect();
        let rest = layout.components[position].extent;
        let next = automatic::next_component(&Situation {
            rest,
            request,
            size: growth.size,
            expected: growth.expected,
            components: layout.components_counted(self.volatile.targets.count()),
            writers: growth.writers.opens,
            clients: growth.writers.clients,
            files_written: growth.writers.files,
            available: &available,
            interrupted: self.volatile.targets.awaited(&policy),
        });
        let asked = request.start.max(rest.start);
        if next.extent.intersection(asked, asked.saturating_add(1)).is_none() {
            // The caller would ask for the same byte forever.
            return Err(Damage::new("automatic layout", format!("no component holds byte {asked}")).into());
        }
        if let Some(before) = position.checked_sub(1)
            && automatic::may_continue(&layout.components[before], &next)
            && let Backing::Striped { plain, .. } = &layout.components[before].backing
            && self.volatile.targets.have_space(&plain.osts, next.bytes_per_stripe(), &policy)
        {
            return layout.extend(before, next.extent.end).map_err(refused);
        }
        let stripes = StripeSpec {
            stripe_count: StripeCount::Exactly(next.stripe_count),
            stripe_bytes: Some(next.stripe_bytes),
            ..StripeSpec::default()
        };
        let plain = self.place_with_space(&stripes, next.bytes_per_stripe())?;
        let position = layout.cut(position, next.extent, stripes.clone(), next.reason).map_err(refused)?;
        layout.instantiate(position, plain, stripes).map_err(refused)
    }

    /// One step of a component into the extension space after it, at `position`, that `request`
    /// needs.
    fn grow_into_extension(&mut self, layout: &mut Layout, position: usize, request: Extent) -> FsResult<()> {
        let no_component = || Damage::new("layout", "no component grows into the extension after it");
        let (before, spec, step_bytes) = extension::growing(layout, position).ok_or_else(no_component)?;
        let spec = spec.clone();
        let own = match &before.backing {
            Backing::Striped { plain, .. } => plain.osts.clone(),
            _ => Vec::new(),
        };
        let share = step_bytes.div_ceil(own.len().max(1) as u64);
        let policy = self.context.parameters.placement;
        let targets = &mut self.volatile.targets;
        let spec = targets.pass_on(&spec);
        let others = targets.available(spec.pool.as_deref(), &policy).into_iter().filter(|(ost, _)| !own.contains(ost));
        let elsewhere = others.map(|(_, free)| free).any(|free| free >= share);
        let before = if own.is_empty() { elsewhere } else { targets.have_space(&own, share, &policy) };
        match extension::next_step(layout, position, request, StepSpace { before, elsewhere })
            .ok_or_else(no_component)?
        {
            Step::Extend(end) => layout.extend(position - 1, end).map_err(refused),
            Step::Spill => {
                layout.spill(position);
                Ok(())
            }
            Step::Repeat => {
                let default: FileSystemDefault = self.context.parameters.default_layout;
                let spec = StripeSpec { first_ost: None, ..spec };
                let has_space = |status: &OstStatus| !own.contains(&status.index) && status.bytes_available >= share;
                let plain = targets.place_where(&default.fill(&spec), &policy, has_space);
                self.lacks_osts |= plain == Err(FsError::NoSpace);
                let plain = plain?;
                let repeated = layout.repeat(position).map_err(refused)?;
                layout.instantiate(repeated, plain, spec).map_err(refused)
            }
        }
    }

    /// Leaves `hole`, which has no data, out of the component at `position`, which grows by steps:
    /// its OSTs have no space for it, whatever they report. At the component's end, the component
    /// after the extension space begins there; otherwise other OSTs get the hole.
    pub fn end_growth(&mut self, layout: &mut Layout, position: usize, hole: Extent) -> FsResult<()> {
        let component = &layout.components[position];
        let Backing::Striped { plain, spec, .. } = component.backing.clone() else { return Err(FsError::Invalid) };
        let ends = hole.end == component.extent.end;
        let has_next = position + 2 < layout.components.len();
        if let Some(extension @ Backing::Extension { .. }) =
            layout.components.get(position + 1).map(|next| next.backing.clone())
            && ends
            && has_next
        {
            layout.leave_out_to(position, hole, extension).map_err(refused)?;
            let extension = layout.pending(hole.start, hole.end);
            layout.spill(*extension.first().expect("the hole is an extension now"));
            return Ok(());
        }
        if !spec.osts.is_empty() {
            return Err(FsError::NoSpace);
        }
        let default: FileSystemDefault = self.context.parameters.default_layout;
        let policy = self.context.parameters.placement;
        let targets = &mut self.volatile.targets;
        let spec = StripeSpec { first_ost: None, ..targets.pass_on(&spec) };
        let asked = default.fill(&spec);
        let chosen = match targets.place_where(&asked, &policy, |status| !plain.osts.contains(&status.index)) {
            // As wide as the file system: without those that refused.
            Err(FsError::NoSpace) => targets.place_where(&asked, &policy, |status| status.refused_ns.is_none()),
            chosen => chosen,
        };
        self.lacks_osts |= chosen == Err(FsError::NoSpace);
        let chosen = chosen?;
        layout.leave_out_to(position, hole, Backing::Pending(spec.clone())).map_err(refused)?;
        let position = *layout.pending(hole.start, hole.end).first().expect("the hole has no objects yet");
        layout.instantiate(position, chosen, spec).map_err(refused)
    }

    /// Gives the objects of these slots, all on OSTs, others that are none of `refused`. `NoSpace`
    /// if there are too few, or if the present ones were requested.
    pub fn relocate(
        &mut self,
        layout: &mut Layout,
        slots: &BTreeSet<u32>,
        refused: &BTreeSet<OstIndex>,
    ) -> FsResult<()> {
        for component in layout.components.clone() {
            let moved: Vec<u32> = component.slots().filter(|slot| slots.contains(slot)).collect();
            let Backing::Striped { plain, first_slot, spec } = &component.backing else { continue };
            if moved.is_empty() {
                continue;
            }
            if !spec.osts.is_empty() || (spec.first_ost.is_some() && moved.contains(first_slot)) {
                return Err(FsError::NoSpace);
            }
            let overstriped = matches!(spec.stripe_count, StripeCount::Overstriped(_) | StripeCount::PerOst(_));
            let others = if overstriped { &[][..] } else { &plain.osts[..] };
            let wanted =
                StripeSpec { stripe_count: StripeCount::Exactly(moved.len() as u32), first_ost: None, ..spec.clone() };
            let wanted = self.volatile.targets.pass_on(&wanted);
            let (default, policy) = (self.context.parameters.default_layout, self.context.parameters.placement);
            let other = |status: &OstStatus| !refused.contains(&status.index) && !others.contains(&status.index);
            let chosen = self.volatile.targets.place_where(&default.fill(&wanted), &policy, other);
            let too_few = |plain: &PlainLayout| plain.osts.len() < moved.len() && !overstriped;
            self.lacks_osts |= chosen == Err(FsError::NoSpace) || chosen.as_ref().is_ok_and(too_few);
            let chosen = chosen?;
            if too_few(&chosen) {
                return Err(FsError::NoSpace);
            }
            for (slot, ost) in moved.into_iter().zip(chosen.osts.into_iter().cycle()) {
                layout.relocate(slot, ost);
            }
        }
        Ok(())
    }

    /// Makes `start..end` of a file writable: its layout may grow. The caller stores the inode.
    pub fn instantiate(&mut self, inode: &mut Inode, start: u64, end: u64) -> FsResult<()> {
        let number = inode.number();
        let writers = self.volatile.opens.writers(number);
        let name = inode.first_link.as_ref();
        let expected = name.map_or(0, |name| self.volatile.history.expected(name.parent, &name.name));
        let growth = Growth { size: inode.attributes.size, expected, writers };
        let InodeData::Regular(layout) = &mut inode.data else { return Err(FsError::Invalid) };
        if start < end && end > layout.end() {
            return Err(FsError::NoData);
        }
        let mut grown = layout.clone();
        grown.skip_lost_slots(self.volatile.recovery.era);
        if self.instantiate_range(&mut grown, start, end, growth)? {
            grown.generation = grown.generation.next();
            assert!(grown.generation > layout.generation, "a layout that grows has a new generation");
            debug_assert!(
                grown.validate().is_ok(),
                "a layout that grew is one that clients accept: {:?}",
                grown.validate()
            );
            self.changes.lengthened = has_lengthened(layout, &grown).then_some(number);
            if writers.opens > 0 {
                self.volatile.targets.load.begin(number, osts_at(&grown, end));
            }
            inode.data = InodeData::Regular(grown);
        }
        Ok(())
    }
}

/// The OSTs of the component that a write up to `end` comes to.
fn osts_at(layout: &Layout, end: u64) -> Vec<OstIndex> {
    let component = end.checked_sub(1).and_then(|last| layout.component_at(last));
    match component.map(|component| &component.backing) {
        Some(Backing::Striped { plain, .. }) => plain.osts.clone(),
        _ => Vec::new(),
    }
}

/// Whether growth gave an object bytes that it did not have. Of a component in several parts,
/// because some were left out, it is always said: the parts are not told apart.
fn has_lengthened(before: &Layout, grown: &Layout) -> bool {
    grown.components.iter().any(|component| {
        let slot = component.slots().start;
        component.is_instantiated() && before.location(slot).is_some() && before.extent_of(slot) != component.extent
    })
}

/// A layout with as many components as it can have has no room; anything else does not come from a
/// valid layout.
fn refused(error: LayoutError) -> FsError {
    match error {
        LayoutError::Count(_) => FsError::NoSpace,
        other => Damage::new("layout", other.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use kv::Lsn;
    use layout::{BackingSpec, ComponentSpec, END_OF_FILE};
    use types::{FileKind, InodeNumber};

    use super::{super::entries::tests::with_transaction, *};
    use crate::tables::inode::tests::sample;

    const STEP: u64 = 64 << 20;

    #[test]
    fn a_longer_component_is_no_new_one() {
        let plain = |ost: u16| PlainLayout { stripe_bytes: 1 << 20, osts: vec![OstIndex(ost)] };
        let backing = BackingSpec::Extended(StripeSpec::default(), STEP);
        let mut before = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing }]);
        before.extend(0, STEP).unwrap();
        before.instantiate(0, plain(0), StripeSpec::default()).unwrap();
        assert!(!has_lengthened(&before, &before));
        let mut repeated = before.clone();
        let position = repeated.repeat(1).unwrap();
        repeated.extend(position, 2 * STEP).unwrap();
        repeated.instantiate(position, plain(1), StripeSpec::default()).unwrap();
        assert!(!has_lengthened(&before, &repeated), "an object that was not there before");
        let mut longer = before.clone();
        longer.extend(0, 2 * STEP).unwrap();
        assert!(has_lengthened(&before, &longer));
    }

    /// Clients that look at the file must wait until the change that made it longer is durable;
    /// others need not.
    #[tokio::test]
    async fn who_looks_at_a_file_that_got_longer_is_told_what_to_wait_for() {
        with_transaction(|txn| {
            let inode = sample(FileKind::Regular);
            let other = InodeNumber(inode.number().0 + 1);
            txn.put_inode(&inode);
            txn.volatile.lengthened.insert(other, Lsn(9));
            txn.inode(inode.number()).unwrap();
            assert_eq!(txn.lengthened(), None, "another file");
            txn.volatile.lengthened.insert(inode.number(), Lsn(7));
            txn.inode(inode.number()).unwrap();
            assert_eq!(txn.lengthened(), Some(Some(Lsn(7))));
        })
        .await;
    }
}
