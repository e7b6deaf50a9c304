//! What the management service stores: four kv tables and the bytes in them.
//!
//! All integers are little-endian unless they are part of a key; those are big-endian, so that keys
//! sort by value. A `text` is a u16 length in bytes and that much UTF-8. Every value begins with a
//! format version.
//!
//! | table | key | value, version 1 |
//! |---|---|---|
//! | 1 CLUSTER | empty | u8 version, u64 map version, text file system name |
//! | 2 TARGETS | u8 role (1 MDT, 2 OST), u16 index | u8 version, u8 state (0 active, 1 inactive), text uuid, text addresses, separated by commas |
//! | 3 PARAMETERS | u64 ordinal | u8 version, text pattern, text value |
//! | 4 POOLS | name | u8 version, u16 number of OSTs, u16 index of each, ascending |
//!
//! Ordinals of parameters grow; their order is the order in which the parameters were set.

use rpc::message::mgs::{MapTarget, Pool, TargetRole, TargetState};
use types::{
    Damage, FsError, FsResult, MdtIndex, OstIndex, RecordDamage,
    record::{DecodeError, RecordReader, RecordWriter},
};

/// The one record about the file system as a whole.
pub const CLUSTER: kv::Table = kv::Table(1);
/// Targets by role and index.
pub const TARGETS: kv::Table = kv::Table(2);
/// Permanent parameters by ordinal.
pub const PARAMETERS: kv::Table = kv::Table(3);

/// Pools by name.
pub const POOLS: kv::Table = kv::Table(4);

/// Between the addresses of a target; no address contains it.
pub const ADDRESS_SEPARATOR: char = ',';

const FORMAT_VERSION: u8 = 1;
const ROLE_MDT: u8 = 1;
const ROLE_OST: u8 = 2;
const STATE_ACTIVE: u8 = 0;
const STATE_INACTIVE: u8 = 1;

fn malformed(what: &'static str, key: &[u8]) -> FsError {
    Damage::new(what, RecordDamage::Key(key.to_vec())).into()
}

/// Value of the record in [`CLUSTER`].
pub fn encode_cluster(map_version: u64, fsname: &str) -> Vec<u8> {
    RecordWriter::new(FORMAT_VERSION).u64(map_version).short_bytes(fsname.as_bytes()).finish()
}

/// Map version and file system name.
pub fn decode_cluster(value: &[u8]) -> FsResult<(u64, String)> {
    let mut reader = RecordReader::new("cluster record", value, FORMAT_VERSION)?;
    let decoded = (reader.u64()?, reader.short_text()?);
    reader.finish()?;
    Ok(decoded)
}

/// Key in [`TARGETS`].
pub fn encode_role(role: TargetRole) -> Vec<u8> {
    let (tag, index) = match role {
        TargetRole::Mdt(index) => (ROLE_MDT, index.0),
        TargetRole::Ost(index) => (ROLE_OST, index.0),
    };
    let [high, low] = index.to_be_bytes();
    vec![tag, high, low]
}

/// Value in [`TARGETS`].
pub fn encode_target(target: &MapTarget) -> Vec<u8> {
    let state = match target.state {
        TargetState::Active => STATE_ACTIVE,
        TargetState::Inactive => STATE_INACTIVE,
    };
    let addresses = target.addresses.join(&ADDRESS_SEPARATOR.to_string());
    let mut writer = RecordWriter::new(FORMAT_VERSION);
    writer.u8(state).short_bytes(target.uuid.as_bytes()).short_bytes(addresses.as_bytes()).finish()
}

/// Role of a key of [`TARGETS`].
pub fn decode_role(key: &[u8]) -> FsResult<TargetRole> {
    match *key {
        [ROLE_MDT, high, low] => Ok(TargetRole::Mdt(MdtIndex(u16::from_be_bytes([high, low])))),
        [ROLE_OST, high, low] => Ok(TargetRole::Ost(OstIndex(u16::from_be_bytes([high, low])))),
        _ => Err(malformed("target", key)),
    }
}

/// A record of [`TARGETS`].
pub fn decode_target(key: &[u8], value: &[u8]) -> FsResult<MapTarget> {
    let role = decode_role(key)?;
    let mut reader = RecordReader::new("target record", value, FORMAT_VERSION)?;
    let state = match reader.u8()? {
        STATE_ACTIVE => TargetState::Active,
        STATE_INACTIVE => TargetState::Inactive,
        other => return Err(reader.invalid(format_args!("state {other}")).into()),
    };
    let (uuid, addresses) = (reader.short_text()?, reader.short_text()?);
    reader.finish()?;
    let addresses = addresses.split(ADDRESS_SEPARATOR).map(str::to_owned).collect();
    Ok(MapTarget { role, state, uuid, addresses })
}

