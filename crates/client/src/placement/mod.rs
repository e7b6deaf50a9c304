//! Where the data of an open file are: its layout as it grows, and other objects for data that a
//! full OST refuses.

pub(crate) mod layouts;
pub(crate) mod leave_out;
pub(crate) mod no_space;
