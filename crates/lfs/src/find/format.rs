//! `--printf`: a format, parsed once and then applied to every file found.

use std::os::unix::{ffi::OsStrExt, fs::MetadataExt};

use host::accounts;
use layout::text::{Pattern, Row};
use types::Fid;

use super::{
    candidate::{Candidate, Described},
    clock::{self, Clock},
};
use crate::channel::Errno;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    /// A directive with one letter.
    Field(char),
    /// A time in seconds: `%A@`.
    Seconds(Clock),
    /// `%L` and a letter.
    Layout(char),
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    pieces: Vec<Piece>,
}

/// Letters after `%`.
const FIELDS: &str = "abcgGikmMnpstuUwy";
/// Letters after `%L`.
const LAYOUT_FIELDS: &str = "aAcFhiopPS";

impl Format {
    /// Reads a format; the unknown directive is the error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text.chars();
        while let Some(letter) = rest.next() {
            let piece = match letter {
                '\\' => {
                    literal.extend(escaped(&mut rest));
                    continue;
                }
                '%' => match directive(&mut rest)? {
                    Some(piece) => piece,
                    None => {
                        literal.push(b'%');
                        continue;
                    }
                },
                other => {
                    literal.extend(other.to_string().bytes());
                    continue;
                }
            };
            pieces.extend([Piece::Bytes(std::mem::take(&mut literal)), piece]);
        }
        pieces.push(Piece::Bytes(literal));
        pieces.retain(|piece| *piece != Piece::Bytes(Vec::new()));
        Ok(Self { pieces })
    }

    /// As `ls -dils` shows it.
    pub fn ls() -> Self {
        Self::parse("%i\t%k %M %n %u\t%g\t%s %t %p\\n").expect("known directives")
    }

    /// What is printed of a candidate.
    pub fn apply(&self, candidate: &Candidate<'_>) -> Result<Vec<u8>, Errno> {
        let mut line = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => line.extend_from_slice(bytes),
                Piece::Field('p') => line.extend_from_slice(candidate.path.as_os_str().as_bytes()),
                Piece::Field(letter) => line.extend(field(*letter, candidate).bytes()),
                Piece::Seconds(clock) => {
                    let moment = clock.read(&candidate.metadata);
                    let text = moment.map(|(seconds, nanoseconds)| format!("{seconds}.{nanoseconds:09}0"));
                    line.extend(text.unwrap_or_default().bytes());
                }
                Piece::Layout(letter) if ['f', 'd'].contains(&candidate.kind()) => {
                    line.extend(layout_field(*letter, candidate.described()?).bytes());
                }
                Piece::Layout(_) => {}
            }
        }
        Ok(line)
    }
}

/// What stands after a backslash; an unknown one stands for itself.
fn escaped(rest: &mut std::str::Chars<'_>) -> Vec<u8> {
    let byte = match rest.next() {
        None => b'\\',
        Some('n') => b'\n',
        Some('t') => b'\t',
        Some('r') => b'\r',
        Some('0') => 0,
        Some('a') => 7,
        Some('b') => 8,
        Some('f') => 12,
        Some('v') => 11,
        Some('\\') => b'\\',
        Some(other) => return format!("\\{other}").into_bytes(),
    };
    vec![byte]
}

/// What stands after `%`; `None` is a percent sign.
fn directive(rest: &mut std::str::Chars<'_>) -> Result<Option<Piece>, String> {
    let letter = rest.next().ok_or("%")?;
    let clock = match letter {
        '%' => return Ok(None),
        'L' => {
            let field = rest.next().filter(|field| LAYOUT_FIELDS.contains(*field)).ok_or("%L")?;
            return Ok(Some(Piece::Layout(field)));
        }
        'A' => Clock::Access,
        'C' => Clock::Change,
        'T' => Clock::Modification,
        'W' => Clock::Birth,
        letter if FIELDS.contains(letter) => return Ok(Some(Piece::Field(letter))),
        other => return Err(format!("%{other}")),
    };
    match rest.next() {
        Some('@') => Ok(Some(Piece::Seconds(clock))),
        _ => Err(format!("%{letter}")),
    }
}

