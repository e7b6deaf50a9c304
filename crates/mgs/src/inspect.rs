//! The tables of the management service in words, for `stria inspect`: read only, with damage
//! described where it is found.

use kv::{Table, inspect::Schema};
use rpc::message::mgs::TargetRole;
use types::{FsResult, counted};

use crate::tables::{
    CLUSTER, PARAMETERS, POOLS, TARGETS, decode_cluster, decode_parameter, decode_pool, decode_role, decode_target,
};

/// The tables of the management service.
pub struct MgsSchema;

impl Schema for MgsSchema {
    fn table(&self, table: Table) -> Option<&'static str> {
        match table {
            CLUSTER => Some("cluster"),
            TARGETS => Some("targets"),
            PARAMETERS => Some("parameters"),
            POOLS => Some("pools"),
            _ => None,
        }
    }

    fn key(&self, table: Table, key: &[u8]) -> Result<String, String> {
        let described = match table {
            CLUSTER if key.is_empty() => Ok(String::new()),
            TARGETS => decode_role(key).map(|role| match role {
                TargetRole::Mdt(index) => index.to_string(),
                TargetRole::Ost(index) => index.to_string(),
            }),
            POOLS => Ok(String::from_utf8_lossy(key).escape_debug().to_string()),
            PARAMETERS => match key.try_into() {
                Ok(ordinal) => Ok(u64::from_be_bytes(ordinal).to_string()),
                Err(_) => return Err("parameter: malformed key".to_owned()),
            },
            _ => Ok(format!("{key:02x?}")),
        };
        described.map_err(|error| error.to_string())
    }

    fn value(&self, table: Table, key: &[u8], value: &[u8]) -> Result<String, String> {
        describe_value(table, key, value).map_err(|error| error.to_string())
    }

    fn concerns(&self, _table: Table, _key: &[u8], _value: &[u8], _inode: u64) -> bool {
        false
    }
}

fn describe_value(table: Table, key: &[u8], value: &[u8]) -> FsResult<String> {
    Ok(match table {
        CLUSTER => {
            let (version, fsname) = decode_cluster(value)?;
            format!("file system '{}', map version {version}", fsname.escape_debug())
        }
        TARGETS => {
            let target = decode_target(key, value)?;
            format!(
                "{:?} at {}, uuid {}",
                target.state,
                target.addresses.join(",").escape_debug(),
                target.uuid.escape_debug()
            )
        }
        PARAMETERS => {
            let (_, pattern, value) = decode_parameter(key, value)?;
            format!("{}={}", pattern.escape_debug(), value.escape_debug())
        }
        POOLS => {
            let osts: Vec<String> = decode_pool(key, value)?.osts.iter().map(ToString::to_string).collect();
            format!("{}: {}", counted(osts.len(), "OST"), osts.join(", "))
        }
        _ => format!("{value:02x?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{encode_cluster, encode_ordinal, encode_parameter};

    #[test]
    fn records_are_described_and_damage_is_named() {
        let text = MgsSchema.value(CLUSTER, b"", &encode_cluster(7, "stria")).unwrap();
        assert_eq!(text, "file system 'stria', map version 7");
        let (key, value) = (encode_ordinal(3), encode_parameter("a.b", "1"));
        assert_eq!(MgsSchema.key(PARAMETERS, &key).unwrap(), "3");
        assert_eq!(MgsSchema.value(PARAMETERS, &key, &value).unwrap(), "a.b=1");
        assert!(MgsSchema.value(TARGETS, b"x", b"y").is_err());
        for table in (0..=u8::MAX).map(Table) {
            for bytes in [&b""[..], b"\x01", &[0xff; 200]] {
                let _ = (MgsSchema.key(table, bytes), MgsSchema.value(table, bytes, bytes));
            }
        }
    }
}
