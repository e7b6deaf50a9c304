//! E5, metadata scaling with several metadata targets (Crowe, Lavender and Simms, Indiana
//! University): mknod, stat and unlink in directories that are on the MDTs in turn, 4 tasks in
//! each, and in one striped directory. 6 MDS with up to 6 MDTs, 20 client nodes with 32 mounts
//! each.
//!
//! Beyond the study: up to 64 MDS, with as many tasks for each of them, to answer its open
//! question.

pub mod findings;
pub mod run;
pub mod task;

/// Client nodes, ...
pub const NODES: u16 = 20;
/// ... mounts on each of them, ...
pub const MOUNTS: u16 = 32;
/// ... and tasks in each directory, as published.
pub const DIRECTORY_TASKS: u32 = 4;
/// Files in all directories together, as published.
pub const FILES: u64 = 200_000;
/// Files in the striped directory, and the tasks that make them, as published.
pub const STRIPED_FILES: u64 = 6_400_000;
/// See [`STRIPED_FILES`].
pub const STRIPED_TASKS: u32 = 640;
/// Cores of an MDS, and of a client node: the study's are not known; those of E2.
pub const SERVER_CORES: u32 = 12;
/// See [`SERVER_CORES`].
pub const NODE_CORES: u32 = 20;

/// Numbers of MDS in the study.
pub const SERVERS: [u16; 4] = [1, 2, 4, 6];
/// Numbers of directories with which these are compared, of the published 1 to 128.
pub const DIRECTORIES: [u32; 4] = [1, 16, 64, 128];
/// Numbers of MDTs of one MDS, ...
pub const MDTS: [u16; 5] = [1, 2, 3, 4, 6];
/// ... and of directories with which these are compared: 256 tasks.
pub const MDT_DIRECTORIES: u32 = 64;
/// Numbers of MDS of the open question.
pub const MANY_SERVERS: [u16; 8] = [1, 2, 4, 6, 8, 16, 32, 64];
/// Directories and tasks for each of these.
pub const SERVER_DIRECTORIES: u32 = 16;
/// See [`SERVER_DIRECTORIES`].
pub const SERVER_TASKS: u32 = SERVER_DIRECTORIES * DIRECTORY_TASKS;

/// What is measured, in this order.
pub const PHASES: [&str; 3] = ["mknod", "stat", "unlink"];

/// Which names the tasks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// Directories on the MDTs in turn, with [`DIRECTORY_TASKS`] each.
    Separate {
        /// So many.
        directories: u32,
    },
    /// One directory that is striped over all MDTs.
    Striped {
        /// Tasks that share it.
        tasks: u32,
    },
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// MDS.
    pub servers: u16,
    /// MDTs of each.
    pub mdts: u16,
    /// What the tasks do.
    pub load: Load,
}

/// What a phase of a cell came to.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Outcome {
    /// Name of the cell.
    pub cell: String,
    /// What was done.
    pub phase: &'static str,
    /// Operations of all tasks.
    pub operations: u64,
    /// Seconds from the first task's start to the last one's end; live, to the first one's end.
    pub seconds: f64,
    /// Requests of clients for each operation.
    pub requests: f64,
    /// Part of its processor time that the busiest MDS worked or changed tasks.
    pub server_use: f64,
    /// The same of the MDS that is least busy.
    pub server_use_min: f64,
    /// The same of the busiest client node; live, of this host by all clients.
    pub node_use: f64,
}

impl Outcome {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

/// How much of a study is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Files in separate directories, of all tasks together.
    pub files: u64,
    /// Files in a striped directory.
    pub striped_files: u64,
    /// Least files of a task: few would show how tasks begin and end.
    pub task_files_min: u64,
    /// Mounts of each client node, at most.
    pub mounts: u16,
}

impl Load {
    /// Tasks of all directories together.
    pub fn tasks(self) -> u32 {
        match self {
            Load::Separate { directories } => directories * DIRECTORY_TASKS,
            Load::Striped { tasks } => tasks,
        }
    }

