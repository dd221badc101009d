//! Reasons not to sleep that a person may overrule.

use std::str::FromStr;

/// A reason not to sleep that a person may overrule (`lowtide run --despite`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// A network card that was told about device memory.
    Rdma,
    /// `GDRCopy`: device memory that the processor reads and writes.
    Gdrcopy,
    /// `cuFile`: a disk that reads into device memory.
    Cufile,
    /// UCX, which remembers what it told the network card.
    Ucx,
    /// NVSHMEM: memory that other processes use.
    Nvshmem,
    /// The multi-process service, which shares one context among processes.
    Mps,
    /// Memory for which every operation is to be synchronous.
    SyncMemops,
    /// A library that the program loaded so that it finds the driver's functions past the agent's.
    Deepbind,
}

impl Obstacle {
    /// All of them.
    pub const ALL: [Obstacle; 8] = [
        Obstacle::Rdma,
        Obstacle::Gdrcopy,
        Obstacle::Cufile,
        Obstacle::Ucx,
        Obstacle::Nvshmem,
        Obstacle::Mps,
        Obstacle::SyncMemops,
        Obstacle::Deepbind,
    ];

    /// Returns the word for it on a command line.
    pub fn word(self) -> &'static str {
        self.words().0
    }

    /// Returns its name for people.
    pub fn title(self) -> &'static str {
        self.words().1
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Obstacle::Rdma => ("rdma", "RDMA by libibverbs"),
            Obstacle::Gdrcopy => ("gdrcopy", "GDRCopy"),
            Obstacle::Cufile => ("cufile", "cuFile"),
            Obstacle::Ucx => ("ucx", "UCX"),
            Obstacle::Nvshmem => ("nvshmem", "NVSHMEM"),
            Obstacle::Mps => ("mps", "the multi-process service MPS"),
            Obstacle::SyncMemops => ("sync-memops", "SYNC_MEMOPS"),
            Obstacle::Deepbind => ("deepbind", "RTLD_DEEPBIND"),
        }
    }
}

/// A word that is no obstacle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is no obstacle; write {}", Obstacle::ALL.map(Obstacle::word).join(", "))]
pub struct ParseObstacleError {
    /// The word.
    pub word: String,
}

impl FromStr for Obstacle {
    type Err = ParseObstacleError;

    /// Reads an obstacle from its word.
    ///
    /// ```
    /// use lowtide_proto::Obstacle;
    /// assert_eq!("ucx".parse(), Ok(Obstacle::Ucx));
    /// let error = "xcu".parse::<Obstacle>().unwrap_err().to_string();
    /// assert!(error.contains("nvshmem"), "{error}");
    /// ```
    fn from_str(word: &str) -> Result<Obstacle, ParseObstacleError> {
        let found = Obstacle::ALL.into_iter().find(|obstacle| obstacle.word() == word);
        found.ok_or_else(|| ParseObstacleError { word: word.to_owned() })
    }
}
