//! What a process runs: which targets and clients, where they are, and how it is reached.

use std::path::PathBuf;

use anyhow::Context;
use rpc::{Key, Keyring};
use rt::{Address, Addresses, real::SystemEntropy};

use crate::{
    config::{Config, Role, TargetConfig},
    format,
    identity::Identity,
    preflight, server_key,
    storage::Storage,
};

/// What a process runs.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// File system.
    pub fsname: String,
    /// Where to listen; `None`: only this process uses the targets.
    pub listen: Option<Address>,
    /// The addresses at which others reach this process, if not `listen`.
    pub advertise: Option<Addresses>,
    /// The management service; `None`: a target of this process.
    pub mgs: Option<Addresses>,
    /// Memory for the tables of each target.
    pub memory_bytes: u64,
    /// Targets.
    pub targets: Vec<TargetConfig>,
    /// The keys of a process without targets; targets have them in their directories.
    pub keys: Keyring,
    /// What a process without targets is.
    pub role: rpc::Role,
}

impl NodeOptions {
    /// A whole file system below `directory`: for `up`, benchmarks and the demo.
    pub fn up(directory: PathBuf, mdts: u16, osts: u16) -> Self {
        let target = |role: Role, index: u16| {
            let name = if role == Role::Mgs { "mgs".to_owned() } else { format!("{role}{index}") };
            TargetConfig { role, index, dir: directory.join(name), on_device: false }
        };
        let mut targets = vec![target(Role::Mgs, 0)];
        targets.extend((0..mdts).map(|index| target(Role::Mdt, index)));
        targets.extend((0..osts).map(|index| target(Role::Ost, index)));
        Self {
            fsname: "stria".to_owned(),
            listen: None,
            advertise: None,
            mgs: None,
            memory_bytes: 256 << 20,
            targets,
            keys: Keyring::default(),
            role: rpc::Role::Client,
        }
    }

    /// What a daemon's configuration says, which was checked.
    pub fn daemon(config: &Config) -> Self {
        Self {
            fsname: config.fsname.clone(),
            listen: Some(Address::with_port(&config.listen)),
            advertise: config.advertise.as_deref().and_then(Addresses::parse),
            mgs: config.mgs.as_deref().and_then(Addresses::parse),
            memory_bytes: config.memory_mib << 20,
            targets: config.targets.clone(),
            keys: Keyring::default(),
            role: rpc::Role::Client,
        }
    }

    /// A process with clients only, or a tool.
    pub fn client(mgs: &Addresses, fsname: &str, role: rpc::Role, keys: Keyring) -> Self {
        Self {
            fsname: fsname.to_owned(),
            listen: None,
            advertise: None,
            mgs: Some(mgs.clone()),
            memory_bytes: 0,
            targets: Vec::new(),
            keys,
            role,
        }
    }

    /// What this process is to the management service.
    pub(crate) fn mgs_role(&self) -> rpc::Role {
        match self.targets.iter().map(|target| target.role).max() {
            None => self.role,
            Some(Role::Mgs) => rpc::Role::Mgs,
            Some(Role::Mdt) => rpc::Role::Mdt,
            Some(Role::Ost) => rpc::Role::Ost,
        }
    }

    /// Targets that are not there yet.
    pub(crate) fn missing(&self) -> Vec<&TargetConfig> {
        self.targets.iter().filter(|target| !format::is_target(&target.dir)).collect()
    }

    /// Formats the targets that are not there yet; returns how many. Creates nothing if that is
    /// impossible. Formatting of all begins before any is complete, with the last: so an unfinished
    /// one shows how many there were to be.
    pub fn format_missing(&self) -> anyhow::Result<usize> {
        let missing = self.missing();
        preflight::check_targets(&missing, &Storage::HostFiles, &self.fsname)?;
        let existing = server_key::of_targets(&self.targets, &self.fsname)?;
        let key = existing.unwrap_or_else(|| Key::random(&SystemEntropy));
        for target in missing.iter().rev() {
            Identity::begin(&target.dir).with_context(|| format!("cannot format {}", target.name(&self.fsname)))?;
        }
        for target in &missing {
            format::format_target(target, &Storage::HostFiles, &self.fsname, &key, None)
                .with_context(|| format!("cannot format {}", target.name(&self.fsname)))?;
        }
        Ok(missing.len())
    }
}