    /// Its name, whatever its size.
    pub fn name(self) -> &'static str {
        match self {
            Load::Separate { .. } => "separate directories",
            Load::Striped { .. } => "one striped directory",
        }
    }
}

impl Cell {
    /// In directories of their own.
    pub fn separate(servers: u16, mdts: u16, directories: u32) -> Self {
        Self { servers, mdts, load: Load::Separate { directories } }
    }

    /// In one striped directory.
    pub fn striped(servers: u16, mdts: u16, tasks: u32) -> Self {
        Self { servers, mdts, load: Load::Striped { tasks } }
    }

    /// The same with so many MDTs of each MDS.
    pub fn with_mdts(self, mdts: u16) -> Self {
        Self { mdts, ..self }
    }

    /// All MDTs.
    pub fn mdts_in_all(self) -> u16 {
        self.servers * self.mdts
    }

    /// Its name: `4x1, 64 directories`, `6x6, striped, 640 tasks`.
    pub fn name(self) -> String {
        let Cell { servers, mdts, load } = self;
        match load {
            Load::Separate { directories: 1 } => format!("{servers}x{mdts}, 1 directory"),
            Load::Separate { directories } => format!("{servers}x{mdts}, {directories} directories"),
            Load::Striped { tasks } => format!("{servers}x{mdts}, striped, {tasks} tasks"),
        }
    }

    /// Files of each of its tasks.
    pub fn task_files(self, amount: Amount) -> u64 {
        let files = match self.load {
            Load::Separate { .. } => amount.files,
            Load::Striped { .. } => amount.striped_files,
        };
        files.div_ceil(self.load.tasks().into()).max(amount.task_files_min)
    }
}

/// All cells, up to so many MDS.
pub fn cells(servers_max: u16) -> Vec<Cell> {
    let mut cells = MANY_SERVERS.map(growing_separate).to_vec();
    cells.extend(MANY_SERVERS.map(growing_striped));
    for directories in DIRECTORIES {
        cells.extend(SERVERS.map(|servers| Cell::separate(servers, 1, directories)));
    }
    cells.extend(MDTS.map(|mdts| Cell::separate(1, mdts, MDT_DIRECTORIES)));
    cells.extend(SERVERS.map(|servers| Cell::separate(servers, 6, 128)));
    cells.extend(SERVERS.map(|servers| Cell::striped(servers, 1, STRIPED_TASKS)));
    cells.push(Cell::striped(6, 6, STRIPED_TASKS));
    let mut unique: Vec<Cell> = Vec::new();
    for cell in cells.into_iter().filter(|cell| cell.servers <= servers_max) {
        if !unique.contains(&cell) {
            unique.push(cell);
        }
    }
    unique
}

/// Directories of its own for each MDS, as many as there are MDS more.
pub fn growing_separate(servers: u16) -> Cell {
    Cell::separate(servers, 1, SERVER_DIRECTORIES * u32::from(servers))
}

/// A striped directory, with tasks for each MDS.
pub fn growing_striped(servers: u16) -> Cell {
    Cell::striped(servers, 1, SERVER_TASKS * u32::from(servers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_those_of_the_study_and_of_its_open_question() {
        let all = cells(64);
        let names: Vec<String> = all.iter().map(|cell| cell.name()).collect();
        for name in ["6x6, 128 directories", "6x6, striped, 640 tasks", "64x1, 1024 directories", "1x1, 1 directory"] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
        assert!(cells(6).iter().all(|cell| cell.servers <= 6) && cells(6).len() < all.len());
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
    }

    #[test]
    fn tasks_share_the_files_and_have_a_least_number() {
        let amount = Amount { files: 1000, striped_files: 640_000, task_files_min: 16, mounts: 32 };
        assert_eq!(Cell::separate(1, 1, 10).task_files(amount), 25);
        assert_eq!(Cell::separate(1, 1, 128).task_files(amount), 16);
        assert_eq!(Cell::striped(6, 6, STRIPED_TASKS).task_files(amount), 1000);
    }
}
