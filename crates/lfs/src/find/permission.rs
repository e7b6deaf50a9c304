//! `--perm`: permission bits, octal or symbolic, as in find(1).

/// How the bits shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Exactly these.
    Exactly(u32),
    /// At least these.
    All(u32),
    /// One of these; of none any.
    Any(u32),
}

impl Permission {
    /// Reads `MODE`, `-MODE` or `/MODE`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [b'-', ..] => mode(&text[1..]).map(Permission::All),
            [b'/', ..] => mode(&text[1..]).map(Permission::Any),
            _ => mode(text).map(Permission::Exactly),
        }
    }

    /// Whether the bits of a mode are so.
    pub fn matches(self, mode: u32) -> bool {
        let bits = mode & 0o7777;
        match self {
            Permission::Exactly(wanted) => bits == wanted,
            Permission::All(wanted) => bits & wanted == wanted,
            Permission::Any(wanted) => wanted == 0 || bits & wanted != 0,
        }
    }
}

fn mode(text: &str) -> Option<u32> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777);
    }
    text.split(',').try_fold(0, clause)
}

/// `u+rwx`, `go=r`, `a-x`, `+t`: what the bits are after it.
fn clause(bits: u32, text: &str) -> Option<u32> {
    let operator = text.find(['+', '-', '='])?;
    let mut who = 0;
    for letter in text[..operator].chars() {
        who |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    let who = if operator == 0 { 0o7777 } else { who };
    let mut named = 0;
    for letter in text[operator + 1..].chars() {
        named |= match letter {
            'r' => 0o444,
            'w' => 0o222,
            'x' => 0o111,
            's' => 0o6000,
            't' => 0o1000,
            _ => return None,
        };
    }
    // The sticky bit belongs to nobody in particular.
    let named = named & (who | 0o1000);
    Some(match text.as_bytes()[operator] {
        b'+' => bits | named,
        b'-' => bits & !named,
        _ => (bits & !who) | named,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_and_symbolic_modes_are_read() {
        for (text, expected) in [
            ("644", Permission::Exactly(0o644)),
            ("-u+w", Permission::All(0o200)),
            ("/go=w", Permission::Any(0o022)),
            ("u=rwx,go=rx", Permission::Exactly(0o755)),
            ("-u+s", Permission::All(0o4000)),
            ("+t", Permission::Exactly(0o1000)),
            ("a+r,o-r", Permission::Exactly(0o440)),
        ] {
            assert_eq!(Permission::parse(text), Some(expected), "{text}");
        }
        for wrong in ["", "9", "17777", "u", "z+r", "u+z", "-"] {
            assert_eq!(Permission::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bits_are_matched() {
        let matches = |text: &str, mode| Permission::parse(text).unwrap().matches(mode);
        assert!(matches("644", 0o100644) && !matches("644", 0o100645));
        assert!(matches("-600", 0o100644) && !matches("-602", 0o100644));
        assert!(matches("/022", 0o100620) && !matches("/022", 0o100600) && matches("/000", 0o100600));
    }
}
