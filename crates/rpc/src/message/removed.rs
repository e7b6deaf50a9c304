//! Requests that were removed from the protocol. Their variants keep their places, because a place
//! is a number on the wire and no number gets a second meaning; nobody can make one, and decoders
//! refuse them.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// The contents of a request that was removed: there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Removed {}

impl Removed {
    /// Nobody has one.
    pub fn never(&self) -> ! {
        match *self {}
    }
}

impl<'de> Deserialize<'de> for Removed {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("this request was removed from the protocol"))
    }
}
