//! Configuration of a daemon: one TOML file, parsed once, checked as a whole before anything is
//! touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use rpc::message::mgs::TargetRole;
use rt::{Address, Addresses};
use serde::{Deserialize, Serialize};
use types::{MdtIndex, OstIndex, limits};

use crate::processors::{self, CpuList, CpuOptions};

/// Allowed memory of a target in MiB: from the minimum that the tables need to 1 TiB.
const MEMORY_MIB: RangeInclusive<u64> = 16..=1 << 20;

/// What `stria serve` reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the file system, 1-8 characters of `[-_a-zA-Z0-9]`.
    pub fsname: String,
    /// `host:port` to listen on.
    pub listen: String,
    /// `host:port` at which others reach this daemon, if it is not `listen`; several, of different
    /// networks, are separated by commas.
    #[serde(default)]
    pub advertise: Option<String>,
    /// `host:port` of the management service; several are separated by commas and tried in turn.
    /// Not needed on the host that serves it.
    #[serde(default)]
    pub mgs: Option<String>,
    /// File of the server key, for `stria format` on hosts without the management service; `None`:
    /// `/etc/stria/<fsname>.server.key`.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Where the control socket of this daemon appears; `None`: where `stria ctl` looks by itself.
    #[serde(default)]
    pub run_dir: Option<PathBuf>,
    /// Memory for metadata tables of each target, in MiB.
    #[serde(default = "memory_mib_default")]
    pub memory_mib: u64,
    /// Processors that this daemon uses, as `0-3,8`; `None`: all that it may use.
    #[serde(default)]
    pub cpus: Option<String>,
    /// Number of threads that send, receive and execute requests; `None`: one for each processor.
    #[serde(default)]
    pub cores: Option<usize>,
    /// The targets of this host.
    #[serde(rename = "target", default)]
    pub targets: Vec<TargetConfig>,
    /// Parameters set at start, by name or pattern, as `stria ctl set_param` would.
    #[serde(default)]
    pub parameters: BTreeMap<String, toml::Value>,
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TargetToml")]
pub struct TargetConfig {
    /// Role.
    pub role: Role,
    /// Index among the targets of its role, 0-65534; the MGS has none. That of an OST must be
    /// given: otherwise independent hosts would all take the first one.
    pub index: u16,
    /// Directory that holds everything of this target, or its device.
    pub dir: PathBuf,
    /// It has no directory: `dir` is the device, or the file, that has everything.
    #[serde(default)]
    pub on_device: bool,
}

/// A target as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetToml {
    role: Role,
    index: Option<u16>,
    dir: Option<PathBuf>,
    device: Option<PathBuf>,
}

impl TryFrom<TargetToml> for TargetConfig {
    type Error = String;

    fn try_from(TargetToml { role, index, dir, device }: TargetToml) -> Result<Self, String> {
        let (dir, on_device) = match (dir, device) {
            (Some(dir), None) => (dir, false),
            (None, Some(device)) if role == Role::Ost => (device, true),
            (None, Some(_)) => return Err(format!("`device` is for an OST; the {role} needs `dir`")),
            (None, None) => return Err("missing field `dir`".to_owned()),
            (Some(_), Some(device)) => {
                return Err(format!(
                    "`dir` and `device`: with both, give only `dir` here, and --device {} to stria format",
                    device.display()
                ));
            }
        };
        match (role, index) {
            (Role::Ost, None) => Err(format!(
                "missing field `index` for the OST in {}: number the OSTs of all hosts from 0",
                dir.display()
            )),
            (Role::Mgs | Role::Mdt, None) => Ok(Self { role, index: 0, dir, on_device }),
            (_, Some(index)) => Ok(Self { role, index, dir, on_device }),
        }
    }
}

/// Roles of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Management service.
    Mgs,
    /// Metadata target.
    Mdt,
    /// Object storage target.
    Ost,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Mgs => "mgs",
            Role::Mdt => "mdt",
            Role::Ost => "ost",
        })
    }
}

impl TargetConfig {
    /// Name of the target: `MGS`, or `stria-OST0003`.
    pub fn name(&self, fsname: &str) -> String {
        match self.role {
            Role::Mgs => "MGS".to_owned(),
            Role::Mdt => format!("{fsname}-{}", MdtIndex(self.index)),
            Role::Ost => format!("{fsname}-{}", OstIndex(self.index)),
        }
    }

