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
    WelcomeAborts,
    /// An answer to an attempt that does not exist is answered with an abort.
    UnknownAborts,
    /// Messages of an earlier start of the sender are ignored once its next start is known.
    EarlierMessagesIgnored,
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
    pub const ALL: [Rule; 23] = [
        Rule::PromisesAreDurable,
        Rule::DecisionsAreDurable,
        Rule::LoggedAfterDurable,
        Rule::AppliedOnce,
        Rule::EarlierStartsAbort,
        Rule::WelcomeAborts,
        Rule::UnknownAborts,
        Rule::EarlierMessagesIgnored,
        Rule::ReadersWait,
        Rule::WritersWait,
        Rule::Ordered,
        Rule::NamesAreCompared,
        Rule::TreeLock,
        Rule::TreeLockAlways,
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
