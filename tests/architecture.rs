//! The layers hold: what each room of the house never imports, and a few habits that no lint knows.

use std::fs;
use std::path::{Path, PathBuf};

/// A room, what its files must not mention, and the rooms of ours it may import; `None` is any that is not forbidden.
struct Room {
    path: &'static str,
    never: &'static [&'static str],
    ours: Option<&'static [&'static str]>,
}

const ROOMS: &[Room] = &[
    Room { path: "access", never: &["sqlx", "axum", "tokio", "tracing"], ours: Some(&["access", "domain", "ids"]) },
    Room { path: "domain", never: &["sqlx", "axum", "tokio", "tracing"], ours: Some(&["domain", "ids", "duration"]) },
    Room { path: "store", never: &["axum"], ours: Some(&["store", "domain", "ids"]) },
    Room {
        path: "coordinator",
        never: &["sqlx", "axum"],
        ours: Some(&["coordinator", "matchmaker", "store", "domain", "ids", "config"]),
    },
    Room { path: "matchmaker", never: &["sqlx", "axum"], ours: Some(&["matchmaker", "domain", "ids"]) },
    Room { path: "background", never: &["sqlx", "axum"], ours: Some(&["coordinator"]) },
    Room {
        path: "http",
        never: &["sqlx"],
        ours: Some(&["http", "coordinator", "access", "domain", "ids", "config", "duration"]),
    },
    Room { path: "listener", never: &["sqlx"], ours: Some(&["listener", "http", "config"]) },
    Room { path: "embedded", never: &["axum"], ours: Some(&["embedded"]) },
    Room { path: "cli", never: &["sqlx", "axum"], ours: Some(&["cli", "access", "console", "ids", "duration"]) },
    Room { path: "config", never: &["sqlx", "axum", "tokio"], ours: Some(&["config", "access", "duration"]) },
    Room { path: "console.rs", never: &["sqlx", "axum", "tokio"], ours: Some(&[]) },
    Room { path: "ids.rs", never: &["sqlx", "axum", "tokio"], ours: Some(&[]) },
    Room { path: "duration.rs", never: &["sqlx", "axum", "tokio"], ours: Some(&["duration"]) },
    Room { path: "main.rs", never: &["axum"], ours: None },
];

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path)
}

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries
        .flat_map(|entry| files(&entry.unwrap().path()))
        .filter(|file| file.extension().is_some_and(|e| e == "rs"))
        .collect()
}

/// The lines of a file that are code, with their numbers.
fn code(file: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.to_owned()));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//")).collect()
}

/// Whether a line of code names a crate or a room as the start of a path.
fn names(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '"')
    })
}

#[test]
fn each_room_imports_only_what_it_may() {
    let mut broken = Vec::new();
    for room in ROOMS {
        for file in files(&source(room.path)) {
            for (number, line) in code(&file) {
                let foreign = room.never.iter().find(|name| names(&line, &format!("{name}::")));
                let ours = line.match_indices("crate::").find_map(|(at, found)| {
                    let rest = &line[at + found.len()..];
                    let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    room.ours.is_some_and(|ours| !name.is_empty() && !ours.contains(&name.as_str())).then_some(name)
                });
                if let Some(name) = foreign.map(ToString::to_string).or(ours) {
                    broken.push(format!("{}:{number} imports {name}", file.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_room_is_named_here() {
    let known: Vec<&str> = ROOMS.iter().map(|room| room.path.trim_end_matches(".rs")).collect();
    let free = ["lib", "server", "telemetry"];
    for entry in fs::read_dir(source("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.trim_end_matches(".rs");
        assert!(known.contains(&name) || free.contains(&name), "src/{name} is no room of the house");
    }
}

/// All routes stand on one page, behind the guard or in the short list of those that are open: none is added elsewhere,
/// where no test would know of it.
#[test]
fn routes_are_added_on_the_router_page_only() {
    let allowed = ["http/mod.rs", "http/api.rs"].map(source);
    for file in files(&source("http")).into_iter().chain([source("server.rs")]) {
        let lines = code(&file).into_iter().take_while(|(_, line)| !line.contains("#[cfg(test)]"));
        for (number, line) in lines.filter(|_| !allowed.contains(&file) && !file.ends_with("tests.rs")) {
            let adds = [".route(", ".routes(", ".nest(", ".merge(", ".route_service(", ".nest_service(", "routes!("];
            assert!(!adds.iter().any(|adds| line.contains(adds)), "{}:{number} adds a route: {line}", file.display());
        }
    }
}

/// Every statement opens with a comment that names its function, so that the server's statistics name it too.
#[test]
fn every_statement_names_its_function() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let mut count = 0;
    for entry in fs::read_dir(recorded).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let query = serde_json::from_str::<serde_json::Value>(&text).unwrap()["query"].as_str().unwrap().to_owned();
        let name = query.strip_prefix("/* store::").and_then(|rest| rest.split_once(" */"));
        let (name, _) = name.unwrap_or_else(|| panic!("a statement does not say whose it is: {query}"));
        let file = name.split("::").next().unwrap();
        let source = fs::read_to_string(source(&format!("store/{file}.rs"))).unwrap();
        let function = name.split("::").nth(1).unwrap().split(' ').next().unwrap();
        assert!(source.contains(&format!("fn {function}")), "there is no store::{name}");
        count += 1;
    }
    assert!(count > 40, "{count} statements are recorded");
}

/// The one clock (the age of a connection is no time of anybody's): no statement asks for the time elsewhere, and none decides by the time its transaction began.
#[test]
fn only_one_clock_is_asked() {
    for file in files(&source("store")) {
        for (number, line) in code(&file) {
            let asks = ["now()", "clock_timestamp()", "CURRENT_TIMESTAMP", "statement_timestamp()"]
                .iter()
                .any(|clock| line.replace("roadstead_now()", "").replace("Instant::now()", "").contains(clock));
            let pool = file.ends_with("pool.rs");
            assert!(!asks || pool, "{}:{number} asks another clock: {line}", file.display());
        }
    }
}
