//! Globs over dotted names: `*` stands for any characters and `?` for one, within a part; parts are
//! separated by `.` or `/`.

/// A pattern, by parts.
pub(super) struct Glob<'a> {
    parts: Vec<&'a str>,
}

/// The parts of a name or pattern.
pub(super) fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(['.', '/'])
}

impl<'a> Glob<'a> {
    pub fn new(pattern: &'a str) -> Self {
        Self { parts: parts(pattern).collect() }
    }

    /// The beginning of `name`, in whole parts, that the pattern matches.
    pub fn matched_prefix<'n>(&self, name: &'n str) -> Option<&'n str> {
        let mut end = 0;
        let mut present = parts(name);
        for pattern in &self.parts {
            let part = present.next()?;
            if !matches(pattern, part) {
                return None;
            }
            end += part.len() + 1;
        }
        Some(&name[..end - 1])
    }
}

/// Whether `pattern` matches the whole of `text`. Linear in practice: only the last `*` is ever
/// tried again.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where the last star stands, and how much of the text it swallows so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, swallowed)) = star else { return false };
                star = Some((at, swallowed + 1));
                p = at + 1;
                t = swallowed + 1;
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match_within_a_part() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("abc", "abc", true),
            ("a?c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcbc", true),
            ("a*c", "abcb", false),
            ("*b*", "abc", true),
            ("**a", "a", true),
            ("a*b*c*d", "aXbbYcZccd", true),
            ("*OST0001*", "stria-OST0001-osc", true),
            ("abc", "abcd", false),
            ("abcd", "abc", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        assert_eq!(Glob::new("a.*").matched_prefix("a.bc.d"), Some("a.bc"));
        assert_eq!(Glob::new("a/*/d").matched_prefix("a.bc.d"), Some("a.bc.d"));
        assert_eq!(Glob::new("*").matched_prefix("a.bc.d"), Some("a"));
        assert_eq!(Glob::new("a.*.d.e").matched_prefix("a.bc.d"), None);
    }
}