    /// Role as the cluster map has it; the MGS is not in the map.
    pub fn map_role(&self) -> Option<TargetRole> {
        match self.role {
            Role::Mgs => None,
            Role::Mdt => Some(TargetRole::Mdt(MdtIndex(self.index))),
            Role::Ost => Some(TargetRole::Ost(OstIndex(self.index))),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {path}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or a key is unknown, missing or of the wrong type.
    #[error("configuration {path}", path = .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value is wrong.
    #[error("configuration: {0}")]
    Value(String),
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Config = toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        config.check()?;
        Ok(config)
    }

    /// The parameters as `NAME=VALUE`.
    pub fn assignments(&self) -> Vec<String> {
        let assignment = |(name, value): (&String, &toml::Value)| match value {
            toml::Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        };
        self.parameters.iter().map(assignment).collect()
    }

    /// Processors and cores.
    pub(crate) fn cpu_options(&self) -> Result<CpuOptions, ConfigError> {
        let wrong = |key: &str| {
            let key = key.to_owned();
            move |error: String| ConfigError::Value(format!("{key}: {error}"))
        };
        let cpus = self.cpus.as_deref().map(str::parse::<CpuList>).transpose().map_err(wrong("cpus"))?;
        let cores = self.cores.map(|cores| processors::parse_cores(&cores.to_string()));
        Ok(CpuOptions { cpus, cores: cores.transpose().map_err(wrong("cores"))? })
    }

    /// Whether all values make sense together.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |problem: String| Err(ConfigError::Value(problem));
        check_fsname(&self.fsname)?;
        check_address(&self.listen)?;
        for (key, addresses) in [("advertise", &self.advertise), ("mgs", &self.mgs)] {
            addresses.as_deref().map_or(Ok(()), |addresses| check_addresses(key, addresses))?;
        }
        if !MEMORY_MIB.contains(&self.memory_mib) {
            let (min, max) = MEMORY_MIB.into_inner();
            return wrong(format!("memory_mib = {}: use {min} to {max}", self.memory_mib));
        }
        self.cpu_options()?;
        if self.targets.is_empty() {
            return wrong("no [[target]]: name the targets that this daemon serves".to_owned());
        }
        let (mut names, mut dirs) = (BTreeSet::new(), BTreeSet::new());
        for target in &self.targets {
            let name = target.name(&self.fsname);
            if target.index == u16::MAX {
                return wrong(format!("{}: index {} is reserved", target.role, target.index));
            }
            if !dirs.insert(&target.dir) {
                let kind = if target.on_device { "device" } else { "directory" };
                return wrong(format!("two targets use the {kind} {}", target.dir.display()));
            }
            if !names.insert(name.clone()) {
                return wrong(format!("target {name} appears twice"));
            }
        }
        let serves_mgs = self.targets.iter().any(|target| target.role == Role::Mgs);
        match (&self.mgs, serves_mgs) {
            (None, false) => {
                wrong("mgs = \"HOST:PORT\" is missing: name the address of the management service".to_owned())
            }
            (Some(_), true) => wrong("mgs is given, but this daemon serves the MGS itself: remove one".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Whether an address is `host` or `host:port`; whether the host exists is checked when it is used.
fn check_address(listen: &str) -> Result<(), ConfigError> {
    if Address::with_port(listen).is_complete() {
        return Ok(());
    }
    Err(ConfigError::Value(format!(
        "listen = \"{listen}\": expected HOST:PORT, as in 10.0.0.1:{}",
        Address::PORT_DEFAULT
    )))
}

/// The same for lists of addresses.
fn check_addresses(key: &str, addresses: &str) -> Result<(), ConfigError> {
    if Addresses::parse(addresses).is_some() {
        return Ok(());
    }
    Err(ConfigError::Value(format!(
        "{key} = \"{addresses}\": expected HOST:PORT, as in 10.0.0.1:{}, or several separated by commas, at most {}",
        Address::PORT_DEFAULT,
        limits::ADDRESSES_PER_TARGET_MAX
    )))
}

/// Whether a text can name a file system.
pub fn check_fsname(name: &str) -> Result<(), ConfigError> {
    let fits = (1..=limits::FSNAME_BYTES_MAX).contains(&name.len());
    if !fits || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
        return Err(ConfigError::Value(format!(
            "'{name}' cannot name a file system: use 1-{} characters of [-_a-zA-Z0-9]",
            limits::FSNAME_BYTES_MAX
        )));
    }
    Ok(())
}

fn memory_mib_default() -> u64 {
    1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn the_examples_are_valid() {
        for name in ["mds.toml", "oss1.toml", "oss2.toml"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
            Config::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn a_daemon_has_several_addresses_and_finds_the_mgs_at_several() {
        let text = "fsname = 'stria'\nlisten = '0.0.0.0:988'\nadvertise = '10.0.0.2,10.1.0.2:989'\n\
                    mgs = '10.0.0.1,10.1.0.1'\n[[target]]\nrole = 'ost'\nindex = 0\ndir = '/srv/ost0'\n";
        let options = crate::NodeOptions::daemon(&parse(text).unwrap());
        assert_eq!(options.advertise.unwrap().to_string(), "10.0.0.2:988,10.1.0.2:989");
        assert_eq!(options.mgs.unwrap().to_string(), "10.0.0.1:988,10.1.0.1:988");
    }

    #[test]
    fn wrong_configurations_say_what_is_wrong() {
        let head = "fsname = 'stria'\nlisten = '0.0.0.0:988'\n";
        let target = "[[target]]\nrole = 'ost'\nindex = 0\ndir = '/srv/ost0'\n";
        for (text, expected) in [
            (format!("{head}frobnicate = 1\n"), "unknown field `frobnicate`"),
            (format!("{head}[[target]]\nrole = 'osd'\ndir = '/x'\n"), "unknown variant `osd`"),
            (format!("{head}{target}"), "mgs = \"HOST:PORT\" is missing"),
            (format!("{head}mgs = 'a'\n{target}{target}"), "two targets use the directory"),
            (format!("{head}mgs = 'a'\n"), "no [[target]]"),
            (format!("{head}mgs = 'a'\ncpus = '0-'\n{target}"), "cpus: expected processors such as 0-3,8"),
            (format!("{head}mgs = 'a'\ncores = 0\n{target}"), "cores: expected a number of cores from 1 to 1024"),
            (format!("{head}mgs = 'a,a'\n{target}"), "mgs = \"a,a\": expected HOST:PORT"),
            (format!("{head}advertise = 'a:1,b:c'\nmgs = 'a'\n{target}"), "advertise = \"a:1,b:c\": expected"),
            (format!("fsname = 'much too long'\nlisten = ''\nmgs = 'a'\n{target}"), "cannot name a file system"),
            ("listen = 'x'\n".to_owned(), "missing field `fsname`"),
            (format!("{head}mgs = 'a'\n[[target]]\nrole = 'ost'\ndir = '/x'\n"), "missing field `index`"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(expected), "{error}");
        }
    }
}
