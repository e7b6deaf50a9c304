//! The one table of opcodes: `family << 8 | variant`, where the variant is the request's place in its enum.
//! A reply carries its request's opcode.

use std::fmt;

use crate::message::{MdtRequest, MgsRequest, OstRequest, Request};

/// What the header of a frame says its body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u16);

/// Opens a session; handled by this crate.
pub const CONNECT: Opcode = Opcode(0x0001);

/// Requests by the kind of target they go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// 0x01..: metadata targets.
    Mdt = 1,
    /// 0x02..: object storage targets.
    Ost = 2,
    /// 0x03..: the management service.
    Mgs = 3,
}

impl Family {
    /// The family that a target of this name understands: `MGS`, `<fsname>-MDT<index>`, `<fsname>-OST<index>`.
    pub fn of_target(name: &str) -> Option<Family> {
        let role = name.rsplit('-').next().unwrap_or(name);
        match role.get(..3)? {
            "MDT" => Some(Family::Mdt),
            "OST" => Some(Family::Ost),
            "MGS" => Some(Family::Mgs),
            _ => None,
        }
    }

    /// The request that keeps a session's lease.
    pub fn ping(self) -> Request {
        match self {
            Family::Mdt => Request::Mdt(MdtRequest::Ping),
            Family::Ost => Request::Ost(OstRequest::Ping),
            Family::Mgs => Request::Mgs(MgsRequest::Ping),
        }
    }

    /// The request that ends a session; the MGS has none.
    pub fn disconnect(self) -> Option<Request> {
        match self {
            Family::Mdt => Some(Request::Mdt(MdtRequest::Disconnect)),
            Family::Ost => Some(Request::Ost(OstRequest::Disconnect)),
            Family::Mgs => None,
        }
    }
}

/// What is known of a kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// For statistics and logs.
    pub name: &'static str,
    /// It changes nothing: its reply is not kept; a repetition executes it again.
    pub repeatable: bool,
}

const fn reads(name: &'static str) -> Operation {
    Operation { name, repeatable: true }
}

const fn changes(name: &'static str) -> Operation {
    Operation { name, repeatable: false }
}

const MDT: &[Operation] = &[
    reads("mdt_lookup"),
    reads("mdt_getattr"),
    changes("mdt_setattr"),
    reads("mdt_access"),
    changes("mdt_create"),
    changes("mdt_create_unnamed"),
    changes("mdt_open"),
    changes("mdt_close"),
    changes("mdt_settle"),
    changes("mdt_exclusive_begin"),
    changes("mdt_exclusive_end"),
    changes("mdt_clear_privileges"),
    changes("mdt_unlink"),
    changes("mdt_rename"),
    changes("mdt_link"),
    reads("mdt_readlink"),
    reads("mdt_readdir"),
    reads("mdt_getxattr"),
    reads("mdt_listxattr"),
    changes("mdt_setxattr"),
    changes("mdt_removexattr"),
    reads("mdt_get_layout"),
    changes("mdt_set_default_layout"),
    reads("mdt_inode_paths"),
    changes("mdt_set_lock"),
    changes("mdt_cancel_lock"),
    reads("mdt_get_lock"),
    reads("mdt_statfs"),
    reads("mdt_commit"),
    changes("mdt_reclaim"),
    reads("mdt_ping"),
    changes("mdt_check"),
    reads("mdt_scan_inodes"),
    changes("mdt_repair_size"),
    changes("mdt_disconnect"),
    changes("mdt_instantiate"),
    changes("mdt_change_data"),
    reads("mdt_read_data"),
    changes("mdt_create_with_data"),
    reads("mdt_read_file"),
    changes("mdt_change_layout"),
    reads("mdt_report_full"),
    changes("mdt_place_elsewhere"),
    changes("mdt_data_version"),
    changes("mdt_swap_layouts"),
    changes("mdt_renew_layout"),
    changes("mdt_leave_out"),
];

const OST: &[Operation] = &[
    changes("ost_write"),
    reads("ost_read"),
    changes("ost_space"),
    reads("ost_seek"),
    reads("ost_glimpse"),
    reads("ost_sync"),
    changes("ost_destroy"),
    reads("ost_statfs"),
    reads("ost_list_objects"),
    reads("ost_verify"),
    changes("ost_evict"),
    reads("ost_ping"),
    changes("ost_disconnect"),
    changes("ost_fence"),
    reads("ost_check"),
];

const MGS: &[Operation] = &[
    changes("mgs_register"),
    reads("mgs_get_map"),
    changes("mgs_set_parameter"),
    changes("mgs_set_state"),
    reads("mgs_ping"),
    changes("mgs_pool_new"),
    changes("mgs_pool_add"),
    changes("mgs_pool_remove"),
    changes("mgs_pool_destroy"),
];

/// Number of all operations: one more than the largest [`Opcode::index`].
pub const OPERATIONS: usize = MDT.len() + OST.len() + MGS.len();

impl Opcode {
    const fn new(family: Family, variant: u8) -> Self {
        Opcode((family as u16) << 8 | variant as u16)
    }

    /// The family, if this version knows it.
    pub fn family(self) -> Option<Family> {
        match self.0 >> 8 {
            1 => Some(Family::Mdt),
            2 => Some(Family::Ost),
            3 => Some(Family::Mgs),
            _ => None,
        }
    }

