//! Parameters of Lustre that do not exist here because there is nothing that they would change,
//! with the reasons, for the message that refuses them.

/// By a part of the name.
const ABSENT: &[(&str, &str)] = &[
    ("max_dirty_mb", "a write reaches its targets before it returns, so a mount holds no dirty data"),
    ("ost_create", "an object is created by its first write, in ost_io: there is no service for it"),
    ("ldlm_cbd", "a client looks at callbacks as they come: no service has threads for them"),
    ("mdt_out", "what other MDTs send is served by mdt_recovery"),
    ("ost_out", MDTS_ONLY),
    ("ost_seq", NUMBERS),
    ("mdt_seqs", NUMBERS),
    ("mdt_seqm", NUMBERS),
    ("mdt_fld", "where an inode is follows from its number: no service is asked for it"),
    ("mdt_setattr", "all that changes or looks at a few records is served by mdt"),
    ("mdt_mdsc", "all that changes or looks at a few records is served by mdt"),
    (
        "req_history",
        "a service keeps no requests that have ended; stats counts them and their times, tuner_log decisions",
    ),
    ("timeouts", TIMEOUTS),
    ("at_min", TIMEOUTS),
    ("at_max", TIMEOUTS),
    ("parallel_dio", "direct I/O is always parallel, as far as the kernel sends requests at once"),
    ("contended_locks", CONTENTION),
    ("contention_seconds", CONTENTION),
    ("pool", LOCK_POOL),
    ("max_ptlrpcds", RPC_THREADS),
    ("ptlrpcd_per_cpt_max", RPC_THREADS),
    ("ptlrpcd_cpts", PROCESSORS),
    ("ptlrpcd_bind_policy", PROCESSORS),
    ("cpu_npartitions", PROCESSORS),
    ("cpu_map", PROCESSORS),
    ("mb_min_to_scan", SEARCH),
    ("mb_order2_req", SEARCH),
    ("mb_order2_reqs", SEARCH),
    ("mb_max_linear_groups", SEARCH),
    ("mb_linear_limit", SEARCH),
    ("mb_best_avail_max_trim_order", SEARCH),
    ("mb_c1_threshold", SEARCH),
    ("mb_c2_threshold", SEARCH),
    ("mb_c3_threshold", SEARCH),
    ("mb_prefetch", LOADING),
    ("mb_prefetch_limit", LOADING),
    ("mb_structs_summary", LOADING),
    ("mb_stream_req", "which windows a write gets is decided by mb_small_req and mb_large_req, as on ldiskfs"),
    (
        "mb_max_inode_prealloc",
        "an object has a window for each place where it was written last; windows that are idle are given back",
    ),
    ("mb_alloc_stats", "the allocator counts in mb_stats"),
    ("mb_history", "single allocations are not kept; mb_stats has the sums"),
    ("reserved_clusters", "what is kept free for overwriting and deletes is in reserved_mb"),
    ("extent_max_zeroout_kb", "blocks that were not written are not part of an extent, so none is filled with zeros"),
    ("inode_readahead_blks", "records of objects are in the tables, which load what a request needs"),
    ("inode_goal", "records of objects are in the tables, not in places of the device"),
    (
        "max_writeback_mb_bump",
        "data of large writes are written to the device before these are answered; how much of others may wait is in \
         writeback_mb",
    ),
    (
        "delayed_allocation_blocks",
        "blocks are given out when a write of 64 KiB or more, or an overwrite of overwrite_kb or more, comes; what is \
         shorter waits in the tables until they are written back: writeback_pending_bytes",
    ),
];

const MDTS_ONLY: &str = "MDTs send requests like those of clients to OSTs: no service is for them alone";
const NUMBERS: &str = "MDTs number their inodes and objects themselves: no service gives out ranges of numbers";
const SEARCH: &str = "an index finds the next group with a free run that is long enough, in a few steps: there are no \
     passes over groups with criteria; mb_max_to_scan limits the search within a group";
const LOADING: &str = "bitmaps of groups are read when they are needed; of all groups free blocks, longest run and \
     number of runs are in memory (mb_groups)";

const TIMEOUTS: &str = "timeouts are not estimated: a call waits for the number of seconds in the parameter timeout";
const CONTENTION: &str = "a lock that several clients want is not refused to any of them: it is asked back when another one \
     changes what it protects";
const LOCK_POOL: &str = "there is no pool of locks: what a client keeps is limited by number (lru_size), by the time without \
     use (lru_max_age) and by memory (max_cached_small_mb), and a server asks for the oldest locks back at its limit";
const RPC_THREADS: &str = "the number of cores, its ptlrpcd threads, is fixed when a process starts (mount option \
     cores=N, stria up --cores N, cores = N in the configuration); while it runs, cpu_pattern chooses its processors";
const PROCESSORS: &str = "a process has one CPU partition; cpu_pattern chooses its processors";

/// Why there is no such parameter, if Lustre has it.
pub fn reason(pattern: &str) -> Option<&'static str> {
    // Pools of targets are another thing.
    let is_of_locks = pattern.starts_with("ldlm");
    let named = |part| ABSENT.iter().find(|(name, _)| *name == part).map(|(_, reason)| *reason);
    pattern.rsplit(['.', '/']).filter(|part| is_of_locks || *part != "pool").find_map(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lustres_names_are_known_and_others_are_not() {
        assert!(reason("osc.*.max_dirty_mb").is_some_and(|reason| reason.contains("no dirty data")));
        assert!(reason("osc/stria-OST0000-osc/max_dirty_mb").is_some());
        assert_eq!(reason("mdc.*.max_mod_rpcs_in_flight"), None);
        assert!(reason("ost.OSS.ost_create.threads_max").is_some_and(|reason| reason.contains("its first write")));
        assert!(reason("ldlm.services.ldlm_cbd.threads_max").is_some_and(|reason| reason.contains("callbacks")));
        assert!(reason("mds.MDS.mdt_out.threads_max").is_some_and(|reason| reason.contains("mdt_recovery")));
        assert_eq!(reason("mds.MDS.mdt.threads_max"), None);
        assert!(reason("ost.OSS.ost_io.timeouts").is_some() && reason("llite.*.parallel_dio").is_some());
        assert!(reason("ldlm.namespaces.mdt-*.contention_seconds").is_some_and(|reason| reason.contains("asked back")));
        for name in ["limit", "recalc_period", "stats"] {
            let pool = reason(&format!("ldlm.namespaces.*.pool.{name}"));
            assert!(pool.is_some_and(|reason| reason.contains("lru_size") && reason.contains("lru_max_age")));
        }
        assert_eq!(reason("osc.*.max_rpcs_in_flight"), None);
        assert_eq!(reason("timeout"), None);
        for name in ["mb_prefetch", "mb_order2_req", "mb_stream_req"] {
            assert!(reason(&format!("obdfilter.*.{name}")).is_some(), "{name}");
        }
        assert_eq!(reason("obdfilter.*.mb_max_to_scan"), None);
    }
}
