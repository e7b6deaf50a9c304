//! Compares host files with the records, without reading data: finds those that are missing or too
//! short, and unreferenced ones.
//!
//! Downside: the contents of the files are not checked; for this, everything has to be read
//! (`verify_object`). To list unreferenced files, the names of all host files are held in memory at
//! once.

use std::sync::atomic::Ordering;

use kv::Loading;
use rpc::message::ost::DAMAGE_BYTES_MAX;
use types::{FsError, FsResult, ObjectId, limits::BLOCK_BYTES};

use super::{
    DirectoryStore, OBJECT_DIRECTORY, host_file, parse_host_file,
    records::{Access, Records},
};
use crate::{chunk_record::CHUNK_BLOCKS, service_threads::SERVICE};

/// A file below the directory of host files that belongs to no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreferencedFile {
    /// Its path within the target.
    pub file: String,
    /// The object whose host file it would be, by its name; `None`: it is not one of StriaFS.
    pub object: Option<ObjectId>,
}

impl DirectoryStore {
    /// What of these objects' host files is missing, in words that an answer has room for. Objects
    /// that do not exist (any more) miss nothing.
    pub(super) async fn check_files(&self, objects: &[ObjectId]) -> FsResult<Vec<(ObjectId, String)>> {
        let mut problems = Vec::new();
        for object in objects {
            match self.check_file(*object).await {
                Ok(problem) => problems.extend(problem.map(|problem| (*object, problem))),
                // Also of its record.
                Err(FsError::Damaged(damage)) => problems.push((*object, damage.to_string())),
                Err(error) => return Err(error),
            }
        }
        for (_, problem) in &mut problems {
            problem.truncate(problem.floor_char_boundary(DAMAGE_BYTES_MAX));
        }
        Ok(problems)
    }

    async fn check_file(&self, object: ObjectId) -> FsResult<Option<String>> {
        let (loading, whole) = (&mut Loading::default(), (object, 0..u64::MAX));
        let look = |records: &Records<'_>| records.object(object);
        let (_guard, record) = self.lock_and_look((SERVICE, Access::Shared), whole, loading, look).await?;
        let Some(record) = record.filter(|record| record.blocks > record.inline_blocks) else { return Ok(None) };
        if self.has_device() {
            return self.check_blocks(loading, object).await;
        }
        let file = host_file(object);
        let length = self.device.length(&file).await;
        let length = length.map_err(|error| self.device_error("checking an object", &error))?;
        // Most are as long as their object; where that ends inline or in a hole, the chunks tell.
        if length.is_some_and(|length| length >= record.size) {
            return Ok(None);
        }
        let end = self.end_in_place(loading, object).await?;
        Ok(match length {
            None => Some(format!("object {object} on {}: its host file {file} is missing", self.target)),
            Some(length) if length < end => Some(format!(
                "object {object} on {}: its host file {file} is too short, {length} bytes instead of {end}",
                self.target
            )),
            Some(_) => None,
        })
    }

    /// Where the object's last block in the host file ends, in bytes.
    async fn end_in_place(&self, loading: &mut Loading, object: ObjectId) -> FsResult<u64> {
        let (mut end, mut next) = (0, 0);
        while let Some((chunk, states)) = self.next_chunk(loading, object, next).await? {
            let last = states.states().iter().rposition(|state| state.is_in_place());
            end = last.map_or(end, |last| (chunk * CHUNK_BLOCKS + last as u64 + 1) * BLOCK_BYTES);
            next = chunk + 1;
        }
        Ok(end)
    }

