//! The space that a store has left.

/// What a store has room for, as far as is known. Of a store without limits: everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// [`crate::Store::apply`] refuses: only what frees space is taken.
    pub full: bool,
    /// The rest of the device should be kept for data that cannot be stored elsewhere.
    pub scarce: bool,
}