/// Key in [`PARAMETERS`].
pub fn encode_ordinal(ordinal: u64) -> Vec<u8> {
    ordinal.to_be_bytes().to_vec()
}

/// Value in [`PARAMETERS`].
pub fn encode_parameter(pattern: &str, value: &str) -> Vec<u8> {
    let mut writer = RecordWriter::new(FORMAT_VERSION);
    writer.short_bytes(pattern.as_bytes()).short_bytes(value.as_bytes()).finish()
}

/// A record of [`PARAMETERS`]: ordinal, pattern, value.
pub fn decode_parameter(key: &[u8], value: &[u8]) -> FsResult<(u64, String, String)> {
    let ordinal = key.try_into().map_err(|_| malformed("parameter", key))?;
    let mut reader = RecordReader::new("parameter record", value, FORMAT_VERSION)?;
    let decoded = (u64::from_be_bytes(ordinal), reader.short_text()?, reader.short_text()?);
    reader.finish()?;
    Ok(decoded)
}

/// Value in [`POOLS`]; the key is the name.
pub fn encode_pool(pool: &Pool) -> Vec<u8> {
    let count =
        u16::try_from(pool.osts.len()).expect("a pool has at most 65535 OSTs: indices are 16 bits and distinct");
    let mut writer = RecordWriter::new(FORMAT_VERSION);
    writer.u16(count);
    for ost in &pool.osts {
        writer.u16(ost.0);
    }
    writer.finish()
}

/// A record of [`POOLS`].
pub fn decode_pool(key: &[u8], value: &[u8]) -> FsResult<Pool> {
    let name = String::from_utf8(key.to_vec()).map_err(|_| malformed("pool", key))?;
    let mut reader = RecordReader::new("pool record", value, FORMAT_VERSION)?;
    let count = reader.u16()?;
    let osts = (0..count).map(|_| reader.u16().map(OstIndex)).collect::<Result<Vec<_>, DecodeError>>()?;
    reader.finish()?;
    if !osts.is_sorted_by(|a, b| a < b) {
        return Err(Damage::new(format!("pool record '{name}'"), "OSTs out of order").into());
    }
    Ok(Pool { name, osts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> MapTarget {
        MapTarget {
            role: TargetRole::Ost(OstIndex(0x102)),
            uuid: "u1".into(),
            addresses: vec!["h:988".into(), "i:1".into()],
            state: TargetState::Inactive,
        }
    }

    fn pool() -> Pool {
        Pool { name: "fast".into(), osts: vec![OstIndex(1), OstIndex(0x102)] }
    }

    #[test]
    fn bytes_stay_as_documented() {
        assert_eq!(encode_role(target().role), [2, 1, 2]);
        assert_eq!(encode_target(&target()), b"\x01\x01\x02\x00u1\x09\x00h:988,i:1");
        assert_eq!(encode_cluster(258, "stria"), b"\x01\x02\x01\0\0\0\0\0\0\x05\x00stria");
        assert_eq!(encode_ordinal(258), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(encode_pool(&pool()), b"\x01\x02\x00\x01\x00\x02\x01");
        assert_eq!(encode_parameter("a.b", "1"), b"\x01\x03\x00a.b\x01\x001");
    }

    #[test]
    fn records_survive_the_trip() {
        assert_eq!(decode_target(&encode_role(target().role), &encode_target(&target())), Ok(target()));
        assert_eq!(decode_cluster(&encode_cluster(7, "stria")), Ok((7, "stria".into())));
        assert_eq!(decode_pool(b"fast", &encode_pool(&pool())), Ok(pool()));
        let parameter = decode_parameter(&encode_ordinal(3), &encode_parameter("osc.*.x", "8"));
        assert_eq!(parameter, Ok((3, "osc.*.x".into(), "8".into())));
    }

    #[test]
    fn damage_is_an_error() {
        let (key, value) = (encode_role(target().role), encode_target(&target()));
        for length in 0..value.len() {
            assert!(matches!(decode_target(&key, &value[..length]), Err(FsError::Damaged(_))), "{length}");
        }
        let longer = [value.as_slice(), b"x"].concat();
        assert!(matches!(decode_target(&key, &longer), Err(FsError::Damaged(_))));
        assert!(matches!(decode_pool(b"p", b"\x01\x02\x00\x01\x00\x01\x00"), Err(FsError::Damaged(_))), "twice");
        assert!(matches!(decode_pool(b"p", b"\x01\xff\xff"), Err(FsError::Damaged(_))));
        assert!(matches!(decode_target(&[3, 0, 0], &value), Err(FsError::Damaged(_))));
        let newer = RecordDamage::Version { found: 9, expected: FORMAT_VERSION };
        assert_eq!(decode_cluster(&[9, 0]), Err(Damage::new("cluster record", newer).into()));
        assert!(matches!(decode_parameter(&[1], &[1]), Err(FsError::Damaged(_))));
    }
}
