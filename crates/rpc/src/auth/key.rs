//! A secret that several processes share.

use std::{fmt, str::FromStr};

use hmac::{Hmac, KeyInit, Mac};
use rt::Entropy;
use sha2::Sha256;

use super::transcript::Proof;

/// Bytes of a key.
const BYTES: usize = 32;

/// A secret of 256 bits. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; BYTES]);

/// A text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has {} hexadecimal digits", 2 * BYTES)]
pub struct KeyTextError;

impl Key {
    /// A new random key.
    pub fn random(entropy: &dyn Entropy) -> Self {
        Self(random_bytes(entropy))
    }

    /// A key for another purpose, from which nobody can compute this one.
    pub fn derive(&self, purpose: &str) -> Self {
        Self(self.authenticate(&[b"derive", purpose.as_bytes()]).0)
    }

    /// The authentication code of these parts, HMAC-SHA-256. No other division of the same bytes
    /// into parts has the same code.
    pub(super) fn authenticate(&self, parts: &[&[u8]]) -> Proof {
        Proof(self.mac(parts).finalize().into_bytes().into())
    }

    /// Whether `proof` is the authentication code of these parts. Takes equally long for all wrong
    /// codes.
    pub(super) fn verify(&self, parts: &[&[u8]], proof: &Proof) -> bool {
        self.mac(parts).verify_slice(&proof.0).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC accepts keys of any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// The key of these bytes.
    pub fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for where it is kept.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        self.0
    }

    /// The key as text, for its file.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl FromStr for Key {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let digits = text.as_bytes();
        if digits.len() != 2 * BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(KeyTextError);
        }
        let mut key = [0; BYTES];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| KeyTextError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| KeyTextError)?;
        }
        Ok(Self(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Random bytes.
pub(super) fn random_bytes<const COUNT: usize>(entropy: &dyn Entropy) -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    for chunk in bytes.chunks_mut(size_of::<u64>()) {
        chunk.copy_from_slice(&entropy.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key([byte; BYTES])
    }

    #[test]
    fn a_key_survives_its_text_and_nothing_else_is_one() {
        let text = key(0xa5).to_text();
        assert_eq!(text.parse(), Ok(key(0xa5)));
        for wrong in ["", &text[1..], &format!("{text}0"), &text.replace("a5", "g5"), &format!("+{}", &text[1..])] {
            assert_eq!(wrong.parse::<Key>(), Err(KeyTextError), "{wrong}");
        }
        assert_eq!(format!("{:?}", key(0xa5)), "Key(..)");
    }

    #[test]
    fn codes_depend_on_key_bytes_and_division() {
        let code = key(1).authenticate(&[b"ab", b"c"]);
        assert!(key(1).verify(&[b"ab", b"c"], &code));
        assert!(!key(2).verify(&[b"ab", b"c"], &code));
        assert!(!key(1).verify(&[b"a", b"bc"], &code));
        assert!(!key(1).verify(&[b"abc"], &code));
    }

    /// Test case 1 of RFC 4231 has a key of another length; the construction is that of the
    /// library. This fixes what is authenticated: length and bytes of each part.
    #[test]
    fn the_code_of_a_fixed_message_is_fixed() {
        let code = key(0).authenticate(&[b"StriaFS"]);
        let again = {
            let mut mac = Hmac::<Sha256>::new_from_slice(&[0; BYTES]).unwrap();
            mac.update(b"\x07\0\0\0\0\0\0\0StriaFS");
            mac.finalize().into_bytes()
        };
        assert_eq!(code.0[..], again[..]);
    }

    #[test]
    fn derived_keys_differ() {
        assert_ne!(key(1).derive("a"), key(1).derive("b"));
        assert_ne!(key(1).derive("a"), key(1));
    }
}
