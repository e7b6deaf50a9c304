//! E1, dynamic striping (Reed et al., Oak Ridge): a file whose stripes change at watermarks, against files with one
//! layout. Testbed: 8 OSS with 8 OSTs each, 16 clients; table 3 is IOR.

use layout::{END_OF_FILE, StripeCount};

use super::{
    Job, Pattern, Scale, Segment, Striping, Study,
    shape::{Finding, Rates},
};

/// OSTs of the testbed.
pub const OSTS: u32 = 64;
/// Client hosts of the testbed.
pub const CLIENTS: u32 = 16;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Tasks of IOR and bytes of each: a file of 4 TB.
const IOR_TASKS: u32 = 64;
const IOR_TASK_BYTES: u64 = 64 << 30;

/// Directory types: stripe count and stripe size in MB.
const TYPES: [(char, u32, u64); 10] = [
    ('A', 4, 1),
    ('B', 8, 1),
    ('C', 16, 1),
    ('D', 64, 1),
    ('E', 4, 2),
    ('F', 16, 2),
    ('G', 64, 2),
    ('H', 4, 4),
    ('I', 16, 4),
    ('J', 64, 4),
];

/// A file in directories of these types with these watermarks between them.
fn striping(types: &str, watermarks: &[u64], scale: Scale) -> Striping {
    let ends = watermarks.iter().map(|end| end / scale.bytes).chain([END_OF_FILE]);
    let segment = |(letter, end): (char, u64)| {
        let (_, count, mebibytes) = TYPES[letter as usize - 'A' as usize];
        let stripe_bytes = mebibytes * MIB;
        let end = if end == END_OF_FILE { end } else { end.next_multiple_of(stripe_bytes) };
        Segment { end, stripe_count: StripeCount::Exactly(scale.count(count)), stripe_bytes }
    };
    Striping::Segments(types.chars().zip(ends).map(segment).collect())
}

/// Table 3.
pub fn ior(scale: Scale) -> Study {
    let configurations: [(&str, &[u64]); 6] =
        [("A", &[]), ("B", &[]), ("C", &[]), ("AB", &[TIB]), ("AC", &[TIB]), ("ABC", &[TIB, 2 * TIB])];
    let tasks = (IOR_TASKS / scale.tasks).max(1);
    let task_bytes = (u64::from(IOR_TASKS) * IOR_TASK_BYTES / scale.bytes / u64::from(tasks)).next_multiple_of(MIB);
    let job = |(number, (types, watermarks)): (usize, &(&str, &[u64]))| Job {
        name: format!("IOR.{}", number + 1),
        striping: striping(types, watermarks, scale),
        pattern: Pattern::Shared,
        tasks,
        task_bytes,
        transfer_bytes: MIB,
    };
    let jobs = configurations.iter().enumerate().map(job).collect();
    Study { name: "e1 ior", scale, osts: OSTS / scale.osts, jobs, shape: ior_shape }
}

fn ior_shape(_: &Study, rates: &Rates) -> Vec<Finding> {
    let reads = "reads with dynamic striping (IOR.4-6) beat static (IOR.1-3)";
    let mut findings = vec![rates.beats(reads, "read", &["IOR.4", "IOR.5", "IOR.6"], &["IOR.1", "IOR.2", "IOR.3"])];
    for (dynamic, fixed) in [("IOR.4", "IOR.1"), ("IOR.5", "IOR.2"), ("IOR.6", "IOR.3")] {
        let sentence = format!("writes: {dynamic} is equal to or better than {fixed}");
        findings.push(rates.not_worse(&sentence, "write", dynamic, fixed));
    }
    findings
}

/// What the servers' cache must do: table 3 with it, against table 3 without.
pub fn cache_findings(with: &Rates, without: &Rates) -> Vec<Finding> {
    let names: Vec<String> = (1..=6).map(|number| format!("IOR.{number}")).collect();
    let change = |phase| {
        let changes = names.iter().map(|job| without.get(job, phase) / with.get(job, phase) - 1.0);
        let changes: Vec<f64> = changes.filter(|change| change.is_finite()).collect();
        100.0 * changes.iter().sum::<f64>() / changes.len() as f64
    };
    let (writes, reads) = (change("write"), change("read"));
    let below = |sentence: &str, percent: f64, range: std::ops::Range<f64>| Finding {
        sentence: sentence.to_owned(),
        holds: range.contains(&percent),
        figures: format!("{percent:+.0}% on average"),
    };
    vec![
        below("without cache writes lose little (-7%)", writes, -15.0..-1.0),
        below("without cache reads lose much (-38%)", reads, -60.0..-20.0),
        without.beats("without cache reads of IOR.6 fall below IOR.5", "read", &["IOR.5"], &["IOR.6"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_their_letters() {
        for (index, (letter, ..)) in TYPES.iter().enumerate() {
            assert_eq!(*letter as usize - 'A' as usize, index);
        }
    }

    #[test]
    fn table_3_is_as_published() {
        let study = ior(Scale::FULL);
        assert_eq!((study.osts, study.jobs.len()), (64, 6));
        assert!(study.jobs.iter().all(|job| job.bytes() == 4 * TIB && job.tasks == 64));
        let segment = |end, count| Segment { end, stripe_count: StripeCount::Exactly(count), stripe_bytes: MIB };
        let wanted = vec![segment(TIB, 4), segment(2 * TIB, 8), segment(END_OF_FILE, 16)];
        assert_eq!(study.jobs[5].striping, Striping::Segments(wanted));
    }

    #[test]
    fn a_small_table_3_has_valid_layouts() {
        for bytes in [1 << 8, 1 << 15, 30_000, 1 << 17] {
            let study = ior(Scale { bytes, osts: 4, tasks: 4 });
            assert_eq!((study.osts, study.jobs[0].tasks), (16, 16));
            for job in study.jobs {
                assert_eq!(job.striping.spec().validate(0), Ok(()), "{} at 1/{bytes}", job.name);
            }
        }
    }
}
