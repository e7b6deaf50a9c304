//! Operations on names over several MDTs: all orders of steps, messages, crashes and power losses,
//! see docs/decisions/0049-namespace-over-several-mdts.md. Two operations at a time, of all kinds.
//! At rest, names, inodes and link counts agree, nothing is left over, and some order of the
//! operations, one after the other, explains all answers. For each rule of the protocol there is a
//! case that fails without it.
//!
//! [`node::Node`] is the part that an MDT will have: events in, actions out. The rest is the world
//! around it.

mod cases;
mod coordinator;
mod joining;
mod node;
mod participant;
mod plan;
mod reference;
mod rest;
mod rules;
mod tables;
mod vocabulary;
mod world;

use std::{collections::HashSet, rc::Rc};

use world::{Case, Step, World};

/// More would take too long: a case is to be made smaller.
const STATES_MAX: usize = 3_000_000;

/// What led to a state.
struct Path(Step, Option<Rc<Path>>);

#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    pub states: usize,
    pub ends: usize,
}

/// Visits every state that can be reached. The error tells what is wrong, and the way there.
pub fn explore(case: &Case) -> Result<Explored, String> {
    let (world, fixed) = World::new(case);
    let mut seen = HashSet::from([world.digest()]);
    let mut next: Vec<(World, Option<Rc<Path>>)> = vec![(world, None)];
    let mut explored = Explored::default();
    while let Some((world, path)) = next.pop() {
        let steps = world.steps(&fixed);
        if steps.is_empty() {
            explored.ends += 1;
            if let Err(reason) = world.check_rest(&fixed) {
                let mut story = vec![format!("{world:#?}")];
                let mut at = path.as_ref();
                while let Some(path) = at {
                    story.push(format!("{:?}", path.0));
                    at = path.1.as_ref();
                }
                story.reverse();
                return Err(format!("{reason}\n{}", story.join("\n")));
            }
        }
        for step in steps.into_iter().chain(world.crashes(&fixed)) {
            let mut world = world.clone();
            world.take(step, &fixed);
            if seen.insert(world.digest()) {
                next.push((world, Some(Rc::new(Path(step, path.clone())))));
            }
        }
        assert!(seen.len() <= STATES_MAX, "too many states: {case:?}");
    }
    explored.states = seen.len();
    Ok(explored)
}
