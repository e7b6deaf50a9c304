//! The last line of a check.

use types::counted;

use super::Summary;

impl Summary {
    /// Whether anything was checked: a check that was refused at once has nothing to report.
    pub fn has_begun(&self) -> bool {
        self.inodes > 0 || self.objects > 0 || !self.findings.is_empty()
    }

    /// Problems that were not repaired.
    pub fn problems_left(&self) -> usize {
        self.findings.iter().filter(|finding| !finding.repaired).count()
    }

    /// The verdict in a word, for programs: "clean", "no problems" (but not all could be judged),
    /// or "not clean".
    pub fn word(&self, is_complete: bool) -> &'static str {
        match (is_complete && self.problems_left() == 0, self.reservations().is_empty()) {
            (true, true) => "clean",
            (true, false) => "no problems",
            (false, _) => "not clean",
        }
    }

    /// "clean", or how many problems are left; what else the lines above tell is not taken for
    /// clean.
    pub fn verdict(&self, is_complete: bool) -> String {
        let (left, repaired) = (self.problems_left(), self.findings.len() - self.problems_left());
        let reservations = self.reservations();
        let found = match (is_complete, left, repaired) {
            (false, ..) => format!("{} left, check not complete", counted(left, "problem")),
            (true, 0, 0) if reservations.is_empty() => "clean".to_owned(),
            (true, 0, 0) => "no problems".to_owned(),
            (true, 0, repaired) if reservations.is_empty() => {
                format!("clean: {} repaired", counted(repaired, "problem"))
            }
            (true, 0, repaired) => format!("no problems left, {repaired} repaired"),
            (true, left, 0) => format!("{} left", counted(left, "problem")),
            (true, left, repaired) => format!("{} left, {repaired} repaired", counted(left, "problem")),
        };
        std::iter::once(found).chain(reservations).collect::<Vec<_>>().join("; ")
    }

    /// What keeps a check without problems from being clean.
    fn reservations(&self) -> Vec<String> {
        let mut reservations = Vec::new();
        if !self.unchecked.is_empty() {
            reservations
                .push(format!("{} not checked for missing host files", counted(self.unchecked.len(), "target")));
        }
        if !self.deactivated.is_empty() {
            reservations.push(format!("{} not checked", counted(self.deactivated.len(), "deactivated target")));
        }
        if self.uncompared > 0 {
            reservations.push(format!("sizes of {} not compared", counted(self.uncompared, "file")));
        }
        if self.unjudged > 0 {
            reservations.push(format!("{} not judged", counted(self.unjudged, "object")));
        }
        let unreferenced = self.unreferenced.iter().filter(|file| !file.removed).count();
        if unreferenced > 0 {
            reservations.push(counted(unreferenced, "unreferenced file"));
        }
        reservations
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::{mdt::Finding, mgs::TargetRole};
    use types::{InodeNumber, OstIndex};

    use super::{
        super::{Unreferenced, UnreferencedKind},
        *,
    };

    fn summary(problems: &[bool]) -> Summary {
        let finding = |repaired: &bool| Finding { inode: InodeNumber(1), problem: String::new(), repaired: *repaired };
        Summary { findings: problems.iter().map(finding).collect(), ..Summary::default() }
    }

    #[test]
    fn a_check_ends_with_clean_or_a_count() {
        assert_eq!(summary(&[]).verdict(true), "clean");
        assert_eq!(summary(&[true, true]).verdict(true), "clean: 2 problems repaired");
        assert_eq!(summary(&[false]).verdict(true), "1 problem left");
        assert_eq!(summary(&[false, true, false]).verdict(true), "2 problems left, 1 repaired");
        assert_eq!(summary(&[]).verdict(false), "0 problems left, check not complete");
    }

    #[test]
    fn what_was_not_judged_is_not_called_clean() {
        let unchecked = Summary { unchecked: vec![(OstIndex(1), String::new())], ..Summary::default() };
        assert_eq!(unchecked.verdict(true), "no problems; 1 target not checked for missing host files");
        let deactivated = [OstIndex(1), OstIndex(2)].map(TargetRole::Ost).to_vec();
        let partly = Summary { deactivated, uncompared: 1, ..Summary::default() };
        assert_eq!(
            partly.verdict(true),
            "no problems; 2 deactivated targets not checked; sizes of 1 file not compared"
        );
        let moved = Summary { unjudged: 2, ..Summary::default() };
        assert_eq!(moved.verdict(true), "no problems; 2 objects not judged");
        let file = |removed| Unreferenced { path: "x".into(), kind: UnreferencedKind::Foreign, removed };
        let summary_of_files =
            Summary { unreferenced: vec![file(false), file(false), file(true)], ..Summary::default() };
        assert_eq!(summary_of_files.verdict(true), "no problems; 2 unreferenced files");
        let repaired = Summary { findings: summary(&[true]).findings, ..summary_of_files };
        assert_eq!(repaired.verdict(true), "no problems left, 1 repaired; 2 unreferenced files");
        for (judged, word) in [(&unchecked, "no problems"), (&repaired, "no problems"), (&summary(&[true]), "clean")] {
            assert_eq!(judged.word(true), word);
            assert_eq!(judged.word(false), "not clean");
        }
        assert_eq!(summary(&[false]).word(true), "not clean");
    }
}
