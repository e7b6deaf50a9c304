//! Limits shared by requests for layouts, layouts and their binary form.

/// The end of the last extent of a layout that covers the whole file.
pub const END_OF_FILE: u64 = u64::MAX;
/// Most components of a layout.
pub const COMPONENTS_MAX: usize = 256;
/// The binary form has extension sizes in units of this many bytes (SEL_UNIT_SIZE).
pub(crate) const EXTENSION_UNIT_BYTES: u64 = 1024;
/// The smallest extension size that the field of the binary form, of 32 bits, cannot hold.
pub(crate) const EXTENSION_BYTES_END: u64 = EXTENSION_UNIT_BYTES << 32;