    /// What is known of it, if this version knows it.
    pub fn operation(self) -> Option<&'static Operation> {
        let table = match self.family()? {
            Family::Mdt => MDT,
            Family::Ost => OST,
            Family::Mgs => MGS,
        };
        table.get(usize::from(self.0 & 0xff))
    }

    /// Place among all operations, for tables of statistics: families one behind the other.
    pub fn index(self) -> Option<usize> {
        self.operation()?;
        let before = match self.family()? {
            Family::Mdt => 0,
            Family::Ost => MDT.len(),
            Family::Mgs => MDT.len() + OST.len(),
        };
        Some(before + usize::from(self.0 & 0xff))
    }

    /// The operation at a place given by [`Opcode::index`].
    pub fn operation_at(index: usize) -> Option<&'static Operation> {
        MDT.iter().chain(OST).chain(MGS).nth(index)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Some(operation) => f.write_str(operation.name),
            None if *self == CONNECT => f.write_str("connect"),
            None => write!(f, "{:#06x}", self.0),
        }
    }
}

/// The opcode of a request.
pub fn of(request: &Request) -> Opcode {
    match request {
        Request::Mdt(request) => Opcode::new(Family::Mdt, mdt(request)),
        Request::Ost(request) => Opcode::new(Family::Ost, ost(request)),
        Request::Mgs(request) => Opcode::new(Family::Mgs, mgs(request)),
    }
}

fn mdt(request: &MdtRequest) -> u8 {
    match request {
        MdtRequest::Lookup(..) => 0,
        MdtRequest::GetAttributes(..) => 1,
        MdtRequest::SetAttributes(..) => 2,
        MdtRequest::Access(..) => 3,
        MdtRequest::Create(..) => 4,
        MdtRequest::CreateUnnamed(..) => 5,
        MdtRequest::Open(..) => 6,
        MdtRequest::Close(..) => 7,
        MdtRequest::Settle(..) => 8,
        MdtRequest::ExclusiveBegin(..) => 9,
        MdtRequest::ExclusiveEnd(..) => 10,
        MdtRequest::ClearPrivileges(..) => 11,
        MdtRequest::Unlink(..) => 12,
        MdtRequest::Rename(..) => 13,
        MdtRequest::Link(..) => 14,
        MdtRequest::ReadLink(..) => 15,
        MdtRequest::ReadDirectory(..) => 16,
        MdtRequest::GetXattr(..) => 17,
        MdtRequest::ListXattr(..) => 18,
        MdtRequest::SetXattr(..) => 19,
        MdtRequest::RemoveXattr(..) => 20,
        MdtRequest::GetLayout(..) => 21,
        MdtRequest::SetDefaultLayout(..) => 22,
        MdtRequest::InodePaths(..) => 23,
        MdtRequest::SetLock(..) => 24,
        MdtRequest::CancelLock(..) => 25,
        MdtRequest::GetLock(..) => 26,
        MdtRequest::StatFs => 27,
        MdtRequest::Commit => 28,
        MdtRequest::Reclaim(..) => 29,
        MdtRequest::Ping => 30,
        MdtRequest::Check(..) => 31,
        MdtRequest::ScanInodes(..) => 32,
        MdtRequest::RepairSize(..) => 33,
        MdtRequest::Disconnect => 34,
        MdtRequest::Instantiate(..) => 35,
        MdtRequest::ChangeData(..) => 36,
        MdtRequest::ReadData(..) => 37,
        MdtRequest::CreateWithData(..) => 38,
        MdtRequest::ReadFile(..) => 39,
        MdtRequest::ChangeLayout(..) => 40,
        MdtRequest::ReportFull(..) => 41,
        MdtRequest::PlaceElsewhere(..) => 42,
        MdtRequest::DataVersion(..) => 43,
        MdtRequest::SwapLayouts(..) => 44,
        MdtRequest::RenewLayout(..) => 45,
        MdtRequest::LeaveOut(..) => 46,
    }
}

fn ost(request: &OstRequest) -> u8 {
    match request {
        OstRequest::Write(..) => 0,
        OstRequest::Read(..) => 1,
        OstRequest::Space(..) => 2,
        OstRequest::Seek(..) => 3,
        OstRequest::Glimpse(..) => 4,
        OstRequest::Sync(..) => 5,
        OstRequest::Destroy(..) => 6,
        OstRequest::StatFs => 7,
        OstRequest::ListObjects(..) => 8,
        OstRequest::Verify(..) => 9,
        OstRequest::Evict(..) => 10,
        OstRequest::Ping => 11,
        OstRequest::Disconnect => 12,
        OstRequest::Fence(..) => 13,
        OstRequest::Check(..) => 14,
    }
}

fn mgs(request: &MgsRequest) -> u8 {
    match request {
        MgsRequest::Register(..) => 0,
        MgsRequest::GetMap(..) => 1,
        MgsRequest::SetParameter(..) => 2,
        MgsRequest::SetState(..) => 3,
        MgsRequest::Ping => 4,
        MgsRequest::PoolNew(..) => 5,
        MgsRequest::PoolAdd(..) => 6,
        MgsRequest::PoolRemove(..) => 7,
        MgsRequest::PoolDestroy(..) => 8,
    }
}
