//! Compares files with their objects: orphans, missing data, sizes that do not match, damaged
//! blocks.

use std::{collections::BTreeMap, time::Duration};

use layout::Location;
use rpc::{
    message::{
        MdtRequest, OstReply, OstRequest,
        mdt::{Finding, ScannedInode, SizeUpdate},
        mgs::TargetRole,
        ost::ObjectAttributes,
    },
    unexpected,
};
use rt::Clock;
use types::{Credentials, FsError, FsResult, InodeNumber, ObjectId};

use super::{
    Summary,
    checkpoint::{CheckedObjects, Checkpoint},
    progress::Progress,
    targets::{PAGE, Targets, holder},
};

/// What files say, then what objects say, then the verdict.
#[derive(Default)]
pub struct ObjectCheck {
    files: BTreeMap<InodeNumber, ScannedInode>,
    /// Files whose objects on OSTs bear another number than theirs (layouts were swapped), by that
    /// number.
    holders: BTreeMap<InodeNumber, InodeNumber>,
    objects: BTreeMap<ObjectId, Vec<(TargetRole, ObjectAttributes)>>,
}

impl ObjectCheck {
    /// Notes an inode.
    pub fn expect(&mut self, inode: ScannedInode) {
        let number = inode.entry.attributes.inode;
        if let Some(layout) = &inode.layout {
            self.holders.extend(layout.named_by.map(|namer| (namer, number)));
            self.files.insert(number, inode);
        }
    }

