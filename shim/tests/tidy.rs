//! House rules that a compiler does not know, held over the whole repository.
//!
//! Which module may import which, what pure code must not touch, how long files and lines may be,
//! and what does not belong into a finished tree. Everything is read as text: no rule here needs
//! more than that.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAX_LINES: usize = 500;
const MAX_WIDTH: usize = 100;

/// Imports between the shim's modules. What isn't listed is refused. `nodes::topology` is pure data
/// that the router reads.
const ARROWS: &[(&str, &[&str])] = &[
    ("main", &["cli", "app"]),
    (
        "cli",
        &["app", "config", "net", "nodes", "workflow", "route", "plan"],
    ),
    (
        "app",
        &[
            "admin", "config", "net", "nodes", "observe", "server", "session", "workflow",
        ],
    ),
    (
        "session",
        &[
            "config", "plan", "route", "proto", "server", "nodes", "observe", "net",
        ],
    ),
    ("admin", &["config", "nodes", "workflow", "proto"]),
    ("workflow", &["config", "net", "nodes", "server"]),
    ("nodes", &["config", "net"]),
    ("server", &["proto", "net"]),
    ("net", &["proto"]),
    ("route", &["plan", "nodes::topology"]),
    ("plan", &[]),
    ("proto", &[]),
    ("observe", &[]),
    ("config", &[]),
];

/// Pure code: no runtime, socket or clock.
const PURE: &[&str] = &[
    "extension/core/src/",
    "shim/src/proto/",
    "shim/src/plan/",
    "shim/src/route/",
    "shim/src/nodes/topology.rs",
];

const IMPURE_WORDS: &[&str] = &[
    "tokio",
    "std::net",
    "std::fs",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
];

/// A file of the repository with its path from the root.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Code lines with their 1-based numbers: comments are cut off.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let cut = |line: &'_ str| line.find("//").unwrap_or(line.len());
        self.text
            .lines()
            .enumerate()
            .map(move |(nth, line)| (nth + 1, &line[..cut(line)]))
    }

    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|own| own == extension)
    }

    /// The shim's module that the file belongs to.
    fn module(&self) -> Option<&str> {
        let inner = self.path.strip_prefix("shim/src/")?;
        inner
            .split('/')
            .next()
            .map(|first| first.trim_end_matches(".rs"))
    }

    /// True if one of the few lines above names a deadline.
    fn has_deadline_above(&self, line: usize) -> bool {
        let above = self.text.lines().skip(line.saturating_sub(12)).take(12);
        above.into_iter().any(|line| line.contains("deadline"))
    }

    /// Number of the first line that only tests see.
    fn first_test_line(&self) -> usize {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        if self.path.contains("/tests/") || name.contains("test") {
            return 1;
        }
        let marker = |line: &str| line.trim() == "#[cfg(test)]";
        let inline = |(nth, line): (usize, &str)| {
            let opens = self
                .text
                .lines()
                .nth(nth)
                .is_some_and(|next| next.ends_with('{'));
            marker(line) && opens
        };
        self.code()
            .position(inline)
            .map_or(usize::MAX, |nth| nth + 1)
    }
}

#[test]
fn imports_follow_the_arrows() {
    let mut found = Findings::default();
    for file in sources("rs") {
        let Some(module) = file.module().filter(|&module| module != "lib") else {
            continue;
        };
        let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == module) else {
            found.add(
                &file,
                1,
                format!("module {module} has no arrows; list it in tidy.rs"),
            );
            continue;
        };
        for (line, target) in imports(&file.text) {
            let top = target.split("::").next().unwrap_or_default();
            let known = ARROWS.iter().any(|(name, _)| *name == top);
            let listed = allowed.iter().any(|one| {
                target == *one
                    || target
                        .strip_prefix(one)
                        .is_some_and(|r| r.starts_with("::"))
            });
            if known && top != module && !listed {
                found.add(&file, line, format!("{module} must not import {target}"));
            }
        }
    }
    found.check();
}

#[test]
fn pure_modules_know_no_runtime_no_socket_and_no_clock() {
    let mut found = Findings::default();
    let pure = |file: &Source| PURE.iter().any(|prefix| file.path.starts_with(prefix));
    for file in sources("rs").into_iter().filter(pure) {
        for (line, code) in file.code() {
            for word in IMPURE_WORDS.iter().filter(|word| has_word(code, word)) {
                found.add(&file, line, format!("{word} in a pure module"));
            }
        }
    }
    let manifest = read("extension/core/Cargo.toml");
    if manifest.contains("\n[dependencies]") {
        found
            .0
            .push_str("extension/core/Cargo.toml: core depends on nothing\n");
    }
    found.check();
}

#[test]
fn proto_knows_bytes_only() {
    let mut found = Findings::default();
    for file in sources("rs")
        .iter()
        .filter(|file| file.module() == Some("proto"))
    {
        for (line, code) in file.code().filter(|(_, code)| has_word(code, "pgdog_core")) {
            found.add(
                file,
                line,
                format!("proto knows nothing of core: {}", code.trim()),
            );
        }
    }
    found.check();
}

#[test]
fn files_and_lines_are_short() {
    let mut found = Findings::default();
    for file in ["rs", "sql", "py"].into_iter().flat_map(sources) {
        let lines = file.text.lines().count();
        if lines > MAX_LINES {
            found.add(
                &file,
                MAX_LINES + 1,
                format!("{lines} lines, more than {MAX_LINES}"),
            );
        }
        for (nth, line) in file.text.lines().enumerate() {
            let width = line.chars().count();
            if width > MAX_WIDTH {
                found.add(
                    &file,
                    nth + 1,
                    format!("{width} characters, more than {MAX_WIDTH}"),
                );
            }
        }
    }
    found.check();
}

