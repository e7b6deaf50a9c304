//! An ordered list of (layout or directory, size) segments, as the dynamic striping study passed to
//! IOR: `4x1M:1G,8x1M:1G,16x1M:rest`, or `/mnt/a:1G,/mnt/b:rest`.

use std::{fmt, path::PathBuf};

use layout::{END_OF_FILE, StripeCount};
use types::{limits::STRIPE_COUNT_MAX, size};

use crate::study::{Segment, Striping};

/// What a user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segments {
    /// Layouts, for one file or for directories of an emulation.
    Layouts(Vec<Segment>),
    /// Directories that exist, and where the part of the file in each ends: an emulation.
    Directories(Vec<(PathBuf, u64)>),
}

/// Why a list is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentsError {
    /// A part without a colon.
    #[error("'{0}': expected LAYOUT:SIZE or DIRECTORY:SIZE, as in 4x1M:1G,8x1M:rest")]
    Form(String),
    /// A layout.
    #[error("'{0}' is not a layout: expected STRIPESxSIZE, as in 4x1M or allx1M (a directory contains a '/')")]
    Layout(String),
    /// A size.
    #[error("'{0}' is not a size: expected bytes with K, M, G or T, or rest")]
    Size(String),
    /// Something after the rest, or no rest.
    #[error("the last segment must have size 'rest', and no other may")]
    Rest,
    /// Both kinds.
    #[error("segments are layouts or directories, not both")]
    Mixed,
}

impl Segments {
    /// The layout of a real file with these segments; `None` for directories.
    pub fn striping(&self) -> Option<Striping> {
        match self {
            Segments::Layouts(segments) => Some(Striping::Segments(segments.clone())),
            Segments::Directories(_) => None,
        }
    }
}

impl std::str::FromStr for Segments {
    type Err = SegmentsError;

    fn from_str(text: &str) -> Result<Self, SegmentsError> {
        let (mut layouts, mut directories) = (Vec::new(), Vec::new());
        let mut end = 0_u64;
        for part in text.split(',') {
            if end == END_OF_FILE {
                return Err(SegmentsError::Rest);
            }
            let (place, bytes) = part.rsplit_once(':').ok_or_else(|| SegmentsError::Form(part.to_owned()))?;
            end = match bytes {
                "rest" => END_OF_FILE,
                bytes => {
                    let parsed = size::parse(bytes, 1).ok().filter(|bytes| *bytes > 0);
                    let sum = parsed.and_then(|bytes| end.checked_add(bytes)).filter(|end| *end < END_OF_FILE);
                    sum.ok_or_else(|| SegmentsError::Size(bytes.to_owned()))?
                }
            };
            if place.contains('/') {
                directories.push((PathBuf::from(place), end));
            } else {
                layouts.push(segment(place, end)?);
            }
        }
        match (end, layouts.is_empty(), directories.is_empty()) {
            (end, ..) if end != END_OF_FILE => Err(SegmentsError::Rest),
            (_, false, true) => Ok(Segments::Layouts(layouts)),
            (_, true, false) => Ok(Segments::Directories(directories)),
            _ => Err(SegmentsError::Mixed),
        }
    }
}

/// `4x1M` as a segment that ends here.
fn segment(text: &str, end: u64) -> Result<Segment, SegmentsError> {
    let wrong = || SegmentsError::Layout(text.to_owned());
    let (count, bytes) = text.split_once('x').ok_or_else(wrong)?;
    let stripe_count = match count {
        "all" | "-1" => StripeCount::All,
        count => {
            let count = count.parse().ok().filter(|count| (1..=STRIPE_COUNT_MAX).contains(count));
            StripeCount::Exactly(count.ok_or_else(wrong)?)
        }
    };
    let segment = Segment { end, stripe_count, stripe_bytes: size::parse(bytes, 1).map_err(|_| wrong())? };
    segment.stripes().validate().map_err(|_| wrong())?;
    Ok(segment)
}

impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directories = match self {
            Segments::Layouts(segments) => return Described(&Striping::Segments(segments.clone())).fmt(f),
            Segments::Directories(directories) => directories,
        };
        let mut start = 0;
        for (index, (directory, end)) in directories.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}:", directory.display())?;
            match *end {
                END_OF_FILE => f.write_str("rest")?,
                end => f.write_str(&bytes(end - start))?,
            }
            start = *end;
        }
        Ok(())
    }
}

/// A layout for people, in the notation of the list.
pub struct Described<'a>(pub &'a Striping);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Striping::Segments(segments) = self.0 else { return f.write_str("automatic") };
        let mut start = 0;
        for (index, segment) in segments.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let count = match segment.stripe_count {
                StripeCount::Exactly(count) => count.to_string(),
                StripeCount::All => "all".to_owned(),
                other => format!("{other:?}"),
            };
            write!(f, "{comma}{count}x{}", bytes(segment.stripe_bytes))?;
            match segment.end {
                END_OF_FILE => f.write_str(":rest")?,
                end => write!(f, ":{}", bytes(end - start))?,
            }
            start = segment.end;
        }
        Ok(())
    }
}

/// Bytes in the largest unit that shows them exactly.
fn bytes(bytes: u64) -> String {
    let unit = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')].into_iter();
    let mut fitting = unit.filter(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    fitting.next().map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_the_same() {
        for text in ["4x1M:rest", "4x1M:1G,8x1M:1536M,allx2M:rest", "1x64K:64K,2000x1G:rest"] {
            let striping = text.parse::<Segments>().unwrap().striping().unwrap();
            assert_eq!(Described(&striping).to_string(), text);
        }
        let Segments::Layouts(segments) = "4x1M:1G,8x1M:1G,16x1M:rest".parse().unwrap() else { panic!("layouts") };
        assert_eq!(segments.iter().map(|one| one.end).collect::<Vec<_>>(), [1 << 30, 2 << 30, END_OF_FILE]);
        let directories = vec![(PathBuf::from("/mnt/a:b"), 1 << 30), (PathBuf::from("./b"), END_OF_FILE)];
        let text = "/mnt/a:b:1G,./b:rest";
        assert_eq!(text.parse(), Ok(Segments::Directories(directories.clone())));
        assert_eq!(Segments::Directories(directories).to_string(), text, "a directory's layout is not known");
    }

    #[test]
    fn wrong_lists_are_refused_by_cause() {
        use SegmentsError::*;
        let refused = |text: &str| text.parse::<Segments>().unwrap_err();
        assert_eq!(refused(""), Form(String::new()));
        assert_eq!(refused("4x1M"), Form("4x1M".to_owned()));
        assert_eq!(refused("4x1M:1G"), Rest);
        assert_eq!(refused("4x1M:rest,4x1M:1G"), Rest);
        assert_eq!(refused("4x1M:1G,/mnt/b:rest"), Mixed);
        for size in ["0", "1Q", "-1", "16E", "99999999999999999999"] {
            assert_eq!(refused(&format!("4x1M:{size},4x1M:rest")), Size(size.to_owned()));
        }
        for layout in ["4", "0x1M", "2001x1M", "4x1K", "4x1MM", "xx", "4x"] {
            assert_eq!(refused(&format!("{layout}:rest")), Layout(layout.to_owned()));
        }
    }
}