    /// Reads the list of a target's objects and looks for what holds them; with `verify` reads all
    /// their data too. What was checked before is not checked again.
    pub(super) async fn read_target(
        &mut self,
        targets: &Targets,
        role: TargetRole,
        verify: bool,
        checkpoint: &mut Checkpoint,
        summary: &mut Summary,
        progress: &mut Progress,
    ) -> anyhow::Result<u64> {
        let (mut after, mut count) = (None, 0);
        let CheckedObjects { last: checked, findings } = checkpoint.objects(role);
        summary.damaged_objects += findings.len() as u64;
        summary.findings.extend(findings);
        let is_new = |object: &ObjectId| checked.is_none_or(|checked| *object > checked);
        // Data on an MDT can be checked only by reading them.
        let mut checker = match role {
            TargetRole::Ost(ost) => Some(ost),
            TargetRole::Mdt(_) => None,
        };
        loop {
            let page = match targets.objects(role, OstRequest::ListObjects(after, PAGE)).await? {
                OstReply::Objects(page) => page,
                reply => return Err(unexpected(reply).into()),
            };
            let Some((last, _)) = page.last().copied() else { return Ok(count) };
            after = Some(last);
            count += page.len() as u64;
            let mut damaged = BTreeMap::new();
            let new: Vec<_> = page.iter().map(|(object, _)| *object).filter(is_new).collect();
            if let Some(ost) = checker.filter(|_| !new.is_empty()) {
                match check(targets, role, new).await {
                    // No such request there, or no such answer: what else is to be looked at is
                    // known to all versions.
                    Err(FsError::Protocol(reason)) => {
                        summary.unchecked.push((ost, reason.to_string()));
                        checker = None;
                    }
                    found => damaged = found?,
                }
            }
            for (object, attributes) in page {
                progress.advance(1);
                self.objects.entry(object).or_default().push((role, attributes));
                if verify && is_new(&object) && !damaged.contains_key(&object) {
                    match targets.objects(role, OstRequest::Verify(object)).await {
                        Err(error) if is_damage(&error) => drop(damaged.insert(object, error.to_string())),
                        // It was removed meanwhile.
                        Ok(_) | Err(FsError::NotFound) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            summary.damaged_objects += damaged.len() as u64;
            let found = damaged.into_iter().map(|(object, problem)| finding(object.inode, problem, false));
            let found: Vec<_> = found.collect();
            // What could not be asked is asked the next time.
            let is_asked = checker.is_some() || matches!(role, TargetRole::Mdt(_));
            if is_asked && is_new(&last) {
                checkpoint.objects_checked(role, last, &found)?;
            }
            summary.findings.extend(found);
        }
    }

    /// Whether a file has this object on this target.
    pub fn is_expected(&self, object: ObjectId, role: TargetRole) -> bool {
        let holders = [Some(&object.inode), self.holders.get(&object.inode)];
        let mut files = holders.into_iter().flatten().filter_map(|number| self.files.get(number));
        files.any(|file| belongs(file, object, role))
    }

    /// Compares both.
    pub async fn judge(
        &self,
        targets: &Targets,
        clock: &dyn Clock,
        repair: bool,
        summary: &mut Summary,
        progress: &mut Progress,
    ) -> FsResult<()> {
        progress.begin("looking for orphan objects".to_owned(), None);
        let places = self.objects.iter().flat_map(|(object, places)| places.iter().map(move |place| (*object, *place)));
        // Data on an MDT are part of its own check.
        let on_ost = places.filter(|(_, (role, _))| matches!(role, TargetRole::Ost(_)));
        let knows_all = knows_all_files(&targets.deactivated);
        let suspects = on_ost
            .filter(|_| knows_all)
            .filter(|(object, (role, _))| !self.is_expected(*object, *role))
            .map(|(object, (role, attributes))| Suspect { object, role, attributes });
        // An inode whose record does not decode may have them.
        let destroy = repair && summary.damaged == 0;
        let mut orphans = orphans(targets, clock, suspects.collect()).await?;
        if !orphans.is_empty() && !targets.have_all_mdts().await {
            summary.unjudged = std::mem::take(&mut orphans).len() as u64;
        }
        for Suspect { object, role, attributes } in orphans {
            if destroy {
                targets.objects(role, OstRequest::Destroy(vec![object], None)).await?;
            }
            let problem = format!("orphan object {object} on {role}: {} bytes that belong to no file", attributes.size);
            summary.findings.push(finding(object.inode, problem, destroy));
        }
        progress.begin("comparing sizes of files with their objects".to_owned(), Some(self.files.len() as u64));
        for file in self.files.values() {
            progress.advance(1);
            self.judge_size(targets, file, repair, summary).await?;
        }
        Ok(())
    }

    async fn judge_size(
        &self,
        targets: &Targets,
        file: &ScannedInode,
        repair: bool,
        summary: &mut Summary,
    ) -> FsResult<()> {
        /// A file that changes under every look is in use.
        const LOOKS_MAX: usize = 3;
        let inode = file.entry.attributes.inode;
        if !targets.have_all_of(file) {
            summary.uncompared += 1;
            return Ok(());
        }
        if file.busy || self.implied(file) == Some(file.entry.attributes.size) && file.entry.size_unknown.is_none() {
            return Ok(());
        }
        for _ in 0..LOOKS_MAX {
            let Some(now) = targets.look_again(inode).await?.filter(|now| !now.busy) else { return Ok(()) };
            // It may have changed its objects since it was read.
            if !targets.have_all_of(&now) {
                summary.uncompared += 1;
                return Ok(());
            }
            // State that a dead writer left behind: no damage, because readers ask the objects.
            if now.entry.size_unknown.is_some() && !repair {
                summary.size_unknown += 1;
                return Ok(());
            }
            let Some(epoch) = now.entry.quiet else { return Ok(()) };
            let update = glimpse(targets, &now, epoch).await?;
            let Some(problem) = size_problem(&now, update.size) else { return Ok(()) };
            if holds(targets, inode, update, repair).await? {
                summary.findings.push(finding(inode, problem, repair));
                return Ok(());
            }
        }
        Ok(())
    }

    /// File size that the listed objects imply.
    fn implied(&self, file: &ScannedInode) -> Option<u64> {
        let layout = file.layout.as_ref()?;
        let inode = file.entry.attributes.inode;
        let size = |(slot, location): (u32, Location)| {
            let holder = holder(inode, location);
            let places = self.objects.get(&layout.object(inode, slot))?.iter();
            // An object on an MDT and one on an OST can have the same name, and be of two files.
            let sizes = places.filter(|(role, _)| *role == holder).map(|(_, attributes)| attributes.size);
            sizes.max().map(|object_size| layout.file_size(slot, object_size))
        };
        Some(layout.objects().filter_map(size).max().unwrap_or(0))
    }
}

/// Whether data cannot be read because of what is on a disk, not because a target cannot be asked.
fn is_damage(error: &FsError) -> bool {
    use FsError::{Corrupt, CorruptOnMdt, Damaged, Device};
    matches!(error, Corrupt { .. } | CorruptOnMdt { .. } | Damaged(_) | Device { .. })
}

/// Whether all files are known. Of those of a deactivated MDT nothing is, and they may have come
/// from any other one with their objects.
pub(super) fn knows_all_files(deactivated: &[TargetRole]) -> bool {
    !deactivated.iter().any(|role| matches!(role, TargetRole::Mdt(_)))
}

/// Those of an OST's objects that are seen to be damaged without reading them.
async fn check(targets: &Targets, role: TargetRole, objects: Vec<ObjectId>) -> FsResult<BTreeMap<ObjectId, String>> {
    match targets.objects(role, OstRequest::Check(objects)).await? {
        OstReply::Damage(found) => Ok(found.into_iter().collect()),
        reply => Err(unexpected(reply)),
    }
}

/// An object that may belong to no file.
struct Suspect {
    object: ObjectId,
    role: TargetRole,
    attributes: ObjectAttributes,
}

impl Suspect {
    /// Whether the file has it, or will once its client has told: an MDT that recovers may know an
    /// older layout than a client that wrote to it, and knows of no open files.
    fn may_be_of(&self, file: &ScannedInode) -> bool {
        file.busy || belongs(file, self.object, self.role)
    }

    /// Whether it belongs to no file of those whose objects bear the number of another file.
    fn is_of_none(&self, holders: &BTreeMap<InodeNumber, ScannedInode>) -> bool {
        !holders.get(&self.object.inode).is_some_and(|file| self.may_be_of(file))
    }
}

/// Those that do belong to none: their file is not merely younger than the list of inodes, nor is
/// their removal on the way.
async fn orphans(targets: &Targets, clock: &dyn Clock, mut suspects: Vec<Suspect>) -> FsResult<Vec<Suspect>> {
    /// Removed files' objects are destroyed within moments; as long as some go, the rest is waited
    /// for.
    const TIMEOUT: Duration = Duration::from_secs(5);
    let mut deadline = clock.now() + TIMEOUT;
    loop {
        let before = suspects.len();
        let mut left = Vec::new();
        for suspect in suspects {
            let owned = match targets.look_again(suspect.object.inode).await? {
                Some(file) => suspect.may_be_of(&file),
                None => false,
            };
            if !owned && still_there(targets, suspect.object, suspect.role).await? {
                left.push(suspect);
            }
        }
        suspects = left;
        if suspects.len() < before {
            deadline = clock.now() + TIMEOUT;
        }
        if suspects.is_empty() || clock.now() >= deadline {
            break;
        }
        rt::clock::sleep(clock, TIMEOUT / 10).await;
    }
    // Layouts may have been swapped since the list of inodes was made, and while it is made again:
    // a file that is overlooked once is found by the second look.
    for _ in 0..2 {
        if !suspects.is_empty() {
            let holders = targets.holders().await?;
            suspects.retain(|suspect| suspect.is_of_none(&holders));
        }
    }
    Ok(suspects)
}

/// What is wrong with the size of a file whose objects end at `size`.
fn size_problem(file: &ScannedInode, size: u64) -> Option<String> {
    let known = file.entry.attributes.size;
    match file.entry.size_unknown {
        Some(_) => Some(format!("the size was not reported to the MDT: {size} bytes by the objects")),
        None if known == size => None,
        None if known > size => Some(format!("data are missing: the size is {known} bytes, the objects end at {size}")),
        None => Some(format!("wrong size: {known} bytes, the objects end at {size}")),
    }
}

/// Whether no client changed the file since the epoch was told, so that what its objects said
/// holds. With `repair` the MDT takes it over in the same step.
async fn holds(targets: &Targets, inode: InodeNumber, update: SizeUpdate, repair: bool) -> FsResult<bool> {
    if !repair {
        let now = targets.look_again(inode).await?;
        return Ok(now.is_some_and(|now| now.entry.quiet == Some(update.epoch)));
    }
    match targets.mdt_of(inode)?.call(MdtRequest::RepairSize(Credentials::root(), inode, update)).await {
        Ok(_) => Ok(true),
        Err(FsError::Busy | FsError::Stale) => Ok(false),
        Err(error) => Err(error),
    }
}

fn finding(inode: InodeNumber, problem: String, repaired: bool) -> Finding {
    Finding { inode, problem, repaired }
}

fn belongs(file: &ScannedInode, object: ObjectId, role: TargetRole) -> bool {
    let Some(layout) = &file.layout else { return false };
    let inode = file.entry.attributes.inode;
    layout
        .location(object.slot)
        .is_some_and(|location| holder(inode, location) == role && layout.object(inode, object.slot) == object)
}

async fn still_there(targets: &Targets, object: ObjectId, role: TargetRole) -> FsResult<bool> {
    match targets.objects(role, OstRequest::ListObjects(Some(object.predecessor()), 1)).await? {
        OstReply::Objects(page) => Ok(page.first().is_some_and(|(found, _)| *found == object)),
        reply => Err(unexpected(reply)),
    }
}

/// Size, blocks and times of a file as its objects have them now.
async fn glimpse(targets: &Targets, file: &ScannedInode, epoch: u64) -> FsResult<SizeUpdate> {
    let mut update = SizeUpdate { epoch, size: 0, blocks: 0, mtime: None, changes: 0 };
    let Some(layout) = &file.layout else { return Ok(update) };
    let inode = file.entry.attributes.inode;
    for (slot, location) in layout.objects() {
        let role = holder(inode, location);
        let request = OstRequest::Glimpse(vec![layout.object(inode, slot)]);
        let found = match targets.objects(role, request).await? {
            OstReply::Attributes(found) => found,
            reply => return Err(unexpected(reply)),
        };
        for attributes in found {
            update.size = update.size.max(layout.file_size(slot, attributes.size));
            update.blocks = update.blocks.saturating_add(attributes.blocks);
            update.mtime = update.mtime.max(Some(attributes.mtime));
            update.changes = update.changes.saturating_add(attributes.changes);
        }
    }
    Ok(update)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use layout::{Layout, PlainLayout, StripeSpec};
    use rpc::{
        Answer, Call, Endpoint, Handler, Import, ImportOptions, Server, ServerOptions, SessionEvent,
        message::{Reply, Request, mdt::Entry},
    };
    use rt::{BoxFuture, real::Cores};
    use types::{Attributes, ClientId, FileKind, OstIndex, ProtocolError, Slot, Xid};

    use super::*;

    const FILE: InodeNumber = InodeNumber(7);
    const NAMER: InodeNumber = InodeNumber(9);

    /// A file with one object, which bears the number of another one that is gone.
    fn migrated(busy: bool) -> ScannedInode {
        let attributes = Attributes { mode: 0o644, links: 1, ..Attributes::zeroed(FILE, FileKind::Regular) };
        let plain = PlainLayout { stripe_bytes: 65536, osts: vec![OstIndex(0)] };
        let layout = Layout::plain(Layout::FIRST_GENERATION, plain, StripeSpec::default());
        let layout = Some(Layout { named_by: Some(NAMER), ..layout });
        let entry = Entry::of(attributes);
        ScannedInode { entry, layout, busy, damaged: false }
    }

    /// While an MDT recovers, which has lost the growth that gave it: its file is busy then, as all
    /// are.
    #[test]
    fn an_object_that_a_migrated_file_may_yet_claim_is_no_orphan() {
        let suspect = |slot: u32| {
            let object = ObjectId::new(NAMER, slot);
            Suspect { object, role: TargetRole::Ost(OstIndex(0)), attributes: ObjectAttributes::default() }
        };
        let among = |busy: bool| BTreeMap::from([(NAMER, migrated(busy))]);
        assert!(!suspect(0).is_of_none(&among(false)), "the file has it");
        assert!(suspect(1).is_of_none(&among(false)), "nobody has it");
        assert!(suspect(1).is_of_none(&BTreeMap::new()));
        assert!(!suspect(1).is_of_none(&among(true)), "its client may come back");
    }

    const OBJECT: ObjectId = ObjectId::new(InodeNumber(0x101), 0);

    /// An OST that was made before there was `Check`, with one object, which is damaged.
    struct OlderOst;

    impl Handler for OlderOst {
        fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
            let reply = match call.request {
                Request::Ost(OstRequest::ListObjects(None, _)) => {
                    Ok(OstReply::Objects(vec![(OBJECT, ObjectAttributes::default())]))
                }
                Request::Ost(OstRequest::ListObjects(..)) => Ok(OstReply::Objects(Vec::new())),
                Request::Ost(OstRequest::Verify(object)) => {
                    Err(FsError::Corrupt { object, ost: OstIndex(3), offset: 0 })
                }
                _ => Err(ProtocolError::UnknownMessage(0x020e).into()),
            };
            Box::pin(std::future::ready(Answer::new(reply.map(Reply::Ost))))
        }

        fn service(&self, _: &Request) -> &'static str {
            "ost"
        }

        fn persistent_reply(&self, _: ClientId, _: Slot) -> Option<(Xid, Reply)> {
            None
        }

        fn session_event(self: Arc<Self>, _: SessionEvent) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn a_target_of_an_older_version_is_named_and_the_check_goes_on() {
        let cores = Cores::start(1).unwrap();
        let seams = crate::seams(&cores);
        let role = TargetRole::Ost(OstIndex(3));
        for verify in [false, true] {
            let found = cores.block_on(async {
                let server = Server::new(seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
                server.add_target("stria-OST0003", Arc::new(OlderOst), Duration::from_secs(30));
                let (endpoint, options) = (Endpoint::Local(server), ImportOptions::default());
                let import = Import::new(
                    seams.clone(),
                    "stria-OST0003",
                    endpoint,
                    rpc::Principal::of_test(1, rpc::Role::Repair),
                    options,
                    None,
                );
                let osts = vec![(role, import.clone())];
                let targets = Targets { mgs: import, mdts: Vec::new(), osts, deactivated: Vec::new() };
                let mut summary = Summary::default();
                let count = ObjectCheck::default()
                    .read_target(&targets, role, verify, &mut Checkpoint::default(), &mut summary, &mut Progress::new())
                    .await;
                targets.close().await;
                count.map(|count| (count, summary))
            });
            let (count, summary) = found.unwrap();
            assert_eq!(count, 1);
            let [(ost, reason)] = &summary.unchecked[..] else { panic!("once: {:?}", summary.unchecked) };
            let told = super::super::unchecked(*ost, reason, verify);
            assert!(told.starts_with("OST0003 runs another version"), "{told}");
            assert!(told.contains("unknown message 0x020e"), "{told}");
            assert_eq!(summary.damaged_objects, u64::from(verify), "reading is known to all versions");
        }
        cores.shutdown();
    }
}
