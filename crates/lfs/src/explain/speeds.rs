//! How fast the OSTs of an estimate are, and where the speeds come from: given by the user,
//! measured by the targets during recent transfers, measured by reading some of the file, or
//! assumed.
//!
//! OSTs on one device share its speed. Stripes are alike, so a transfer ends when the device with
//! the most stripes relative to its speed is finished.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use layout::cost::Hardware;
use rpc::message::control::TargetStatus;
use rpc::message::mgs::TargetRole;
use types::{DeviceId, OstIndex, counted};

use super::words::megabytes;

/// Speeds that the estimates are based on.
#[derive(Clone, Copy, Debug, Args)]
pub struct Speeds {
    /// Speed of an OST's device in MB/s [default: 350; explain prefers measured speeds]
    #[arg(long, value_name = "MB/S", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub ost_speed: Option<u64>,
    /// Speed of a client's link in MB/s
    #[arg(long, default_value_t = Speeds::default().client_speed, value_name = "MB/S", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub client_speed: u64,
}

impl Default for Speeds {
    fn default() -> Self {
        Self { ost_speed: None, client_speed: 3000 }
    }
}

impl Speeds {
    /// With so many OSTs.
    pub fn hardware(self, osts: u32) -> Hardware {
        Hardware {
            ost_bytes_per_second: self.ost_bytes_per_second(),
            client_bytes_per_second: self.client_speed * 1_000_000,
            ..Hardware::with_osts(osts)
        }
    }

    /// The given speed, or that of a typical hard disk.
    pub fn ost_bytes_per_second(self) -> u64 {
        self.ost_speed.map_or(Hardware::with_osts(1).ost_bytes_per_second, |megabytes| megabytes * 1_000_000)
    }

    /// The assumptions of the estimates for a planned job, as one line.
    pub fn assumption(self, osts: u32) -> String {
        let speed = megabytes(self.ost_bytes_per_second());
        format!(
            "Estimated with {} of {speed} and a link of {} MB/s per client (--ost-speed, --client-speed).",
            counted(osts, "OST"),
            self.client_speed
        )
    }
}

/// What speeds rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--ost-speed`.
    Told,
    /// What the targets did lately.
    Lately,
    /// Some of the file was read for it.
    Reading,
    /// A number that fits many hard disks.
    Assumed,
}

impl Source {
    /// For programs.
    pub fn name(self) -> &'static str {
        match self {
            Source::Told => "told",
            Source::Lately => "lately",
            Source::Reading => "reading",
            Source::Assumed => "assumed",
        }
    }
}

/// A device, or an OST whose device is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Device {
    Known(DeviceId),
    Of(OstIndex),
}

/// Speeds of a device, in bytes per second, as far as they were measured.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    read: Option<u64>,
    written: Option<u64>,
}

