//! Tables with everything that makes tables hard.

use std::path::{Path, PathBuf};

use super::start::write;

/// A small generator, so that a failure replays.
struct Seeded(u64);

impl Seeded {
    fn from_env() -> Self {
        let seed = std::env::var("TRIHOP_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(7);
        eprintln!("TRIHOP_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Records with separators, quotes, line breaks and lengths from nothing to above a batch; every
/// kind of line end.
fn tricky_rows(seeded: &mut Seeded, rows: usize, line_end: &str) -> String {
    let mut text = String::new();
    for row in 0..rows {
        let note = match seeded.below(9) {
            0 => "\"a, b\"".to_owned(),
            1 => "\"line\nbreak\r\nand \"\"quotes\"\"\"".to_owned(),
            2 => "\"\"\"\"".to_owned(),
            3 => "\"\n\n\"".to_owned(),
            4 => String::new(),
            5 => "Übung".to_owned(),
            6 => format!("\"{}\"", "long\n".repeat(seeded.below(200) as usize)),
            7 if row % 40 == 0 => "y".repeat(150_000 + seeded.below(100_000) as usize),
            _ => format!("note {}", seeded.below(1000)),
        };
        let key = match seeded.below(4) {
            0 => format!("\"k {}\"", seeded.below(50)),
            1 => format!("\"k,{}\"", seeded.below(50)),
            _ => format!("k{}", seeded.below(50)),
        };
        text += &format!("{row},{key},{note}{line_end}");
        if seeded.below(30) == 0 {
            text += line_end;
        }
    }
    text
}

/// Files of every kind: empty, header only, byte order mark, each line end, no final line end.
pub fn tricky_tables(dir: &Path) -> Vec<PathBuf> {
    let seeded = &mut Seeded::from_env();
    let unix = format!("id,\"the key\",note\n{}", tricky_rows(seeded, 700, "\n"));
    let windows = format!(
        "\u{FEFF}\"id\",the key,note\r\n{}",
        tricky_rows(seeded, 300, "\r\n")
    );
    let open = format!("id,the key,note\n{}", tricky_rows(seeded, 50, "\n"));
    vec![
        write(dir, "empty.csv", ""),
        write(dir, "unix.csv", unix),
        write(dir, "header only.csv", "id,the key,note\n"),
        write(dir, "header only, open.csv", "id,the key,note"),
        write(dir, "windows.csv", windows),
        write(dir, "bom.csv", "\u{FEFF}"),
        write(dir, "open.csv", open.trim_end()),
    ]
}
