//! How far the job is, on the launcher's terminal.

use std::process::Command;

use tempfile::TempDir;

use super::launched::{is_installed, run};
use super::start::write;

#[test]
fn the_launcher_draws_a_bar_where_it_has_a_terminal() {
    if !is_installed("script") {
        eprintln!("skipped the_launcher_draws_a_bar_where_it_has_a_terminal: no script(1)");
        return;
    }
    let dir = TempDir::new().unwrap();
    let rows: String = (0..200_000).map(|row| format!("{row},x\n")).collect();
    let file = write(dir.path(), "a.csv", format!("k,v\n{rows}"));
    let trihop = env!("CARGO_BIN_EXE_trihop");
    let (out, file) = (
        dir.path().join("out").display().to_string(),
        file.display().to_string(),
    );
    let words = format!("partition --force --by k --out {out} {file}");
    for launched in [
        format!("{trihop} {words} --ranks 3"),
        format!("{trihop} run -n 3 --nodes 3 -- {trihop} {words}"),
        format!("{trihop} {words} --ranks 1"),
    ] {
        let mut command = Command::new("script");
        command
            .args(["-qefc", &launched, "/dev/null"])
            .env("TERM", "xterm");
        let done = run(command).succeeded();
        let bar = done.stdout.find("iB/").expect("a bar");
        let report = done.stdout.find("nothing lost").expect("a report");
        assert!(bar < report, "{}", done.stdout);
        assert!(!done.stdout[report..].contains("iB/"), "the bar is gone");
    }
}
