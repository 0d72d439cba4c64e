//! Only the dead are dead: who is slow or stopped is accused by nobody, and who is killed is named
//! by everybody.
//!
//! Each test starts itself again as the ranks of a job (see `ranks`), or a C program, and kills,
//! stops or cuts them off.

mod dead;
mod kills;
#[path = "../launched/mod.rs"]
mod launched;
mod minis;
mod ranks;
mod slow;