fn field(letter: char, candidate: &Candidate<'_>) -> String {
    let metadata = &candidate.metadata;
    let time = |clock: Clock| clock.read(metadata).map(clock::shown).unwrap_or_default();
    match letter {
        'a' => time(Clock::Access),
        'c' => time(Clock::Change),
        't' => time(Clock::Modification),
        'w' => time(Clock::Birth),
        'b' => metadata.blocks().to_string(),
        'k' => metadata.blocks().div_ceil(2).to_string(),
        'g' => accounts::group_name(metadata.gid()),
        'G' => metadata.gid().to_string(),
        'u' => accounts::user_name(metadata.uid()),
        'U' => metadata.uid().to_string(),
        'i' => metadata.ino().to_string(),
        'm' => format!("{:o}", metadata.mode() & 0o7777),
        'M' => mode_letters(candidate.kind(), metadata.mode()),
        'n' => metadata.nlink().to_string(),
        's' => metadata.size().to_string(),
        _ => candidate.kind().to_string(),
    }
}

/// `-rwxr-xr-x`.
fn mode_letters(kind: char, mode: u32) -> String {
    let mut letters: Vec<char> =
        (0..9).map(|bit| if mode & (0o400 >> bit) == 0 { '-' } else { ['r', 'w', 'x'][bit % 3] }).collect();
    for (bit, position, special) in [(libc::S_ISUID, 2, 's'), (libc::S_ISGID, 5, 's'), (libc::S_ISVTX, 8, 't')] {
        if mode & bit != 0 {
            letters[position] = if letters[position] == 'x' { special } else { special.to_ascii_uppercase() };
        }
    }
    letters.insert(0, if kind == 'f' { '-' } else { kind });
    letters.into_iter().collect()
}

fn layout_field(letter: char, described: &Described) -> String {
    let chosen = described.chosen();
    match letter {
        'F' => Fid::from(described.inode).to_string().trim_matches(['[', ']']).to_owned(),
        'c' => chosen.map_or(0, |row| row.stripe_count).to_string(),
        'S' => chosen.map_or(0, |row| row.stripe_bytes).to_string(),
        'i' => match chosen.map(|row| (row.first_ost(), row.pattern)) {
            Some((Some(ost), _)) => ost.0.to_string(),
            Some((None, Pattern::Mdt)) => String::new(),
            _ => "-1".to_owned(),
        },
        'o' => described.rows.iter().map(osts).collect(),
        'p' => described.rows.iter().find_map(|row| row.pool.clone()).unwrap_or_default(),
        'P' => "0".to_owned(),
        'h' => described.hash().to_owned(),
        'a' => "-".to_owned(),
        _ => "---".to_owned(),
    }
}

/// `[0,2]`; `[?,?]` of a component without objects, nothing of one on the MDT.
fn osts(row: &Row) -> String {
    let osts: Vec<String> = match (row.pattern, row.instantiated) {
        (Pattern::Mdt, _) => return String::new(),
        (_, true) => row.objects.iter().map(|(_, ost)| ost.0.to_string()).collect(),
        (_, false) => vec!["?".to_owned(); row.stripe_count.max(1) as usize],
    };
    format!("[{}]", osts.join(","))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn formats_are_read() {
        let format = Format::parse("a%%b\\t%p %A@%LF\\z\\n").unwrap();
        let bytes = |text: &str| Piece::Bytes(text.as_bytes().to_vec());
        let expected = [
            bytes("a%b\t"),
            Piece::Field('p'),
            bytes(" "),
            Piece::Seconds(Clock::Access),
            Piece::Layout('F'),
            bytes("\\z\n"),
        ];
        assert_eq!(format.pieces, expected);
        for (wrong, named) in [("%q", "%q"), ("%", "%"), ("%Lx", "%L"), ("%A", "%A"), ("%Ax", "%A")] {
            assert_eq!(Format::parse(wrong), Err(named.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn modes_are_shown_as_ls_does() {
        assert_eq!(mode_letters('f', 0o4755), "-rwsr-xr-x");
        assert_eq!(mode_letters('d', 0o1777), "drwxrwxrwt");
        assert_eq!(mode_letters('f', 0o2640), "-rw-r-S---");
    }
}
