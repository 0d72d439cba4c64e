//! Tasks of a launcher that says which task this is, but offers no store that we know: each would
//! start a job of one.

use std::env;

use crate::error::{Error, Result};
use crate::notice;

/// What a launcher tells each of its tasks, whether or not it offers a store.
struct Tasks {
    /// Name of the launcher, for people.
    launcher: &'static str,
    /// Variable with the number of this task, from 0.
    task: &'static str,
    /// Variables with the number of tasks, or with a part of them; any that is above 1 counts.
    counts: &'static [&'static str],
    /// Variable with a number of tasks that a script around this process may have had as well.
    doubtful_count: Option<&'static str>,
    /// A number of tasks of 1 where no variable says it.
    alone_by_default: bool,
    /// What is not there.
    missing: &'static str,
    remedy: &'static str,
}

const TASKS: [Tasks; 8] = [
    Tasks {
        launcher: "`trihop run` or a script",
        task: "TRIHOP_RANK",
        counts: &["TRIHOP_SIZE"],
        doubtful_count: None,
        alone_by_default: false,
        missing: "neither TRIHOP_BOOT_FD nor TRIHOP_MASTER is set",
        remedy: "keep the variables and descriptors of `trihop run` for its ranks, or set \
                 TRIHOP_MASTER to HOST:PORT of rank 0",
    },
    Tasks {
        launcher: "Slurm",
        task: "SLURM_PROCID",
        counts: &["SLURM_STEP_NUM_TASKS"],
        doubtful_count: Some("SLURM_NTASKS"),
        alone_by_default: true,
        missing: "it offers neither PMI nor PMIx",
        remedy: "start with `srun --mpi=pmi2` or `srun --mpi=pmix`",
    },
    Tasks {
        launcher: "Flux",
        task: "FLUX_TASK_RANK",
        counts: &["FLUX_JOB_SIZE"],
        doubtful_count: None,
        alone_by_default: true,
        missing: "it offers no PMI",
        remedy: "start with `flux run -o pmi=simple`",
    },
    Tasks {
        launcher: "PALS",
        task: "PALS_RANKID",
        counts: &["PALS_LOCAL_SIZE"],
        doubtful_count: None,
        alone_by_default: true,
        missing: "it offers neither PMI-1 nor PMIx",
        remedy: "start with `mpiexec --pmi=pmix`",
    },
    Tasks {
        launcher: "Open MPI",
        task: "OMPI_COMM_WORLD_RANK",
        counts: &["OMPI_COMM_WORLD_SIZE"],
        doubtful_count: None,
        alone_by_default: true,
        missing: "its PMIx variables are not set",
        remedy: "keep the PMIX_* variables of `mpirun` for its processes",
    },
    Tasks {
        launcher: "MVAPICH",
        task: "MV2_COMM_WORLD_RANK",
        counts: &["MV2_COMM_WORLD_SIZE"],
        doubtful_count: None,
        alone_by_default: true,
        missing: "neither PMI_FD nor PMI_PORT is set",
        remedy: "start with `mpiexec`",
    },
    Tasks {
        launcher: "a PMIx launcher",
        task: "PMIX_RANK",
        counts: &[],
        doubtful_count: None,
        alone_by_default: false,
        missing: "PMIX_NAMESPACE and PMIX_SERVER_URI* are not both set",
        remedy: "keep the PMIX_* variables of the launcher for its processes",
    },
    Tasks {
        launcher: "a PMI launcher",
        task: "PMI_RANK",
        counts: &["PMI_SIZE"],
        doubtful_count: None,
        alone_by_default: false,
        missing: "neither PMI_FD nor PMI_PORT is set",
        remedy: "start with `mpiexec`, and keep its variables and descriptors for its processes",
    },
];

/// Whether this process is one of several.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// It is; the text says of whom and what to do.
    OneOfSeveral { variable: &'static str, why: String },
    /// It may be: it is task 0, and the number of tasks is not known for sure.
    Perhaps(String),
}

/// Error where this process is one of several tasks; to be asked where no launcher is found.
pub(super) fn refuse_half_a_launcher() -> Result<()> {
    match find(&environment) {
        Some(Finding::OneOfSeveral { variable, why }) => Err(Error::config(variable, why)),
        Some(Finding::Perhaps(_)) | None => Ok(()),
    }
}

/// Says that this job of one may not be what was meant; to be called where one is started unasked.
pub(super) fn warn_of_a_doubtful_job() {
    if let Some(Finding::Perhaps(why)) = find(&environment) {
        tracing::warn!("{why}");
        notice::unless_logged(why);
    }
}

