//! The addresses at which one process can be reached.

use std::{fmt, net::Ipv6Addr, sync::Arc};

use types::limits::ADDRESSES_PER_TARGET_MAX;

use crate::Address;

/// One address or several, in the order to be tried. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Arc<[Address]>);

impl Addresses {
    /// `HOST[:PORT]`, several separated by commas, or, after a port, by colons as in Lustre
    /// (`HOST1:PORT:HOST2:PORT`). The default port is added where there is none. `None`: that is
    /// not a list of 1 to [`ADDRESSES_PER_TARGET_MAX`] different addresses.
    pub fn parse(text: &str) -> Option<Self> {
        let mut addresses: Vec<Address> = Vec::new();
        for part in text.split(',') {
            if part.parse::<Ipv6Addr>().is_ok() {
                // Without brackets its groups would be hosts and ports.
                return None;
            }
            let mut rest = Some(part);
            while let Some(part) = rest {
                let (first, others) = split_first(part);
                let address = Address::with_port(first);
                if !address.is_complete() || addresses.contains(&address) || addresses.len() >= ADDRESSES_PER_TARGET_MAX
                {
                    return None;
                }
                addresses.push(address);
                rest = others;
            }
        }
        Some(Self(addresses.into()))
    }

    /// Those that a cluster map names, each once. Of an empty list, one that no host has.
    pub fn of_texts<T: AsRef<str>>(texts: &[T]) -> Self {
        match texts {
            [] => Address::from("").into(),
            texts => {
                let mut addresses: Vec<Address> = Vec::new();
                for address in texts.iter().map(|text| Address::from(text.as_ref())) {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
                Self(addresses.into())
            }
        }
    }

    /// How many.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All in order.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.0.iter()
    }

    /// The one whose turn it is: after the last comes the first.
    pub fn at(&self, turn: usize) -> &Address {
        &self.0[turn % self.0.len()]
    }

    /// As texts, for messages of the protocol.
    pub fn to_texts(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

/// The first address of a list, and what follows the colon after its port.
fn split_first(text: &str) -> (&str, Option<&str>) {
    let host = text.find(']').map_or(0, |end| end + 1);
    let colons = text[host..].match_indices(':').map(|(at, _)| host + at);
    match colons.take(2).collect::<Vec<_>>()[..] {
        [_, second] => (&text[..second], Some(&text[second + 1..])),
        _ => (text, None),
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Self {
        Self([address].into())
    }
}

impl From<&str> for Addresses {
    /// One address.
    fn from(text: &str) -> Self {
        Address::from(text).into()
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_texts().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_separated_by_commas_or_by_colons_after_ports() {
        for (text, expected) in [
            ("a", "a:988"),
            ("a:1", "a:1"),
            ("a,b:2", "a:988,b:2"),
            ("a:1:b:2", "a:1,b:2"),
            ("a:1:b", "a:1,b:988"),
            ("[::1]:1:[::2]:2,c", "[::1]:1,[::2]:2,c:988"),
            ("[::1],[::2]", "[::1]:988,[::2]:988"),
        ] {
            assert_eq!(Addresses::parse(text).map(|list| list.to_string()).as_deref(), Some(expected), "{text}");
        }
        for text in
            ["", ",", "a,", "a:b", "a:1:", "a:1:2:", "a,a:988", "a:1,a:1", "[::1", "a:1:b:c", "1,2,3,4,5,6,7,8,9"]
        {
            assert_eq!(Addresses::parse(text), None, "{text}");
        }
    }

    #[test]
    fn turns_go_round() {
        let list = Addresses::parse("a,b").unwrap();
        let turns: Vec<&str> = (0..4).map(|turn| &*list.at(turn).0).collect();
        assert_eq!(turns, ["a:988", "b:988", "a:988", "b:988"]);
        assert_eq!(Addresses::of_texts::<&str>(&[]).len(), 1);
    }
}
