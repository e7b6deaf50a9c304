//! Random operations on one file, and the vector of bytes they must agree with.

use std::sync::Arc;

use client::{AllocateMode, FileSystem, OpenFile};
use proptest::prelude::*;
use rpc::message::mdt::{OpenFlags, open_flag};
use types::Credentials;

use super::{READ_WRITE, append, read, size, write};

pub const STRIPE: u64 = 65536;
/// Offsets stay below this: a few rounds of stripes.
pub const SPAN: u64 = 8 * STRIPE;

#[derive(Clone, Debug)]
pub enum Step {
    Write { offset: u64, bytes: u64 },
    Append { bytes: u64 },
    Truncate { size: u64, by_path: bool },
    Punch { offset: u64, bytes: u64 },
    Zero { offset: u64, bytes: u64, extend: bool },
    Read { offset: u64, bytes: u64 },
    Reopen { truncate: bool },
}

/// Offsets near stripe boundaries, and anywhere.
fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..SPAN,
        (0..SPAN / STRIPE, 0u64..20).prop_map(|(stripe, bytes)| (stripe * STRIPE + bytes).saturating_sub(10)),
    ]
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![1..200u64, 1..3 * STRIPE]
}

pub fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (offsets(), lengths()).prop_map(|(offset, bytes)| Step::Write { offset, bytes }),
        1 => lengths().prop_map(|bytes| Step::Append { bytes }),
        2 => (offsets(), any::<bool>()).prop_map(|(size, by_path)| Step::Truncate { size, by_path }),
        1 => (offsets(), lengths()).prop_map(|(offset, bytes)| Step::Punch { offset, bytes }),
        1 => (offsets(), lengths(), any::<bool>())
            .prop_map(|(offset, bytes, extend)| Step::Zero { offset, bytes, extend }),
        5 => (offsets(), lengths()).prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
        1 => prop::bool::weighted(0.2).prop_map(|truncate| Step::Reopen { truncate }),
    ]
}

fn put(model: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[offset as usize..end].copy_from_slice(data);
}

fn clear(model: &mut [u8], offset: u64, bytes: u64) {
    let end = (offset + bytes).min(model.len() as u64);
    if offset < end {
        model[offset as usize..end as usize].fill(0);
    }
}

pub struct Client {
    pub fs: Arc<FileSystem>,
    pub file: Arc<OpenFile>,
}

impl Client {
    pub async fn apply(&mut self, step: &Step, mark: u8, model: &mut Vec<u8>) {
        let Client { fs, file } = self;
        let inode = file.inode();
        match *step {
            Step::Write { offset, bytes } => {
                write(fs, file, offset, &vec![mark; bytes as usize]).await;
                put(model, offset, &vec![mark; bytes as usize]);
            }
            Step::Append { bytes } => {
                append(fs, file, &vec![mark; bytes as usize]).await;
                model.extend(vec![mark; bytes as usize]);
            }
            Step::Truncate { size, by_path } => {
                let through = (!by_path).then_some(&*file);
                let shown = fs.truncate(&Credentials::root(), inode, through, size).await.unwrap();
                assert_eq!(shown.size, size);
                model.resize(size as usize, 0);
            }
            Step::Punch { offset, bytes } => {
                fs.allocate(file, AllocateMode::Punch, offset, bytes).await.unwrap();
                clear(model, offset, bytes);
            }
            Step::Zero { offset, bytes, extend } => {
                fs.allocate(file, AllocateMode::Zero { extend }, offset, bytes).await.unwrap();
                clear(model, offset, bytes);
                if extend && model.len() < (offset + bytes) as usize {
                    model.resize((offset + bytes) as usize, 0);
                }
            }
            Step::Read { offset, bytes } => {
                let end = (offset + bytes).min(model.len() as u64).max(offset);
                let start = offset.min(model.len() as u64);
                let expected = &model[start as usize..end.min(model.len() as u64).max(start) as usize];
                assert!(read(fs, file, offset, bytes as usize).await == expected, "read of {bytes} at {offset}");
            }
            Step::Reopen { truncate } => {
                let flags = READ_WRITE | if truncate { open_flag::TRUNCATE } else { 0 };
                let again = fs.open(&Credentials::root(), inode, OpenFlags(flags)).await.unwrap();
                fs.close(std::mem::replace(file, again), None).await.unwrap();
                if truncate {
                    model.clear();
                }
            }
        }
    }
}

/// Two clients apply a script in turn, each step by the one it names; after each step the other one
/// looks.
pub async fn play(mut clients: [Client; 2], script: &[(bool, Step)]) -> (Vec<u8>, [Client; 2]) {
    let inode = clients[0].file.inode();
    let mut model = Vec::new();
    for (index, (who, step)) in script.iter().enumerate() {
        clients[usize::from(*who)].apply(step, index as u8 + 1, &mut model).await;
        let other = &clients[usize::from(!*who)].fs;
        assert_eq!(size(other, inode).await, model.len() as u64, "after {step:?}");
    }
    let whole = read(&clients[0].fs, &clients[0].file, 0, 3 * SPAN as usize + model.len()).await;
    assert!(whole == model, "the contents differ");
    (model, clients)
}