impl Measured {
    fn slower(self) -> Option<u64> {
        self.read.into_iter().chain(self.written).min()
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct OstSpeeds {
    /// OSTs that answer.
    usable: BTreeMap<OstIndex, Device>,
    /// OSTs that do not, or are deactivated.
    unusable: BTreeSet<OstIndex>,
    measured: BTreeMap<Device, Measured>,
    source: Source,
    speeds: Speeds,
}

impl OstSpeeds {
    /// Of the targets of a file system.
    pub fn of(targets: &[TargetStatus], speeds: Speeds) -> Self {
        let (mut usable, mut unusable) = (BTreeMap::new(), BTreeSet::new());
        let mut measured: BTreeMap<Device, Measured> = BTreeMap::new();
        for target in targets {
            let TargetRole::Ost(ost) = target.role else { continue };
            let Some(space) = target.space.filter(|_| target.active && target.connected) else {
                unusable.insert(ost);
                continue;
            };
            let device = space.device.map_or(Device::Of(ost), Device::Known);
            usable.insert(ost, device);
            // Targets of one process say the same; of others, the one that has done more is nearer
            // to what the device can do.
            let of_device = measured.entry(device).or_default();
            of_device.read = of_device.read.max(target.condition.read.bytes_per_second());
            of_device.written = of_device.written.max(target.condition.written.bytes_per_second());
        }
        measured.retain(|_, device| device.slower().is_some());
        let source = match (speeds.ost_speed, measured.is_empty()) {
            (Some(_), _) => Source::Told,
            (None, false) => Source::Lately,
            (None, true) => Source::Assumed,
        };
        Self { usable, unusable, measured, source, speeds }
    }

    /// So many OSTs on devices of their own, nothing measured.
    #[cfg(test)]
    pub fn alike(osts: u32, speeds: Speeds) -> Self {
        let usable = (0..osts as u16).map(|index| (OstIndex(index), Device::Of(OstIndex(index)))).collect();
        let source = if speeds.ost_speed.is_some() { Source::Told } else { Source::Assumed };
        Self { usable, unusable: BTreeSet::new(), measured: BTreeMap::new(), source, speeds }
    }

    /// What was measured comes from reading some of the file.
    pub fn by_reading(self) -> Self {
        let source = if self.source == Source::Lately { Source::Reading } else { self.source };
        Self { source, ..self }
    }

    /// What they rest on.
    pub fn source(&self) -> Source {
        self.source
    }

    /// OSTs that answer.
    pub fn osts(&self) -> u32 {
        self.usable.len() as u32
    }

    /// Devices of these.
    pub fn devices(&self) -> u32 {
        self.usable.values().collect::<BTreeSet<_>>().len() as u32
    }

    /// Those of some OSTs that do not answer.
    pub fn unusable(&self, osts: &[u16]) -> Vec<u16> {
        let found: BTreeSet<u16> = osts.iter().copied().filter(|ost| self.unusable.contains(&OstIndex(*ost))).collect();
        found.into_iter().collect()
    }

    /// As many OSTs as there are devices, all as fast as these on average: stripes beyond that gain
    /// nothing.
    pub fn hardware(&self) -> Hardware {
        Hardware { ost_bytes_per_second: self.average(), ..self.speeds.hardware(self.devices()) }
    }

    /// Bytes per second of the OSTs of stripes together, one OST for each stripe.
    pub fn together(&self, osts: &[OstIndex]) -> u64 {
        let mut stripes: BTreeMap<Device, u64> = BTreeMap::new();
        for ost in osts {
            *stripes.entry(self.usable.get(ost).copied().unwrap_or(Device::Of(*ost))).or_default() += 1;
        }
        let of = |(device, count): (Device, u64)| self.device(device).saturating_mul(osts.len() as u64) / count;
        stripes.into_iter().map(of).min().unwrap_or(0)
    }

    fn device(&self, device: Device) -> u64 {
        let measured = self.measured.get(&device).and_then(|measured| measured.slower());
        match self.source {
            Source::Lately | Source::Reading => measured.unwrap_or_else(|| self.average()),
            Source::Told | Source::Assumed => self.speeds.ost_bytes_per_second(),
        }
    }

    fn average(&self) -> u64 {
        let measured: Vec<u64> = self.measured.values().filter_map(|measured| measured.slower()).collect();
        match self.source {
            Source::Lately | Source::Reading => mean(&measured).unwrap_or(self.speeds.ost_bytes_per_second()),
            Source::Told | Source::Assumed => self.speeds.ost_bytes_per_second(),
        }
    }

    /// What the estimates rest on, as one line.
    pub fn assumption(&self) -> String {
        let (osts, devices) = (self.osts(), self.devices());
        let places = match devices < osts {
            true => format!("{} on {}", counted(osts, "OST"), counted(devices, "device")),
            false => counted(osts, "OST"),
        };
        let of =
            |pick: fn(&Measured) -> Option<u64>| mean(&self.measured.values().filter_map(pick).collect::<Vec<_>>());
        let measurements: Vec<String> =
            [("writes", of(|measured| measured.written)), ("reads", of(|measured| measured.read))]
                .into_iter()
                .filter_map(|(what, speed)| Some(format!("{what} {}", megabytes(speed?))))
                .collect();
        let slower = if measurements.len() > 1 { "; the slower one counts" } else { "" };
        let source = match self.source {
            Source::Told => "--ost-speed".to_owned(),
            Source::Lately => format!("measured recently: {}{slower}", measurements.join(", ")),
            Source::Reading => format!("measured by reading this file: {}{slower}", measurements.join(", ")),
            Source::Assumed => "assumed, because nothing was measured recently; set it with --ost-speed".to_owned(),
        };
        let speed = megabytes(self.average());
        let link = self.speeds.client_speed;
        format!("Estimated with {places} of {speed} ({source}) and a link of {link} MB/s per client (--client-speed).")
    }
}

fn mean(speeds: &[u64]) -> Option<u64> {
    let sum: u128 = speeds.iter().copied().map(u128::from).sum();
    sum.checked_div(speeds.len() as u128).map(|mean| mean as u64)
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::{Moved, TargetCondition};
    use types::SpaceUsage;

    use super::*;

    const SPEEDS: Speeds = Speeds { ost_speed: None, client_speed: 3000 };

    fn ost(index: u16, device: Option<u64>, written: u64, read: u64) -> TargetStatus {
        let moved = |megabytes: u64| Moved { bytes: megabytes * 1_000_000, busy_us: 1_000_000 };
        TargetStatus {
            role: TargetRole::Ost(OstIndex(index)),
            uuid: String::new(),
            address: String::new(),
            active: true,
            connected: true,
            condition: TargetCondition { written: moved(written), read: moved(read), ..TargetCondition::default() },
            space: Some(SpaceUsage { device: device.map(DeviceId), ..SpaceUsage::default() }),
        }
    }

    fn osts(indices: &[u16]) -> Vec<OstIndex> {
        indices.iter().copied().map(OstIndex).collect()
    }

    #[test]
    fn osts_on_one_device_are_as_fast_as_that() {
        let shared: Vec<_> = (0..4).map(|index| ost(index, Some(1), 246, 812)).collect();
        let speeds = OstSpeeds::of(&shared, SPEEDS);
        assert_eq!((speeds.osts(), speeds.devices()), (4, 1));
        assert_eq!(speeds.together(&osts(&[0, 1, 2, 3])), 246_000_000);
        assert_eq!(
            speeds.assumption(),
            "Estimated with 4 OSTs on 1 device of 246 MB/s (measured recently: writes 246 MB/s, reads 812 MB/s; the slower one \
             counts) and a link of 3000 MB/s per client (--client-speed)."
        );
        let apart: Vec<_> = (0..4).map(|index| ost(index, Some(u64::from(index)), 246, 0)).collect();
        assert_eq!(OstSpeeds::of(&apart, SPEEDS).together(&osts(&[0, 1, 2, 3])), 4 * 246_000_000);
        assert_eq!(
            OstSpeeds::of(&apart, SPEEDS).together(&osts(&[0, 0, 1])),
            369_000_000,
            "two of three stripes on one"
        );
    }

    #[test]
    fn the_slowest_device_decides_and_what_is_dead_is_told() {
        let mut targets = [ost(0, None, 100, 0), ost(1, None, 400, 0), ost(2, None, 0, 0), ost(3, None, 400, 0)];
        targets[3].connected = false;
        let speeds = OstSpeeds::of(&targets, SPEEDS);
        assert_eq!(speeds.together(&osts(&[0, 1])), 200_000_000);
        assert_eq!(speeds.together(&osts(&[2])), 250_000_000, "not measured: as the others on average");
        assert_eq!((speeds.osts(), speeds.unusable(&[1, 3, 3])), (3, vec![3]));
    }

    #[test]
    fn without_a_measurement_a_speed_is_assumed_or_told() {
        let targets = [ost(0, None, 0, 0)];
        let assumed = OstSpeeds::of(&targets, SPEEDS);
        assert_eq!((assumed.source(), assumed.together(&osts(&[0]))), (Source::Assumed, 350_000_000));
        assert!(assumed.assumption().contains("of 350 MB/s (assumed, because nothing was measured recently"));
        let told = OstSpeeds::of(&[ost(0, None, 100, 0)], Speeds { ost_speed: Some(500), ..SPEEDS });
        assert_eq!((told.source(), told.together(&osts(&[0]))), (Source::Told, 500_000_000));
    }
}
