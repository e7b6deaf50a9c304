//! The rules of the protocol. A run may break one of them, to show that the checks notice.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// What is promised is durable before the answer.
    PromisesAreDurable,
    /// A decision is durable before another MDT hears of it.
    DecisionsAreDurable,
    /// A decision stays in the log until the other MDT has it durably.
    LoggedAfterDurable,
    /// A decision is applied once, by its number.
    AppliedOnce,
    /// What an earlier start prepared and did not decide is aborted.
    EarlierStartsAbort,
    /// A restarted participant hears what is not going to happen.
    JoinedEnds,
    /// The answer to a restarted MDT is sent when the decisions that it names are durable.
    JoinedIsDurable,
    /// A restarted MDT waits for the decisions that the answer names.
    JoinedNamesDecisions,
    /// A restarted MDT delivers the decisions of its former starts first.
    FormerDecisionsFirst,
    /// An attempt that is given up is aborted when the answer to its last Prepare is there.
    AbortsFollowAnswers,
    /// A Prepare is executed once; a copy of it does nothing.
    PreparesOnce,
    /// A Prepare of an earlier start of the sender is refused once its next start has joined.
    LatePreparesRefused,
    /// Nobody reads what is prepared.
    ReadersWait,
    /// Nobody changes what is prepared.
    WritersWait,
    /// MDTs are locked in the order of their numbers.
    Ordered,
    /// A name is only changed if it leads where the coordinator believed.
    NamesAreCompared,
    /// One rename of a directory to another parent at a time, if it concerns several MDTs.
    TreeLock,
    /// Also those that concern one MDT.
    TreeLockAlways,
    /// What its former holders have changed at its own MDT is durable before another MDT gets it.
    TreeIsDurable,
    /// Nothing is above itself.
    LoopCheck,
    /// An attempt that lost a hold begins again.
    LostHoldsRestart,
    /// A restarted MDT serves nobody before it has heard the decisions of the others.
    HearBeforeServing,
    /// The answer is stored with the change.
    RepliesAreStored,
    /// A link that is added must survive a power loss.
    AddedLinksArePromised,
    /// So must the emptiness of a directory that is removed.
    EmptinessIsPromised,
    /// And a name that is taken away.
    NamesArePromised,
    /// Removing a directory excludes operations on its names.
    FreezeExcludesNames,
    /// A directory that is removed is empty everywhere.
    EveryShardIsAsked,
}

impl Rule {
    pub const ALL: [Rule; 28] = [
        Rule::PromisesAreDurable,
        Rule::DecisionsAreDurable,
        Rule::LoggedAfterDurable,
        Rule::AppliedOnce,
        Rule::EarlierStartsAbort,
        Rule::JoinedEnds,
        Rule::JoinedIsDurable,
        Rule::JoinedNamesDecisions,
        Rule::FormerDecisionsFirst,
        Rule::AbortsFollowAnswers,
        Rule::PreparesOnce,
        Rule::LatePreparesRefused,
        Rule::ReadersWait,
        Rule::WritersWait,
        Rule::Ordered,
        Rule::NamesAreCompared,
        Rule::TreeLock,
        Rule::TreeLockAlways,
        Rule::TreeIsDurable,
        Rule::LoopCheck,
        Rule::LostHoldsRestart,
        Rule::HearBeforeServing,
        Rule::RepliesAreStored,
        Rule::AddedLinksArePromised,
        Rule::EmptinessIsPromised,
        Rule::NamesArePromised,
        Rule::FreezeExcludesNames,
        Rule::EveryShardIsAsked,
    ];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules(pub Option<Rule>);

impl Rules {
    pub fn hold(self, rule: Rule) -> bool {
        self.0 != Some(rule)
    }
}
