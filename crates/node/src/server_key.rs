//! The server key of a process: that of its targets, all of which have the same.

use std::{io, path::Path};

use anyhow::{Context, bail};
use rpc::{Key, Keyring, auth::KeyKind};

use super::{
    config::TargetConfig,
    format,
    identity::Identity,
    key_file::{self, KeyFileError, SERVER_KEY_FILE},
    one_device,
};

/// The server key of those targets that are there; `None` if none is. Fails if they do not have the
/// same.
pub fn of_targets(targets: &[TargetConfig], fsname: &str) -> anyhow::Result<Option<Key>> {
    let mut found: Option<(Key, &TargetConfig)> = None;
    for target in targets.iter().filter(|target| format::is_target(&target.dir)) {
        Identity::expect(target, fsname)?;
        let key = of_target(target, fsname)?;
        if let Some((other, first)) = &found
            && *other != key
        {
            bail!(
                "{} and {} have different server keys, so they belong to different file systems of the name '{fsname}'",
                first.dir.display(),
                target.dir.display()
            );
        }
        found = Some((key, target));
    }
    Ok(found.map(|(key, _)| key))
}

fn of_target(target: &TargetConfig, fsname: &str) -> anyhow::Result<Key> {
    if one_device::is_device(&target.dir) {
        return one_device::server_key(&target.dir);
    }
    match key_file::read_of_target(&target.dir, fsname) {
        Err(KeyFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => bail!(
            "{} is missing: copy it from the directory of another target of file system '{fsname}'",
            target.dir.join(SERVER_KEY_FILE).display()
        ),
        keys => of_keyring(&keys?),
    }
}

/// The server key in the file that a configuration names, or else in the usual place.
pub fn find(named: Option<&Path>, fsname: &str) -> anyhow::Result<Key> {
    of_keyring(&key_file::find(named, fsname, KeyKind::Server, "key = \"FILE\" in the configuration")?)
}

fn of_keyring(keys: &Keyring) -> anyhow::Result<Key> {
    Ok(keys.key(KeyKind::Server).context("the file holds a server key")?.clone())
}
