//! The policies of a service: which one is in use, its settings and rules. They can be changed
//! while requests wait.

use std::sync::Arc;

use nrs::{Facts, PolicyState, Refused, Selection, Settings};

use super::Service;

impl Service {
    /// The policy by which waiting requests are executed.
    pub fn policy(&self) -> Selection {
        self.state.lock().queue.selection()
    }

    /// Takes another policy into use, also for what waits.
    pub fn set_policy(self: &Arc<Self>, selection: Selection) {
        let now = self.clock.now();
        // The random numbers of a policy need not be secret.
        self.state.lock().queue.select(now.0, selection, now.0);
        self.start_waiting();
    }

    /// All policies, with the number of requests that each executes now.
    pub fn policies(&self) -> Vec<(PolicyState, usize)> {
        let state = self.state.lock();
        let with_active = |policy: PolicyState| {
            let active = state.active[policy.name as usize];
            (policy, active)
        };
        state.queue.states().into_iter().map(with_active).collect()
    }

    /// Settings of the policies.
    pub fn policy_settings(&self) -> Settings {
        self.state.lock().queue.settings()
    }

    /// Changes one setting of the policies, as [`Settings::with`].
    pub fn set_policy_setting(&self, name: &str, text: &str) -> Result<(), Refused> {
        let mut state = self.state.lock();
        let settings = state.queue.settings().with(name, text)?;
        state.queue.configure(settings);
        Ok(())
    }

    /// The rules of tbf.
    pub fn policy_rules(&self) -> String {
        self.state.lock().queue.rules()
    }

    /// Changes the rules of tbf. `opcodes`: names of all requests.
    pub fn change_policy_rules(self: &Arc<Self>, text: &str, opcodes: &[&'static str]) -> Result<(), Refused> {
        let now = self.clock.now();
        self.state.lock().queue.change_rules(now.0, text, opcodes)?;
        self.start_waiting();
        Ok(())
    }

    /// Waiting requests of which this is true are held back by no policy any more, nor by one that
    /// is chosen later.
    pub(crate) fn release(self: &Arc<Self>, is_wanted: &dyn Fn(&Facts) -> bool) {
        self.state.lock().queue.release(is_wanted);
        self.start_waiting();
    }
}
