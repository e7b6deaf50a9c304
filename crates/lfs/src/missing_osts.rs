//! For a refused layout, names the requested OSTs that the file system does not have: the errno
//! (22, EINVAL) does not say this.

use layout::{LayoutSpec, StripeSpec, spec::BackingSpec};
use rpc::message::{control::TargetStatus, mgs::TargetRole};
use types::{OstIndex, counted};

/// `there is no OST 17 (0011); this file system has 4 OSTs: 0-3`; `None` if all that are asked for
/// are there.
pub fn refusal(spec: &LayoutSpec, targets: &[TargetStatus]) -> Option<String> {
    let mut present: Vec<u16> = targets.iter().filter_map(|target| ost(target.role)).collect();
    present.sort_unstable();
    let missing = asked(spec).into_iter().find(|ost| !present.contains(&ost.0))?;
    Some(format!(
        "there is no OST {} ({:04x}); this file system has {}{}",
        missing.0,
        missing.0,
        counted(present.len(), "OST"),
        ranges(&present)
    ))
}

fn ost(role: TargetRole) -> Option<u16> {
    match role {
        TargetRole::Ost(ost) => Some(ost.0),
        TargetRole::Mdt(_) => None,
    }
}

/// All OSTs that a request names.
fn asked(spec: &LayoutSpec) -> Vec<OstIndex> {
    let named = |stripes: &StripeSpec| stripes.first_ost.into_iter().chain(stripes.osts.clone()).collect::<Vec<_>>();
    match spec {
        LayoutSpec::Plain(stripes) => named(stripes),
        LayoutSpec::Composite(components) => {
            let of_component = |backing: &BackingSpec| match backing {
                BackingSpec::Striped(stripes) | BackingSpec::Extended(stripes, _) => named(stripes),
                BackingSpec::Mdt | BackingSpec::Automatic => Vec::new(),
            };
            components.iter().flat_map(|component| of_component(&component.backing)).collect()
        }
        LayoutSpec::Automatic => Vec::new(),
    }
}

/// `: 0-2, 5`; nothing of nothing.
fn ranges(sorted: &[u16]) -> String {
    let runs = sorted.chunk_by(|one, next| next - one == 1);
    let texts: Vec<String> = runs
        .map(|run| match run {
            [only] => only.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    if texts.is_empty() { String::new() } else { format!(": {}", texts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use layout::spec::ComponentSpec;
    use rpc::message::ost::TargetCondition;
    use types::MdtIndex;

    use super::*;

    fn target(role: TargetRole) -> TargetStatus {
        TargetStatus {
            role,
            uuid: String::new(),
            address: String::new(),
            active: true,
            connected: true,
            condition: TargetCondition::default(),
            space: None,
        }
    }

    #[test]
    fn the_first_ost_that_is_missing_is_named_beside_those_that_are_there() {
        let osts = [0, 1, 2, 5].map(|ost| target(TargetRole::Ost(OstIndex(ost))));
        let targets: Vec<_> = osts.into_iter().chain([target(TargetRole::Mdt(MdtIndex(0)))]).collect();
        let from = |first| StripeSpec { first_ost: Some(OstIndex(first)), ..StripeSpec::default() };
        let expected = "there is no OST 17 (0011); this file system has 4 OSTs: 0-2, 5";
        assert_eq!(refusal(&LayoutSpec::Plain(from(17)), &targets).as_deref(), Some(expected));
        assert_eq!(refusal(&LayoutSpec::Plain(from(5)), &targets), None);
        let listed = StripeSpec { osts: vec![OstIndex(1), OstIndex(3)], ..StripeSpec::default() };
        let backings = [BackingSpec::Mdt, BackingSpec::Striped(listed)];
        let components = backings.map(|backing| ComponentSpec { end: u64::MAX, backing }).to_vec();
        let expected = "there is no OST 3 (0003); this file system has 1 OST: 1";
        assert_eq!(refusal(&LayoutSpec::Composite(components), &targets[1..2]).as_deref(), Some(expected));
        assert_eq!(refusal(&LayoutSpec::Automatic, &targets), None);
    }
}
