//! `trihop report` makes one page of what the other commands print as JSON.

mod launched;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use launched::{Ended, is_installed, run};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

fn trihop(words: &str) -> Ended {
    let mut command = Command::new(TRIHOP);
    command.args(words.split_whitespace());
    run(command)
}

/// What some commands print, in files of this folder.
fn results(folder: &Path) -> Vec<PathBuf> {
    let table = folder.join("a.csv");
    fs::write(&table, "k,v\na,1\nb,2\nc,3\nd,4\n").unwrap();
    let out = folder.join("out");
    let (out, table) = (out.display(), table.display());
    let exchange = format!("run -n 4 --nodes 2 -- {TRIHOP} exchange --count 500 --json --detail");
    let partition = format!("partition --ranks 2 --by k --json --out {out} {table}");
    let bench = |size| format!("bench a2a --ranks 2 --nodes 2 --count 200 --size {size} --json");
    let words = [
        bench(8),
        bench(512),
        exchange,
        partition,
        "topo --ranks 8 --nodes 2 --json".into(),
    ];
    let file = |(number, words): (usize, &String)| {
        let path = folder.join(format!("{number}.json"));
        fs::write(&path, trihop(words).succeeded().stdout).unwrap();
        path
    };
    words.iter().enumerate().map(file).collect()
}

/// What the ranks of a job have traced, one of them as if it had been killed.
fn traces(folder: &Path) -> Vec<PathBuf> {
    let mut job = Command::new(TRIHOP);
    let words = format!("run -n 4 --nodes 2 -- {TRIHOP} exchange --count 2000");
    job.args(words.split_whitespace())
        .env("TRIHOP_TRACE", folder.join("trace-%r.json"));
    run(job).succeeded();
    let file = |rank: u32| folder.join(format!("trace-{rank}.json"));
    let killed = fs::read_to_string(file(3)).unwrap();
    fs::write(file(3), &killed[..killed.len() / 2]).unwrap();
    (0..4).map(file).collect()
}

#[test]
fn a_page_has_all_results_and_needs_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let mut command = Command::new(TRIHOP);
    command
        .arg("report")
        .args(results(folder.path()))
        .args(traces(folder.path()))
        .arg("-o")
        .arg(&page);
    run(command).succeeded();
    let text = fs::read_to_string(&page).unwrap();
    for part in [
        "<h2>bench a2a</h2>",
        "a2a: messages per second",
        "exchange: 4 ranks on 2 nodes",
        "runs that went from one rank to the next",
        "as representative",
        "records of each part",
        "topo: three-hop",
        "timeline: 4 ranks",
        "what each rank did",
        "bytes per second in batches between nodes",
        ">rank 3<",
    ] {
        assert!(text.contains(part), "`{part}` in {text}");
    }
    assert!(!text.contains("://") && !text.contains("<script"), "{text}");
    if !is_installed("chromium") {
        eprintln!("skipped: chromium is not installed, which would show the page");
        return;
    }
    let picture = folder.path().join("page.png");
    let mut chromium = Command::new("chromium");
    chromium
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=900,2400",
        ])
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("file://{}", page.display()));
    let shown = run(chromium);
    let picture = fs::read(&picture).unwrap_or_else(|e| panic!("{e}: {}", shown.stderr));
    assert!(
        picture.starts_with(b"\x89PNG") && picture.len() > 20_000,
        "an empty picture"
    );
}

#[test]
fn what_is_no_result_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, page) = (folder.path().join("bad"), folder.path().join("page"));
    fs::write(&bad, "{\"bench\":\"a2a\"}\nnonsense\n").unwrap();
    let refused = trihop(&format!("report {} -o {}", bad.display(), page.display()));
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("line 2"), "{}", refused.stderr);
    assert!(!page.exists());
    fs::write(&bad, "").unwrap();
    let refused = trihop(&format!("report {} -o {}", bad.display(), page.display()));
    assert!(refused.stderr.contains("no result"), "{}", refused.stderr);
    let refused = trihop(&format!("report {} -o {}", page.display(), page.display()));
    assert!(refused.stderr.contains("reading"), "{}", refused.stderr);
}
