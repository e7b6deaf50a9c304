//! Has the objects of a component refuse the layouts of their file before the present one: the
//! second half of [`LeaveStep::Fence`](rpc::message::LeaveStep::Fence).
//!
//! Invariant: no object is fenced above the layout that this MDT has, since that is durable before;
//! however late a fence comes. Downside: an OST that does not answer holds up the client that has
//! to leave another one, and those that wait for the layout, until the call times out.

use std::{collections::BTreeMap, sync::Arc};

use layout::{ComponentId, Layout, Location};
use rpc::message::LeaveFullOst;
use tokio::sync::oneshot;
use types::{ClientId, FsError, FsResult, InodeNumber, ObjectId, OstIndex};

use super::Mdt;

impl Mdt {
    /// Fences the objects of a component against layouts before the one with which this request was
    /// answered, which is durable; unless the layout had changed before. When it returns, they have
    /// executed what they accepted.
    pub(super) async fn fence(
        self: &Arc<Self>,
        client: ClientId,
        request: &LeaveFullOst,
        layout: &Layout,
    ) -> FsResult<()> {
        let Some((component, generation)) = request.fence() else { return Ok(()) };
        if layout.generation != generation {
            return Ok(());
        }
        let proxies: BTreeMap<_, _> = self.ost_proxies().into_iter().collect();
        let mut answers = Vec::new();
        for (ost, objects) in objects_of(request.inode, layout, component) {
            let proxy = proxies.get(&ost).cloned().ok_or(FsError::NoDeviceOrAddress)?;
            let (answered, answer) = oneshot::channel();
            self.spawn("mdt_fence", async move {
                // Nobody listens any more if another OST has failed.
                let _ = answered.send(proxy.fence(objects, generation.0).await);
            });
            answers.push(answer);
        }
        for answer in answers {
            // Its task ends early when the MDT stops.
            answer.await.unwrap_or(Err(FsError::NoDevice))?;
        }
        self.namespace().volatile.layout_fenced(request.inode, client, component);
        Ok(())
    }
}

/// The objects of a component by OST.
fn objects_of(inode: InodeNumber, layout: &Layout, component: ComponentId) -> BTreeMap<OstIndex, Vec<ObjectId>> {
    let mut by_ost: BTreeMap<OstIndex, Vec<ObjectId>> = BTreeMap::new();
    let component = layout.components.iter().find(|one| one.id == component);
    for slot in component.into_iter().flat_map(|component| component.slots()) {
        if let Some(Location::Ost(ost)) = layout.location(slot) {
            by_ost.entry(ost).or_default().push(layout.object(inode, slot));
        }
    }
    by_ost
}
