//! Extended attributes and access lists within a transaction.

use types::{
    Credentials, Damage, FsResult, InodeNumber,
    access_list::{ACCESS_NAME, AccessList, DEFAULT_NAME},
    permission,
};

use super::Transaction;
use crate::tables::{XATTRS, inode::Inode, xattr};

/// What a file's program may do that its user may not, as Linux keeps it.
pub(crate) const CAPABILITIES_NAME: &[u8] = b"security.capability";

impl Transaction<'_> {
    /// Value of an attribute.
    pub fn xattr(&self, inode: InodeNumber, name: &[u8]) -> FsResult<Option<Vec<u8>>> {
        let value = self.get(XATTRS, &xattr::key(inode, name))?;
        value.map(|value| xattr::decode(&value).map(<[u8]>::to_vec)).transpose()
    }

    /// Names of all attributes, access lists included.
    pub fn xattr_names(&self, inode: InodeNumber) -> FsResult<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.scan_prefix(XATTRS, &inode.0.to_be_bytes(), &mut |key, _| {
            names.push(xattr::decode_key(key)?.1.to_vec());
            Ok(true)
        })?;
        Ok(names)
    }

    /// Creates or replaces an attribute.
    pub fn put_xattr(&mut self, inode: InodeNumber, name: &[u8], value: &[u8]) {
        self.put(XATTRS, xattr::key(inode, name), xattr::encode(value));
    }

    /// Removes an attribute; a missing one is fine.
    pub fn delete_xattr(&mut self, inode: InodeNumber, name: &[u8]) {
        self.delete(XATTRS, xattr::key(inode, name));
    }

    /// Whether a file has capabilities.
    pub fn has_capabilities(&self, inode: &Inode) -> FsResult<bool> {
        Ok(inode.xattrs && !inode.is_directory() && self.xattr(inode.number(), CAPABILITIES_NAME)?.is_some())
    }

    /// Removes a file's capabilities, whichever user changes it: unlike set-id bits, not even
    /// root's writes, truncations and changes of owner leave them (dentry_needs_remove_privs and
    /// chown_common of Linux). True if there were any.
    pub fn drop_capabilities(&mut self, inode: &Inode) -> FsResult<bool> {
        let had = self.has_capabilities(inode)?;
        if had {
            self.delete_xattr(inode.number(), CAPABILITIES_NAME);
        }
        Ok(had)
    }

    /// What a change of a file's data by `who` removes: set-id bits that this user may not keep,
    /// and capabilities. The caller stores the inode. True if there were capabilities.
    pub fn drop_privileges(&mut self, who: &Credentials, inode: &mut Inode) -> FsResult<bool> {
        if !inode.is_directory() {
            inode.attributes.mode = permission::mode_after_write(who, &inode.attributes)?;
        }
        self.drop_capabilities(inode)
    }

    /// A stored access list.
    pub fn stored_list(&self, inode: InodeNumber, name: &[u8]) -> FsResult<Option<AccessList>> {
        let Some(value) = self.xattr(inode, name)? else { return Ok(None) };
        let damaged = |_| Damage::new(format!("access list of inode {inode}"), "malformed").into();
        AccessList::decode(&value).map_err(damaged)
    }

    /// Sets or removes the access list; one that the mode says in full is not stored.
    pub fn put_access_list(&mut self, inode: &mut Inode, list: Option<&AccessList>) {
        let list = list.filter(|list| !list.is_minimal());
        match list {
            Some(list) => self.put_xattr(inode.number(), ACCESS_NAME, &list.encode()),
            None if inode.access_list => self.delete_xattr(inode.number(), ACCESS_NAME),
            None => {}
        }
        inode.access_list = list.is_some();
    }

    /// Sets or removes the default access list.
    pub fn put_default_list(&mut self, inode: &mut Inode, list: Option<&AccessList>) {
        match list {
            Some(list) => self.put_xattr(inode.number(), DEFAULT_NAME, &list.encode()),
            None if inode.default_list => self.delete_xattr(inode.number(), DEFAULT_NAME),
            None => {}
        }
        inode.default_list = list.is_some();
    }

    /// Changes the mode by chmod's rules: the access list follows.
    pub fn set_mode(&mut self, inode: &mut Inode, mode: u32) -> FsResult<()> {
        inode.attributes.mode = mode;
        if !inode.access_list {
            return Ok(());
        }
        let Some(mut list) = self.stored_list(inode.number(), ACCESS_NAME)? else { return Ok(()) };
        list.set_mode(mode);
        self.put_xattr(inode.number(), ACCESS_NAME, &list.encode());
        Ok(())
    }
}