#[test]
fn nothing_is_left_unfinished() {
    let mut found = Findings::default();
    for file in sources("rs")
        .iter()
        .filter(|file| file.path != "shim/tests/tidy.rs")
    {
        for (line, code) in file.code() {
            for word in ["#[ignore", "todo!(", "unimplemented!(", "dbg!("] {
                if code.contains(word) {
                    found.add(file, line, format!("{word} in a finished tree"));
                }
            }
        }
    }
    found.check();
}

/// A test waits for a condition with a deadline. A pause between two looks is fine where the
/// deadline is in sight.
#[test]
fn tests_do_not_sleep() {
    let mut found = Findings::default();
    for file in sources("rs")
        .iter()
        .filter(|file| file.path != "shim/tests/tidy.rs")
    {
        let from = file.first_test_line();
        for (line, _) in file
            .code()
            .filter(|(line, code)| *line >= from && sleeps(code))
        {
            if !file.has_deadline_above(line) {
                found.add(file, line, "a sleep in a test without a deadline".into());
            }
        }
    }
    for file in sources("py") {
        for (line, _) in file.code().filter(|(_, code)| code.contains("time.sleep(")) {
            if !file.has_deadline_above(line) {
                found.add(&file, line, "a sleep in a test without a deadline".into());
            }
        }
    }
    found.check();
}

/// A call of Rust's own sleeps; `pg_sleep` is a statement that takes its time.
fn sleeps(code: &str) -> bool {
    code.contains("::sleep(") || code.trim_start().starts_with("sleep(")
}

/// The rules themselves: a rule that finds nothing anywhere would pass for ever.
#[test]
fn imports_are_seen_in_every_form() {
    let seen = |text: &str| {
        imports(text)
            .into_iter()
            .map(|(_, target)| target)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        seen("use crate::nodes::topology::Topology;"),
        ["nodes::topology::Topology"]
    );
    assert_eq!(
        seen("use crate::{plan, route::Route};"),
        ["plan", "route::Route"]
    );
    assert_eq!(
        seen("use crate::{\n    nodes::{a, b},\n    proto,\n};"),
        ["nodes", "proto"]
    );
    assert_eq!(
        seen("let x = crate::server::Pools::new();"),
        ["server::Pools::new"]
    );
    assert_eq!(seen("// crate::server\n\"a\""), Vec::<String>::new());
    assert_eq!(
        seen("use super::super::config::Config;"),
        ["config::Config"]
    );
    assert_eq!(seen("pub(crate) fn f() {}"), Vec::<String>::new());
    assert!(has_word("use tokio::time;", "tokio") && !has_word("tokio_like", "tokio"));
    assert!(has_word("Instant::now()", "Instant") && !has_word("Instantly", "Instant"));
    assert!(sources("rs").len() > 20 && !sources("sql").is_empty());
}

/// Violations, one a line as `path:line: what`, so that editors jump there.
#[derive(Default)]
struct Findings(String);

impl Findings {
    fn add(&mut self, file: &Source, line: usize, what: String) {
        let _ = writeln!(self.0, "{}:{line}: {what}", file.path);
    }

    fn check(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}

/// Paths below the crate that a text names: (line, path behind `crate::`). A brace list gives one
/// entry per item, cut at the item's own braces. `super::super::x` counts too: where it stays
/// inside its module, the name is none of the top-level ones.
fn imports(text: &str) -> Vec<(usize, String)> {
    let bare: String = text
        .lines()
        .map(|line| &line[..line.find("//").unwrap_or(line.len())])
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut found = Vec::new();
    for marker in ["crate::", "super::super::"] {
        for (at, _) in bare.match_indices(marker) {
            let starts_word = !bare[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if !starts_word {
                continue;
            }
            let line = bare[..at].matches('\n').count() + 1;
            let rest = &bare[at + marker.len()..];
            let items = match rest.strip_prefix('{') {
                Some(list) => split_list(list),
                None => vec![path_of(rest)],
            };
            found.extend(items.into_iter().map(|item| (line, item)));
        }
    }
    found
}

/// Items of a brace list at its own depth.
fn split_list(list: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut depth = 0;
    for character in list.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(String::new()),
            _ if depth == 0 => items.last_mut().expect("never empty").push(character),
            _ => {}
        }
    }
    items
        .iter()
        .map(|item| path_of(item.trim()))
        .filter(|item| !item.is_empty())
        .collect()
}

fn path_of(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    text[..end.unwrap_or(text.len())]
        .trim_end_matches(':')
        .to_owned()
}

fn has_word(code: &str, word: &str) -> bool {
    let inner = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(inner) && !code[at + word.len()..].starts_with(inner))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Every tracked file with this extension, except what a server printed.
fn sources(extension: &str) -> Vec<Source> {
    tracked()
        .into_iter()
        .filter(|path| !path.split('/').any(|part| part == "expected"))
        .map(|path| Source {
            text: read(&path),
            path,
        })
        .filter(|file| file.has_extension(extension))
        .collect()
}

/// What git knows, or, in a tree without git, everything but hidden and built files.
fn tracked() -> Vec<String> {
    let listed = Command::new("git")
        .arg("ls-files")
        .current_dir(root())
        .output();
    let listed = listed.ok().filter(|output| output.status.success());
    match listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()) {
        Some(text) if !text.is_empty() => text.lines().map(str::to_owned).collect(),
        Some(_) | None => {
            let mut all = Vec::new();
            walk(&root(), "", &mut all);
            all
        }
    }
}

fn walk(folder: &Path, prefix: &str, all: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.path().is_dir() {
            walk(&entry.path(), &format!("{path}/"), all);
        } else {
            all.push(path);
        }
    }
}
