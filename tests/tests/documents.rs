//! The documents: links lead somewhere, tables say what the code says, examples are real.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use memory_config::{RouterConfig, ToolshedLimits};
use memory_wire::reason::{Reason, Refusal, Severity};
use memory_wire::records::Statement;
use memory_wire::{Did, base64url, envelope};

#[test]
fn relative_links_lead_somewhere() {
    let mut faults = Vec::new();
    for document in documents() {
        let text = read(&document);
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            if !target.exists() {
                faults.push(format!("{}: no {link}", document.display()));
            } else if !anchor.is_empty() && !headings(&read(&target)).contains(anchor) {
                faults.push(format!("{}: no heading {link}", document.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn operations_lists_every_reason_as_it_is() {
    let text = read(&root().join("docs/operations.md"));
    let mut faults = Vec::new();
    for reason in Reason::ALL {
        let mine =
            |row: &Vec<&str>| *row.first().unwrap_or(&"") == format!("`{reason}`") && row.len() > 2;
        let code = reason.code().to_string();
        let rows: Vec<Vec<&str>> = rows(&text)
            .filter(mine)
            .filter(|row| row[1].parse::<u8>().is_ok())
            .collect();
        let [row] = rows.as_slice() else {
            faults.push(format!("{reason}: {} rows", rows.len()));
            continue;
        };
        let close_code = reason.close_code().to_string();
        let expected: &[&str] = &[&code, &close_code, told(*reason), level(*reason)];
        // Details of malformed messages have a shorter table: code and meaning.
        let expected = match row.len() {
            3 => expected.get(..1).unwrap(),
            _ => expected,
        };
        let found = row.get(1..=expected.len()).unwrap_or_default();
        if found != expected {
            faults.push(format!(
                "{reason}: the table says {found:?}, the code {expected:?}"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn operations_lists_every_detail_of_a_broken_rule() {
    let text = read(&root().join("docs/operations.md"));
    let section = section(&text, "rules-that-the-worker-checks");
    let (of_clients, of_toolsheds) = section.split_once("detail of `upstream-protocol`").unwrap();
    for (call, table) in [
        ("End::client(\"", of_clients),
        ("End::violation(\"", of_toolsheds),
    ] {
        let used = details(&root().join("worker/src"), call);
        assert!(used.len() > 10, "{used:?}");
        let listed: BTreeSet<String> = rows(table)
            .filter_map(|row| {
                Some(
                    row.first()?
                        .strip_prefix('`')?
                        .strip_suffix('`')?
                        .to_owned(),
                )
            })
            .collect();
        assert_eq!(used, listed, "{call}");
    }
}

/// The literals that `call` is given in the files of a folder, tests left out.
fn details(folder: &Path, call: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "testing" {
            found.extend(details(&path, call));
        } else if path.is_file() && name != "tests.rs" {
            let source = read(&path);
            let calls = source.split(call).skip(1);
            found.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    found
}

#[test]
fn operations_lists_every_setting_with_its_default() {
    let text = read(&root().join("docs/operations.md"));
    let mut faults = Vec::new();
    for key in RouterConfig::keys() {
        let heading = match key.section {
            "" => "general",
            section => section,
        };
        let default = match &key.default {
            Some(default) => format!("`{default}`"),
            None => "required".to_owned(),
        };
        let name = format!("`{}`", key.name);
        let found = rows(section(&text, heading))
            .find(|row| row.first() == Some(&name.as_str()))
            .map(|row| row.get(2).copied().unwrap_or_default().to_owned());
        if found.as_deref() != Some(default.as_str()) {
            faults.push(format!("{heading}: {name}: {found:?} instead of {default}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn operations_lists_every_limit_of_a_toolshed_with_its_default() {
    let text = read(&root().join("docs/operations.md"));
    let section = section(&text, "limits-of-a-toolshed");
    for (name, default) in ToolshedLimits::default().entries() {
        let default = default.unwrap().to_string();
        let expected = [format!("`{name}`"), default];
        let is_listed =
            rows(section).any(|row| row.get(..2) == Some(&[&*expected[0], &*expected[1]]));
        assert!(is_listed, "{expected:?}");
    }
}

#[test]
fn ipc_lists_every_packet() {
    let text = read(&root().join("docs/ipc.md"));
    let listed: BTreeSet<&str> = rows(&text)
        .filter_map(|row| row.first().copied())
        .filter_map(|cell| cell.strip_prefix('`')?.strip_suffix('`'))
        .collect();
    let mut tags = BTreeSet::new();
    for entry in fs::read_dir(root().join("ipc/src/packets")).unwrap() {
        let source = read(&entry.unwrap().path());
        for piece in source.split("b\"").skip(1) {
            let (tag, rest) = piece.split_at_checked(4).unwrap_or_default();
            if rest.starts_with("\" + ") {
                tags.insert(tag.to_owned());
            }
        }
    }
    assert!(tags.len() > 20, "{tags:?}");
    let missing: Vec<&String> = tags
        .iter()
        .filter(|tag| !listed.contains(tag.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_statement_of_the_protocol_verifies() {
    let text = read(&root().join("docs/protocol.md"));
    let bytes = base64url::decode(&example(&text, "statement example"), 1024).unwrap();
    let statement = Statement::verify(&bytes).unwrap();
    let router = Did::parse("did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH");
    assert_eq!(bytes.len(), 263);
    assert_eq!(statement.router, router.unwrap());
    assert_eq!(statement.deployment, "demo");
    assert_eq!(statement.challenge.as_bytes(), &[4; 32]);
    assert_eq!(
        (statement.iat, statement.exp),
        (1_760_000_000, 1_760_000_600)
    );
}

#[test]
fn the_envelope_of_the_protocol_expands() {
    let text = read(&root().join("docs/protocol.md"));
    let digits = example(&text, "envelope example");
    let bytes: Vec<u8> = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let opened = envelope::decode(&bytes, 1 << 20).unwrap();
    let expected = format!("fvj1:{{\"type\":\"x\",\"pad\":\"{}\"}}", "a".repeat(2000));
    assert_eq!(opened.text, expected.as_bytes());
    assert_eq!(opened.hint, None);
}

fn told(reason: Reason) -> &'static str {
    match reason.refusal() {
        Refusal::ForNow => "for now",
        Refusal::ForGood => "for good",
        Refusal::Close => "closed",
    }
}

fn level(reason: Reason) -> &'static str {
    match reason.severity() {
        Severity::Debug => "debug",
        Severity::Info => "info",
        Severity::Warn => "warn",
        Severity::Error => "error",
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Markdown files at the root and below `docs`.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs")];
    let mut take = |folder: &Path, folders: &mut Vec<PathBuf>, deep: bool| {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && deep {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    };
    take(&root(), &mut folders, false);
    while let Some(folder) = folders.pop() {
        take(&folder, &mut folders, true);
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

/// Targets of the links of a document, those in code left out.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in prose(text) {
        for (index, piece) in line.split('`').enumerate() {
            // Between an odd and an even backtick there is code; a link's text may hold some, its target does not.
            if index % 2 == 1 {
                continue;
            }
            let targets = piece.split("](").skip(1);
            found.extend(targets.filter_map(|rest| Some(rest.split_once(')')?.0)));
        }
    }
    found
}

/// Lines outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Anchors of a document's headings, as forges make them.
fn headings(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter(|line| line.starts_with('#'))
        .map(|line| slug(line.trim_start_matches('#').trim()))
        .collect()
}

fn slug(heading: &str) -> String {
    heading
        .chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            letter if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

/// What stands below a heading, up to the next one.
fn section<'t>(text: &'t str, anchor: &str) -> &'t str {
    let mut start = 0;
    let mut bounds = text.split_inclusive('\n').map(|line| {
        let at = start;
        start += line.len();
        (at, line)
    });
    let is_heading = |line: &str| line.starts_with('#');
    let (from, line) = bounds
        .find(|(_, line)| is_heading(line) && slug(line.trim_start_matches('#').trim()) == anchor)
        .unwrap_or_else(|| panic!("no heading {anchor}"));
    let to = bounds
        .find(|(_, line)| is_heading(line))
        .map_or(text.len(), |(at, _)| at);
    text.get(from + line.len()..to).unwrap()
}

/// Cells of the table rows of a text.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter_map(|line| {
        let inside = line.strip_prefix("| ")?.strip_suffix(" |")?;
        Some(inside.split(" | ").map(str::trim).collect())
    })
}

/// The fenced block after a comment that begins with `name`, without white space.
fn example(text: &str, name: &str) -> String {
    let (_, rest) = text.split_once(&format!("<!-- {name}")).unwrap();
    let block = rest.split("```").nth(1).unwrap();
    let body = block.split_once('\n').unwrap().1;
    body.split_whitespace().collect()
}
