//! The watch: who of a job is gone, told to all, apart from the path of messages.
//!
//! Inside a node the kernel says when a process ends. Between nodes one sleeping thread per node
//! holds TCP connections to a few neighbour nodes' threads: the kernel closes those of a process
//! that ends, and answers for one that is stopped or busy, so that silence of a program means
//! nothing here. What a watch learns it posts on its node's board, in shared memory, and tells its
//! neighbours, who do the same.
//!
//! Never on the path of a message: a rank reads one word of the board in each round of progress.

mod address;
pub mod board;
mod graph;
mod handle;
mod news;
mod spread;
mod talk;
mod thread;

pub use address::{decode_addresses, encode_addresses};
pub use board::Board;
pub use graph::{MAX_NEIGHBOURS, neighbours};
pub use handle::{Listening, Neighbour, Setup, Watch, eventfd, is_woken, wake};
pub use news::{Cause, News, agent_dead};
pub(crate) use thread::keep_alive;
