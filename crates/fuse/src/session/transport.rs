//! How requests come from the kernel: the choice at mount.

use std::{fmt, str::FromStr};

/// What the user wants (`-o io_uring=auto|on|off`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingChoice {
    /// io_uring if the kernel offers it, else `/dev/fuse`.
    #[default]
    Auto,
    /// io_uring, or no mount.
    On,
    /// `/dev/fuse`.
    Off,
}

impl FromStr for RingChoice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(()),
        }
    }
}

/// What a session uses. Its text is the value of the parameter `fuse.transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reads and writes of `/dev/fuse`.
    Device,
    /// FUSE over io_uring.
    IoUring,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Device => "dev_fuse",
            Transport::IoUring => "io_uring",
        })
    }
}
