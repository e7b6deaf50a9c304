//! A study's sentences on several testbeds, side by side: which of them depend on a figure of the
//! model.

use comfy_table::Table;

use crate::{bench::report::STYLE, study::shape::Finding};

/// A line for each sentence that can be judged on all testbeds: whether it holds, and by what it
/// was judged, on each testbed; and whether that is the same on all. There is at least one testbed.
pub(super) fn side_by_side(names: &[&str], findings: &[Vec<Finding>]) -> Table {
    let mut table = Table::new();
    let header = std::iter::once("sentence").chain(names.iter().copied()).chain(["the same"]);
    table.load_style(STYLE).set_header(header);
    let (first, others) = findings.split_first().expect("there is a testbed");
    let is_measured = |number: usize| findings.iter().all(|of| of[number].is_measured());
    for (number, finding) in first.iter().enumerate().filter(|(number, _)| is_measured(*number)) {
        let alike = others.iter().all(|other| other[number].holds == finding.holds);
        let judged = findings.iter().map(|of| {
            let Finding { holds, results, .. } = &of[number];
            format!("{}: {results}", if *holds { "holds" } else { "no" })
        });
        let alike = if alike { "yes" } else { "NO" };
        table.add_row(std::iter::once(finding.sentence.clone()).chain(judged).chain([alike.to_owned()]));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_that_depends_on_the_testbed_stands_out() {
        let finding = |sentence: &str, holds, results: &str| Finding {
            sentence: sentence.to_owned(),
            holds,
            results: results.to_owned(),
        };
        let findings = [
            vec![finding("one", true, "1%"), finding("other", false, "2%")],
            vec![finding("one", true, "3%"), finding("other", true, "4%")],
        ];
        let text = side_by_side(&["as measured", "costs +30%"], &findings).to_string();
        let line = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
        assert!(line("one").contains("holds: 1%") && line("one").trim_end().ends_with("yes"), "{text}");
        assert!(line("other").contains("no: 2%") && line("other").contains("holds: 4%"), "{text}");
        assert!(line("other").trim_end().ends_with("NO"), "{text}");
    }
}