    /// Files that belong to no object. While the target itself is still removing what a crash has
    /// left, such files are not included.
    pub(crate) async fn unreferenced_files(&self) -> FsResult<Vec<UnreferencedFile>> {
        if self.has_device() {
            return Ok(Vec::new());
        }
        let swept = self.swept.load(Ordering::Acquire);
        let names = self.device.list(OBJECT_DIRECTORY).await;
        let mut unreferenced = Vec::new();
        for file in names.map_err(|error| self.device_error("listing objects", &error))? {
            let object = parse_host_file(&file).filter(|object| host_file(*object) == file);
            let is_unreferenced = match object {
                Some(object) => swept && self.is_unreferenced(object).await?,
                None => true,
            };
            if is_unreferenced {
                unreferenced.push(UnreferencedFile { file, object });
            }
        }
        Ok(unreferenced)
    }

    /// Removes the host file of an unknown object; one that has become known is kept.
    pub(crate) async fn remove_unreferenced(&self, object: ObjectId) -> FsResult<()> {
        self.sweep(object).await?;
        let flushed = self.device.flush(&host_file(object)).await;
        flushed.map_err(|error| self.poison("flushing removals", &error))
    }
}

#[cfg(test)]
mod tests {
    use rt::Device;
    use types::InodeNumber;

    use super::{
        super::test_store::{OBJECT, TestStore, quiet},
        *,
    };

    const MIB: u64 = 1 << 20;

    #[tokio::test]
    async fn missing_and_short_host_files_are_noticed_without_reading_them() {
        let target = TestStore::new(quiet()).await;
        let small = ObjectId { slot: 1, ..OBJECT };
        let sparse = ObjectId { slot: 2, ..OBJECT };
        target.write(OBJECT, 0, vec![1; 4 * MIB as usize]).await;
        target.write(small, 0, vec![1; 100]).await;
        target.write(sparse, 0, vec![1; MIB as usize]).await;
        // The object continues after its host file's end.
        target.write(sparse, 9 * MIB, vec![1; 100]).await;
        let all = [OBJECT, small, sparse, ObjectId { slot: 3, ..OBJECT }];
        let check = || target.store().check_files(&all);
        assert_eq!(check().await, Ok(Vec::new()));
        target.objects.truncate(&host_file(OBJECT), MIB).await.unwrap();
        let problems = check().await.unwrap();
        assert!(
            matches!(&problems[..], [(OBJECT, text)] if text.ends_with("too short, 1048576 bytes instead of 4194304"))
        );
        target.objects.remove(&host_file(OBJECT)).await.unwrap();
        let problems = check().await.unwrap();
        assert!(matches!(&problems[..], [(OBJECT, text)] if text.ends_with("is missing")), "{problems:?}");
        target.objects.truncate(&host_file(sparse), MIB - 4096).await.unwrap();
        assert_eq!(check().await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn files_of_nobody_are_told_from_files_of_somebody_else() {
        let target = TestStore::new(quiet()).await;
        target.write(OBJECT, 0, vec![1; MIB as usize]).await;
        assert_eq!(target.store().unreferenced_files().await, Ok(Vec::new()));
        let lost = ObjectId::new(InodeNumber(0x99), 4);
        let foreign = ["objects/junk", "objects/99/zz", "objects/00/0000000000000099.00000004"];
        for file in foreign.iter().copied().chain([&*host_file(lost)]) {
            target.objects.write(file, 0, vec![vec![1; 10].into()]).await.unwrap();
        }
        let unreferenced = target.store().unreferenced_files().await.unwrap();
        let objects: Vec<_> = unreferenced.iter().filter_map(|file| file.object).collect();
        assert_eq!((unreferenced.len(), objects), (4, vec![lost]));
        // What has a record is never removed.
        for object in [lost, OBJECT] {
            target.store().remove_unreferenced(object).await.unwrap();
        }
        let left: Vec<_> =
            target.store().unreferenced_files().await.unwrap().into_iter().map(|found| found.file).collect();
        assert_eq!(left.len(), 3);
        assert!(foreign.iter().all(|file| left.contains(&(*file).to_owned())), "{left:?}");
        assert_eq!(target.objects.length(&host_file(OBJECT)).await.unwrap(), Some(MIB));
    }
}
