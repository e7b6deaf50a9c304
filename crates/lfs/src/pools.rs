//! `lfs pool_list`: pools of a file system, and the OSTs of one.

use std::{ffi::OsString, io::Write, path::Path};

use rpc::message::mgs::{Pool, TargetRole};

use super::{
    channel::{self, Errno, Mount, strerror},
    outcome::{Failure, Outcome, USAGE, print},
};

const HELP: &str = "\
usage: lfs pool_list FSNAME[.POOL] | PATH

Lists the pools of a mounted file system, or the OSTs of one. To create a pool: stria ctl pool_new.
";

/// Runs `lfs pool_list`.
pub fn list(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let [argument] = arguments else { return Err(Failure::new(USAGE, HELP)) };
    let operand = argument.to_string_lossy();
    if operand == "--help" {
        return print(output, format_args!("{HELP}"));
    }
    let failed = |Errno(errno)| Failure::new(errno, format!("lfs pool_list: {operand}: {}", strerror(errno)));
    let (mount, pool) = find(&operand, Path::new(argument)).map_err(failed)?;
    let (fsname, _) = channel::name(&mount.point).map_err(failed)?;
    let pools = channel::pools(&mount.point).map_err(failed)?;
    let Some(pool) = pool else {
        print(output, format_args!("Pools from {fsname}:\n"))?;
        return pools.iter().try_for_each(|pool| print(output, format_args!("{fsname}.{}\n", pool.name)));
    };
    let found = pools.iter().find(|found| found.name == pool).ok_or_else(|| failed(Errno(libc::ENOENT)))?;
    print(output, format_args!("Pool: {fsname}.{pool}\n"))?;
    let name = |ost: &types::OstIndex| TargetRole::Ost(*ost).target_name(&fsname);
    found.osts.iter().try_for_each(|ost| print(output, format_args!("{}_UUID\n", name(ost))))
}

/// The mount of a path, or of a file system's name with or without a pool's.
fn find(operand: &str, path: &Path) -> Result<(Mount, Option<String>), Errno> {
    if operand.contains('/') {
        let mount = channel::mount_of(path)?.ok_or(Errno(libc::ENOTTY))?;
        return Ok((mount, None));
    }
    let (fsname, pool) = match operand.split_once('.') {
        Some((fsname, pool)) => (fsname, Some(pool.to_owned())),
        None => (operand, None),
    };
    let named = |mount: &Mount| channel::name(&mount.point).is_ok_and(|(name, _)| name == fsname);
    let mount = channel::mounts()?.into_iter().find(named).ok_or(Errno(libc::ENODEV))?;
    Ok((mount, pool))
}

/// The pool of this name, with or without the file system's before it, at a mount.
pub fn at(mount: &Mount, name: &str) -> Result<Pool, Errno> {
    let (fsname, _) = channel::name(&mount.point)?;
    let plain = name.strip_prefix(&*fsname).and_then(|rest| rest.strip_prefix('.')).unwrap_or(name);
    let pools = channel::pools(&mount.point)?;
    pools.into_iter().find(|pool| pool.name == plain).ok_or(Errno(libc::ENOENT))
}
