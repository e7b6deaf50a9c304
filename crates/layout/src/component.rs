//! Components: the parts of a layout, each for an extent of the file.
//!
//! ```text
//! file       0         1M              64M                          EOF
//! component  | 1: mdt   | 2: one stripe | 3: four stripes, pending ...
//! slots          0            1              none yet
//! ```
//!
//! Life cycle: a component is *pending* until a write or truncation needs it; then the MDT
//! *instantiates* it: chooses its OSTs and gives it slots. Slots are numbered throughout the file
//! and never reused, so that the name of an object, (inode, slot), means one object on one target
//! forever, from its creation on. Pending components read as holes.
//!
//! Downside: stripes are counted from the beginning of the file, not of the component (as in
//! Lustre), so an object of a late component starts with a hole.

use serde::{Deserialize, Serialize};
use types::{
    OstIndex,
    limits::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN},
};

use crate::{
    limits::END_OF_FILE,
    plain::{PlainLayout, PlainLayoutError},
    reason::Reason,
    spec::{SpecError, StripeSpec},
    striping::Striping,
};

/// Number of a component within its file, from 1; never used twice (`lcme_id`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComponentId(pub u32);

/// Bytes `start..end` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// After the last byte; [`END_OF_FILE`] for all that follow.
    pub end: u64,
}

impl Extent {
    /// The whole file.
    pub const WHOLE: Extent = Extent { start: 0, end: END_OF_FILE };

    /// Whether it has no byte: an extension component follows that may give it some.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Bytes; [`END_OF_FILE`] ends at 2^64.
    pub fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// What it has in common with `start..end`, if anything.
    pub fn intersection(self, start: u64, end: u64) -> Option<Extent> {
        let common = Extent { start: self.start.max(start), end: self.end.min(end) };
        (!common.is_empty()).then_some(common)
    }
}

/// The target that holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Location {
    /// An object storage target.
    Ost(OstIndex),
    /// The file's own metadata target (data on MDT).
    Mdt,
}

/// The backing of a component. Variants are only appended (wire format).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// No objects yet; so striped when it is instantiated.
    Pending(StripeSpec),
    /// RAID-0 over objects of OSTs; stripe `i` has slot `first_slot + i`.
    Striped {
        /// The stripes.
        plain: PlainLayout,
        /// Slot of the first stripe.
        first_slot: u32,
        /// What was asked for: a component that is extended or repeated goes by it.
        spec: StripeSpec,
    },
    /// One object on the file's MDT.
    Mdt {
        /// Its slot.
        slot: u32,
    },
    /// Never instantiated: space into which the component before it grows, by steps (`-z`,
    /// extension component).
    Extension {
        /// Bytes of a step.
        step_bytes: u64,
    },
    /// No objects yet; extent, stripe count and size are decided when a write needs them (automatic
    /// layouts).
    Automatic,
}

/// One component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// Its number.
    pub id: ComponentId,
    /// Which bytes.
    pub extent: Extent,
    /// Where they are.
    pub backing: Backing,
    /// Why it has these stripes, if it was cut out of an automatic component.
    #[serde(default)]
    pub reason: Option<Reason>,
}

/// Why a component cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComponentError {
    /// The stripes.
    #[error(transparent)]
    Plain(#[from] PlainLayoutError),
    /// The stripes asked for.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Slots beyond 2^32.
    #[error("slots do not fit 32 bits")]
    Slots,
    /// Data on the MDT end somewhere.
    #[error("a component on the MDT must have an end")]
    EndlessMdt,
    /// Steps of nothing, or not of whole stripes' units.
    #[error("extension size {0} is not a positive multiple of 65536")]
    Step(u64),
}

impl Component {
    /// Whether its stripes are, or are to be, decided by the file system.
    pub fn is_automatic(&self) -> bool {
        self.backing == Backing::Automatic || self.reason.is_some()
    }

    /// Whether writes can go to it.
    pub fn is_instantiated(&self) -> bool {
        matches!(self.backing, Backing::Striped { .. } | Backing::Mdt { .. })
    }

    /// About what it takes in a message, never less: itself, its stripes, and the OSTs that were
    /// asked for.
    pub(crate) fn bytes_estimate(&self) -> usize {
        const COMPONENT_BYTES: usize = 128;
        const OST_BYTES: usize = 3;
        let asked = match &self.backing {
            Backing::Pending(spec) | Backing::Striped { spec, .. } => spec.osts.len(),
            Backing::Mdt { .. } | Backing::Extension { .. } | Backing::Automatic => 0,
        };
        COMPONENT_BYTES + (self.slots().len() + asked) * OST_BYTES
    }

    /// Slots in use: first, count.
    pub fn slots(&self) -> std::ops::Range<u32> {
        match &self.backing {
            Backing::Striped { plain, first_slot, .. } => *first_slot..*first_slot + plain.stripe_count(),
            Backing::Mdt { slot } => *slot..*slot + 1,
            Backing::Pending(_) | Backing::Extension { .. } | Backing::Automatic => 0..0,
        }
    }

    /// The target that holds the object of `slot`, which must be one of this component's.
    pub(crate) fn location(&self, slot: u32) -> Location {
        match &self.backing {
            Backing::Striped { plain, first_slot, .. } => Location::Ost(plain.osts[(slot - first_slot) as usize]),
            _ => Location::Mdt,
        }
    }

    /// Its stripe arithmetic; `None` without objects. Data on the MDT are one stripe without end.
    pub(crate) fn striping(&self) -> Option<Striping> {
        match &self.backing {
            Backing::Striped { plain, .. } => Some(plain.striping()),
            Backing::Mdt { .. } => Some(Striping { stripe_bytes: STRIPE_BYTES_MAX, stripe_count: 1 }),
            _ => None,
        }
    }

    /// Whether all functions of this component may be used.
    pub(crate) fn validate(&self) -> Result<(), ComponentError> {
        match &self.backing {
            Backing::Pending(spec) => Ok(spec.validate()?),
            Backing::Striped { plain, first_slot, spec } => {
                plain.validate()?;
                spec.validate()?;
                first_slot.checked_add(plain.stripe_count()).map(|_| ()).ok_or(ComponentError::Slots)
            }
            Backing::Mdt { slot: u32::MAX } => Err(ComponentError::Slots),
            Backing::Mdt { .. } if self.extent.end > STRIPE_BYTES_MAX => Err(ComponentError::EndlessMdt),
            Backing::Extension { step_bytes } if *step_bytes == 0 || !step_bytes.is_multiple_of(STRIPE_BYTES_MIN) => {
                Err(ComponentError::Step(*step_bytes))
            }
            _ => Ok(()),
        }
    }
}
