//! Migrations only add: an older replica goes on beside a newer one, and there is no way back but the backup.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Landed, but part of no release yet, so that they may still be put right. To be emptied with the first release.
const NOT_RELEASED: [&str; 2] = ["0001_main_job.sql", "0002_feed.sql"];

/// What would break an older replica, or lose what it wrote.
const NEVER: [&str; 8] = [
    "DROP TABLE",
    "DROP COLUMN",
    "DROP SCHEMA",
    "RENAME TO",
    "RENAME COLUMN",
    "RENAME CONSTRAINT",
    "TRUNCATE",
    "SET DATA TYPE",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(root().join("migrations")).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    files.sort();
    files
}

/// The statements without comments, in one case and with single blanks.
fn statements(text: &str) -> String {
    let code = text.lines().map(|line| line.split("--").next().unwrap_or_default());
    code.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ").to_uppercase()
}

/// What stands in the way of applying this beside an older replica.
fn breaks(text: &str) -> Vec<&'static str> {
    let code = statements(text);
    let retyped = code.split(';').any(|one| one.contains("ALTER COLUMN") && one.contains(" TYPE "));
    let found = NEVER.into_iter().filter(|word| code.contains(word));
    found.chain(retyped.then_some("ALTER COLUMN … TYPE")).collect()
}

#[test]
fn migrations_are_numbered_without_a_gap_and_take_nothing_away() {
    for (number, (name, path)) in (1..).zip(files()) {
        assert!(path.extension().is_some_and(|kind| kind == "sql"), "{name} is no SQL");
        assert!(name.starts_with(&format!("{number:04}_")), "{name} is not number {number}");
        let broken = breaks(&fs::read_to_string(path).unwrap());
        assert!(broken.is_empty(), "{name} has {broken:?}");
    }
}

#[test]
fn what_takes_away_is_found_however_it_is_written() {
    assert_eq!(breaks("ALTER TABLE run\n    drop  column -- that one\n    x;"), ["DROP COLUMN"]);
    assert_eq!(breaks("ALTER TABLE run RENAME TO runs"), ["RENAME TO"]);
    assert_eq!(breaks("ALTER TABLE run ALTER COLUMN x TYPE bigint"), ["ALTER COLUMN … TYPE"]);
    assert_eq!(breaks("-- DROP TABLE run\nALTER TABLE run ADD COLUMN x bigint; DROP INDEX y"), [""; 0]);
}

/// What the commit before said of a file must still be so, byte by byte: databases remember the sum of what they ran.
#[test]
fn what_has_landed_is_never_changed() {
    let git = |arguments: &[&str]| {
        let ended = Command::new("git").arg("-C").arg(root()).args(arguments).output().ok()?;
        ended.status.success().then_some(ended.stdout)
    };
    let mut compared = 0;
    for base in ["HEAD", "HEAD~1"] {
        let Some(listed) = git(&["ls-tree", "--name-only", base, "migrations/"]) else {
            println!("there is no {base} to compare with");
            continue;
        };
        for path in String::from_utf8(listed).unwrap().lines() {
            if NOT_RELEASED.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            let landed = git(&["show", &format!("{base}:{path}")]).unwrap();
            let now = fs::read(root().join(path)).unwrap_or_default();
            assert!(now == landed, "{path} has landed and is changed: write another migration");
            compared += 1;
        }
    }
    println!("{compared} files are as they have landed");
}
