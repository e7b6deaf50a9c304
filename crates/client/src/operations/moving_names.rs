//! Requests for names that move to the shards of their directory
//! (docs/decisions/0062-directories-that-split.md). A shard may hear of names that have moved later
//! than a client: then this is sent back and forth, and pauses.

use rpc::{
    Answered, Question,
    message::{MdtReply, MdtRequest, mdt::Lookup},
};
use types::{Credentials, DirectoryMap, FsError, FsResult, InodeNumber};

use crate::{
    FileSystem,
    name_places::NamePlaces,
    targets::{
        awaited_mdts::Pauses,
        connection::{stale_if_evicted, unexpected},
    },
};

/// How often a request is sent elsewhere before there are pauses.
const TURNS: u32 = 2;

/// How often a request was sent elsewhere.
#[derive(Default)]
pub(crate) struct Turns {
    count: u32,
    pauses: Pauses,
}

/// Whether a request to a shard has failed because there is no such shard.
pub(crate) fn lacks_shard(outcome: &FsResult<Answered<MdtReply>>, at: InodeNumber) -> bool {
    at.is_shard() && matches!(outcome, Err(FsError::Stale))
}

impl FileSystem {
    /// A request was answered with this map: whether it is to be sent elsewhere for that, perhaps
    /// after a pause.
    pub(crate) async fn turns(&self, map: &DirectoryMap, places: &mut NamePlaces, turns: &mut Turns) -> FsResult<bool> {
        if !places.turn(map) {
            return Ok(false);
        }
        if !map.shards.is_empty() {
            self.directory_maps.learn(map.clone())?;
        }
        turns.count = turns.count.saturating_add(1);
        if turns.count > TURNS {
            self.pause(&mut turns.pauses, map.master.mdt()).await;
        }
        Ok(true)
    }

    /// The directory that has a name, while names move: a shard, or the directory itself.
    pub(crate) async fn place_of_name(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &[u8],
    ) -> FsResult<InodeNumber> {
        let mut places = NamePlaces::default();
        let lookup = MdtRequest::Lookup(who.clone(), Lookup { parent, name: name.to_vec() });
        let asked = self.call_placed(parent, Question::from(lookup), &mut places).await;
        match asked.map_err(stale_if_evicted)?.reply {
            MdtReply::Absent | MdtReply::Entry(_) | MdtReply::Remote(_) => {
                Ok(places.of_new(&self.directory_maps, parent, name))
            }
            reply => Err(unexpected(reply)),
        }
    }
}
