//! Two mounts that do the same at once, each of which has cached that it is possible.

use crate::{
    OTHER, OWNER,
    common::{Agent, FileSystem, User, agent::ROOT},
    start,
};

/// How often each race is run.
const ROUNDS: usize = 100;

/// A race: each round has exactly one winner.
struct Race {
    name: &'static str,
    /// Done before each round on the first mount.
    prepare: &'static str,
    /// Done by both before the round, so that they have cached the result.
    look: &'static str,
    /// Done by both at once; one succeeds, and the other has this error.
    contest: [&'static str; 2],
    loser: &'static str,
    /// Done after each round.
    clean: &'static str,
}

const RACES: &[Race] = &[
    Race {
        name: "O_EXCL",
        prepare: "names .",
        look: "stat f; access f e",
        contest: ["create f 666", "create f 666"],
        loser: "EEXIST",
        clean: "unlink f",
    },
    Race {
        name: "mkdir",
        prepare: "names .",
        look: "stat f; names .",
        contest: ["mkdir f 777", "mkdir f 777"],
        loser: "EEXIST",
        clean: "rmdir f",
    },
    Race {
        name: "symlink and link",
        prepare: "write g x",
        look: "stat f; stat g links",
        contest: ["symlink g f", "link g f"],
        loser: "EEXIST",
        clean: "unlink f; unlink g",
    },
    Race {
        name: "unlink",
        prepare: "write f x",
        look: "cat f; stat f links",
        contest: ["unlink f", "unlink f"],
        loser: "ENOENT",
        clean: "names .",
    },
    Race {
        name: "rename of one name",
        prepare: "write f x",
        look: "cat f; stat a; stat b",
        contest: ["rename f a", "rename f b"],
        loser: "ENOENT",
        clean: "names .",
    },
    Race {
        name: "unlink and rename",
        prepare: "write f x",
        look: "cat f; stat a",
        contest: ["unlink f", "rename f a"],
        loser: "ENOENT",
        clean: "names .",
    },
    Race {
        name: "rmdir",
        prepare: "mkdir d 777",
        look: "names d; stat d",
        contest: ["rmdir d", "rmdir d"],
        loser: "ENOENT",
        clean: "names .",
    },
];

impl Race {
    fn run(&self, system: &FileSystem, users: [User; 2], directory: &str) {
        let agents = [0, 1].map(|mount| Agent::start(system.path(mount).join(directory), users[mount]));
        for round in 0..ROUNDS {
            let case = format!("{} between {} and {}, round {round}", self.name, users[0].name, users[1].name);
            agents[0].run(self.prepare);
            for _ in 0..2 {
                let looks = [0, 1].map(|mount| agents[mount].run(self.look));
                assert_eq!(looks[0], looks[1], "{case}: before");
            }
            for (agent, command) in agents.iter().zip(self.contest) {
                agent.begin(command);
            }
            let mut answers = [0, 1].map(|mount| agents[mount].answer());
            let looks = [0, 1].map(|mount| agents[mount].run(self.look));
            assert_eq!(looks[0], looks[1], "{case}: after {answers:?}");
            let names = [0, 1].map(|mount| agents[mount].run("names ."));
            assert_eq!(names[0], names[1], "{case}: after {answers:?}");
            answers.sort();
            assert_eq!(answers, [self.loser, "ok"], "{case}");
            let cleaned = agents[round % 2].run(self.clean);
            assert!(!cleaned.contains('E'), "{case}: cleaning: {cleaned}");
        }
    }
}

#[test]
fn what_both_believe_possible_succeeds_once() {
    let system = start("rw");
    for (number, race) in RACES.iter().enumerate() {
        for (turn, users) in [[ROOT, ROOT], [OWNER, OTHER]].into_iter().enumerate() {
            let directory = format!("race{number}-{turn}");
            let made = Agent::start(system.root(), ROOT).run(&format!("mkdir {directory} 777"));
            assert_eq!(made, "ok");
            race.run(&system, users, &directory);
        }
    }
    system.finish();
}
