//! Requests to the objects of a file: one at a time, or the attributes of many at once.

pub(crate) mod data_attributes;
pub(crate) mod glimpse;
pub(crate) mod object;
