//! Jobs over a simulated fabric with the limits and rules of each provider, by its name: a limit
//! that is passed, a tag that is too wide, a buffer that is used before its time end them.

use trihop_transport::fabric::quirks;

use super::schedule::{run_schedules, sim_of};

macro_rules! providers {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                run_schedules(16, false, 40, |seed, _| sim_of(stringify!($name), seed));
                run_schedules(8, true, 20, |seed, _| sim_of(stringify!($name), seed));
            }
        )*

        #[test]
        fn none_is_left_out() {
            let names: Vec<&str> = quirks::SIMULATED.iter().map(|(name, ..)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

providers!(cxi verbs efa psm3 opx tcp rxm shm);