fn environment(name: &str) -> Option<String> {
    Some(env::var_os(name)?.to_string_lossy().into_owned())
}

fn find(variable: &dyn Fn(&str) -> Option<String>) -> Option<Finding> {
    let mut perhaps = None;
    for tasks in &TASKS {
        match tasks.find(variable) {
            Some(Finding::Perhaps(why)) => perhaps = perhaps.or(Some(Finding::Perhaps(why))),
            found @ Some(Finding::OneOfSeveral { .. }) => return found,
            None => {}
        }
    }
    perhaps
}

impl Tasks {
    fn find(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Finding> {
        let number = variable(self.task)?;
        let above = |text: &str, limit: u64| text.trim().parse::<u64>().is_ok_and(|n| n > limit);
        let counts = || {
            self.counts
                .iter()
                .filter_map(|name| Some((name, variable(name)?)))
        };
        let several = counts().find(|(_, count)| above(count, 1));
        let alone = counts().next().is_some() || self.alone_by_default;
        if above(&number, 0) || several.is_some() || !alone {
            let count = several.map_or(String::new(), |(name, count)| {
                format!(" and {name} is {:?}", shorten(&count))
            });
            return Some(Finding::OneOfSeveral {
                variable: self.task,
                why: format!(
                    "{:?}{count}, so this is a task of {}, but {}: each task would be a job of its own; {}, or set \
                     TRIHOP_LAUNCHER=single if that is meant",
                    shorten(&number),
                    self.launcher,
                    self.missing,
                    self.remedy
                ),
            });
        }
        let name = self.doubtful_count?;
        let count = variable(name).filter(|count| counts().next().is_none() && above(count, 1))?;
        Some(Finding::Perhaps(format!(
            "this is a job of one, although {name} is {:?}: {} may have started several tasks, but {}; {}, or set \
             TRIHOP_LAUNCHER=single if one is meant",
            shorten(&count),
            self.launcher,
            self.missing,
            self.remedy
        )))
    }
}

/// Variables come from outside and may be long.
fn shorten(text: &str) -> String {
    text.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(set: &[(&str, &str)]) -> Option<Finding> {
        find(&|name| {
            let (_, value) = set.iter().find(|(known, _)| *known == name)?;
            Some((*value).to_owned())
        })
    }

    fn is_refused(set: &[(&str, &str)], remedy: &str) {
        match found(set) {
            Some(Finding::OneOfSeveral { variable, why }) => {
                assert_eq!(variable, set[0].0);
                assert!(
                    why.contains(remedy) && why.contains("TRIHOP_LAUNCHER=single"),
                    "{why}"
                );
            }
            other => panic!("{set:?} gave {other:?}"),
        }
    }

    #[test]
    fn tasks_that_would_each_be_alone_are_refused_with_the_remedy() {
        for (task, count, remedy) in [
            ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun --mpi=pmi2"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_*"),
            ("PALS_RANKID", "PALS_LOCAL_SIZE", "mpiexec --pmi=pmix"),
            ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "flux run -o pmi=simple"),
            ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "mpiexec"),
            ("PMI_RANK", "PMI_SIZE", "mpiexec"),
            ("TRIHOP_RANK", "TRIHOP_SIZE", "trihop run"),
        ] {
            is_refused(&[(task, "0"), (count, "2")], remedy);
            is_refused(&[(task, "1")], remedy);
            is_refused(&[(task, "3"), (count, "4")], remedy);
            assert_eq!(
                found(&[(task, "0"), (count, "1")]),
                None,
                "{task}: one task is a job of one"
            );
        }
        is_refused(&[("PMI_RANK", "0")], "mpiexec");
        is_refused(&[("PMIX_RANK", "0")], "PMIX_*");
        is_refused(&[("TRIHOP_RANK", "0")], "trihop run");
    }

    #[test]
    fn a_script_inside_an_allocation_is_a_job_of_one_with_a_warning() {
        let script = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
        assert!(
            matches!(found(&script), Some(Finding::Perhaps(why)) if why.contains("srun --mpi=pmi2"))
        );
        assert_eq!(
            found(&[("SLURM_NTASKS", "8")]),
            None,
            "a shell of salloc is no task"
        );
        assert_eq!(found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]), None);
        let step = [&script[..], &[("SLURM_STEP_NUM_TASKS", "1")]].concat();
        assert_eq!(
            found(&step),
            None,
            "a step of one task inside a larger allocation"
        );
    }

    #[test]
    fn impossible_numbers_are_shown_as_they_are() {
        is_refused(&[("PMI_RANK", "\x1b[31mred")], "\\u{1b}[31mred");
        assert_eq!(found(&[("SLURM_PROCID", "many")]), None);
    }
}
