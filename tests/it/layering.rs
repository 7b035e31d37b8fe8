//! The shape of the sources: who may name whom, what may stand nowhere, and that the documents name
//! what exists.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files under a place, which may be one file: path from the root, and text.
fn sources(place: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut waiting = vec![root().join(place)];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            waiting.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{place} holds no sources");
    found
}

/// A text without its comments, which may name anything.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Whether the name stands there alone, not as a part of a longer one.
fn names(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let before = text.split_at(at).0.chars().next_back();
        let after = text.split_at(at + name.len()).1.chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// No source in these places names any of these.
fn check(places: &[&str], forbidden: &[&str]) {
    for (path, text) in places.iter().flat_map(|place| sources(place)) {
        let code = code(&text);
        for name in forbidden {
            assert!(!names(&code, name), "{path} names {name}");
        }
    }
}

#[test]
fn the_core_is_pure() {
    // Aim: no I/O, no async, no clock, no chance, nothing of ours in `core`. Method: its sources
    // name none of what would give it any.
    let io = [
        "tokio", "sqlx", "axum", "redis", "hyper", "std::fs", "std::net", "std::env", "std::io",
    ];
    let clocks = [
        "SystemTime",
        "Instant",
        "std::time",
        "Timestamp::now",
        "Zoned::now",
    ];
    let chance = ["rand", "SystemRandom", "RandomState"];
    for forbidden in [&io[..], &clocks, &chance] {
        check(&["src/core"], forbidden);
    }
    for (path, text) in sources("src/core") {
        let others = code(&text).replace("crate::core", "");
        assert!(
            !others.contains("crate::"),
            "{path} names something of ours outside of core"
        );
    }
}

#[test]
fn flows_know_no_adapter() {
    // Aim: a flow runs over any store. Method: the flows and the ports name neither adapters nor
    // the crates behind them.
    let flows = [
        "src/notice.rs",
        "src/commit.rs",
        "src/flush.rs",
        "src/relay.rs",
        "src/repeats.rs",
    ];
    let beyond = [
        "adapters", "sqlx", "axum", "hyper", "app", "commands", "config",
    ];
    check(&flows, &beyond);
    check(&["src/ports.rs"], &beyond);
    let ported = ["notice", "commit", "flush", "relay", "repeats"];
    for (path, text) in sources("src/ports.rs") {
        for flow in ported {
            assert!(
                !code(&text).contains(&format!("crate::{flow}")),
                "{path} names {flow}"
            );
        }
    }
}

#[test]
fn an_adapter_knows_no_other() {
    // Aim: each adapter can be replaced alone. Method: none names another one or its crate.
    let adapters = [
        (
            "src/adapters/http.rs",
            "http",
            &["axum", "hyper", "hyper_util", "tower_http"][..],
        ),
        ("src/adapters/sql", "sql", &["sqlx"]),
        ("src/adapters/clock.rs", "clock", &["SystemTime"]),
    ];
    let there = std::fs::read_dir(root().join("src/adapters")).unwrap();
    assert_eq!(
        there.count(),
        adapters.len() + 1,
        "an adapter that this test does not know"
    );
    for (place, own, _) in adapters {
        for (_, other, crates) in adapters.iter().filter(|(_, name, _)| *name != own) {
            check(&[place], crates);
            check(&[place], &[&format!("adapters::{other}")]);
            if place.ends_with(".rs") {
                check(&[place], &[&format!("super::{other}")]);
            }
        }
        check(&[place], &["redis", "crate::app", "crate::commands"]);
    }
}

#[test]
fn nothing_is_left_undone_or_skipped() {
    // Aim: no test is skipped, no code is a placeholder. Method: the words for it stand nowhere.
    let words = [
        concat!("#[", "ignore"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("allow(", "dead_code)"),
        concat!("expect(", "dead_code)"),
    ];
    for (path, text) in ["src", "tests", "loadtest"]
        .iter()
        .flat_map(|place| sources(place))
    {
        for word in words {
            assert!(!text.contains(word), "{path} holds {word}");
        }
    }
}

#[test]
fn only_the_two_prepared_functions_run_texts_that_are_no_literals() {
    // Aim: every statement comes from `core::sql`, which binds its values. Method: sqlx's marker for
    // such texts stands in `fn prepared` of the two databases and in their imports, nowhere else.
    let mut prepared = Vec::new();
    for (path, text) in sources("src") {
        let (mut function, mut importing) = (String::new(), false);
        for line in code(&text).lines() {
            importing |= line.starts_with("use ");
            if let Some((_, rest)) = line.split_once("fn ")
                && !line.contains('"')
            {
                function = rest.split(['(', '<']).next().unwrap().to_owned();
            }
            if names(line, "AssertSqlSafe") && !importing {
                prepared.push(format!("{path} {function}"));
            }
            importing &= !line.ends_with(';');
        }
    }
    let expected = [
        "src/adapters/sql/mysql.rs prepared",
        "src/adapters/sql/sqlite.rs prepared",
    ];
    assert_eq!(prepared, expected);
}

/// What stands between backticks and begins with a path of ours: `FILE` or `FILE::NAME`.
fn places(text: &str) -> Vec<&str> {
    let spans = text.split('`').skip(1).step_by(2);
    spans
        .filter(|span| {
            let folders = ["src/", "tests/", "loadtest/", "migrations/", ".ci/"];
            folders.iter().any(|folder| span.starts_with(folder))
                && !span.contains(char::is_whitespace)
        })
        .collect()
}

/// Why a named place does not exist.
fn missing(place: &str) -> Option<String> {
    let (path, name) = match place.split_once("::") {
        Some((path, rest)) => (path, rest.rsplit("::").next()),
        None => (place, None),
    };
    let file = root().join(path);
    if !file.exists() {
        return Some(format!("{place}: no such file"));
    }
    let name = name?;
    let text = std::fs::read_to_string(&file).unwrap();
    let kinds = [
        "fn",
        "struct",
        "trait",
        "enum",
        "mod",
        "const",
        "type",
        "static",
        "macro_rules!",
    ];
    let there = kinds
        .iter()
        .any(|kind| names(&text, &format!("{kind} {name}")));
    (!there).then(|| format!("{place}: no {name} in it"))
}

#[test]
fn the_documents_name_what_exists() {
    // Aim: a reader finds every place that ARCHITECTURE.md names. Method: each path, and each name
    // in it, is looked up; of the other documents, where they name any.
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let places_there = places(&text);
    let with_name = places_there
        .iter()
        .filter(|place| place.contains("::"))
        .count();
    assert!(
        with_name >= 20,
        "ARCHITECTURE.md names {with_name} places in files"
    );
    let faults: Vec<String> = places_there
        .iter()
        .filter_map(|place| missing(place))
        .collect();
    assert_eq!(faults, Vec::<String>::new());
    for document in ["README.md", "tests/vectors/wechat/README.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let faults: Vec<String> = places(&text).into_iter().filter_map(missing).collect();
        assert_eq!(faults, Vec::<String>::new(), "{document}");
    }
    for wrong in [
        "src/nothing.rs",
        "src/commit.rs::Committers::nothing",
        "src/commit.rs::submi",
    ] {
        assert!(missing(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn no_text_names_a_path_of_some_machine() {
    // Aim: the repository means the same everywhere. Method: every file that git tracks, or would,
    // is searched for paths of a work place or a home.
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .current_dir(root())
        .output();
    let names = match listed {
        Ok(listed) if listed.status.success() => String::from_utf8(listed.stdout).unwrap(),
        // an unpacked archive: its files are all it has
        _ => everything(&root()).join("\0"),
    };
    let words = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    let mut read = 0;
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        // one that is deleted and not committed yet, or is no text
        let Ok(text) = std::fs::read_to_string(root().join(name)) else {
            continue;
        };
        read += 1;
        for word in words {
            assert!(!text.contains(word), "{name} holds {word}");
        }
    }
    assert!(read > 100, "{read} files");
}

/// Every file below a folder, but for what is built.
fn everything(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with(".git") {
                found.extend(everything(&path));
            }
        } else {
            found.push(path.display().to_string());
        }
    }
    found
}
