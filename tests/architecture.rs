//! docs/architecture.md lists which module uses which, and there is no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Parts of a module that others use without the rest of it, and that use nothing of it.
const PARTS: [&str; 2] = ["bundle::cache", "bundle::names"];

type Graph = BTreeMap<String, BTreeSet<String>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document() -> String {
    fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md")
}

/// The files below a directory that end with `.rs`, as paths relative to it.
fn sources(directory: &Path, prefix: &str, out: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
        if path.is_dir() {
            sources(&path, &format!("{prefix}{name}::"), out);
        } else if let Some(module) = name.strip_suffix(".rs") {
            out.push(format!("{prefix}{module}"));
        }
    }
}

/// The code of a file without its comments and its unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The row of the table for a path such as `bundle::names::is_index`.
fn row_of(path: &str) -> String {
    let part = PARTS.iter().find(|part| path.strip_prefix(**part).is_some_and(|rest| !rest.starts_with(is_name)));
    part.map_or_else(|| path.split(|c| !is_name(c)).next().unwrap_or_default().to_owned(), ToString::to_string)
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths in `use crate::{a, b::{c, d}}`, from behind `crate::`.
fn expanded(path: &str) -> Vec<String> {
    let Some(braced) = path.strip_prefix('{') else { return vec![path.to_owned()] };
    let (mut out, mut depth) = (vec![String::new()], 0);
    for c in braced.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => out.push(String::new()),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                out.last_mut().expect("never empty").push(c);
            }
        }
    }
    out.iter().map(|path| path.trim().to_owned()).filter(|path| !path.is_empty()).collect()
}

/// Every mention of another module in the source. `crate::bundle::{names, cache}` counts as `bundle`, so that it is
/// written out.
fn used() -> Graph {
    let mut modules = Vec::new();
    sources(&root().join("src"), "", &mut modules);
    let mut graph = Graph::new();
    for module in modules.iter().filter(|module| *module != "lib") {
        let path = root().join("src").join(module.replace("::", "/")).with_extension("rs");
        let code = code(&fs::read_to_string(path).expect("a source file"));
        let row = row_of(module);
        assert!(!code.contains("super::super"), "{module}: write `crate::` instead of `super::super::`");
        assert!(!PARTS.contains(&row.as_str()) || !code.contains("super::"), "{module} uses the rest of its module");
        let uses = graph.entry(row.clone()).or_default();
        for path in code.split("crate::").skip(1).flat_map(expanded) {
            uses.insert(row_of(&path));
        }
        uses.remove(&row);
        if let Some(part) = PARTS.iter().find(|part| **part == row) {
            // The module that it is a part of uses it through `super`.
            graph.entry(row_of(&part[..part.find(':').expect("a path")])).or_default().insert(row);
        }
    }
    graph
}

/// The names in backticks.
fn names(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The first and the last column of the table of modules.
fn documented() -> Graph {
    let document = document();
    let table = document.split("| module |").nth(1).expect("the table of modules");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        (names(cells[0]).next().expect("a module"), names(cells[cells.len() - 1]).collect())
    })
    .collect()
}

/// All modules that a module uses, directly or indirectly.
fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let (mut found, mut pending) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = pending.pop() {
        for next in &graph[&module] {
            if found.insert(next.clone()) {
                pending.push(next.clone());
            }
        }
    }
    found
}

/// The arrows of the picture: the uses of a module without those that follow from others.
fn arrows(graph: &Graph) -> BTreeSet<(String, String)> {
    let mut out = BTreeSet::new();
    for (from, uses) in graph {
        for to in uses {
            if !uses.iter().any(|other| other != to && reachable(graph, other).contains(to)) {
                out.insert((from.clone(), to.clone()));
            }
        }
    }
    out
}

#[test]
fn the_table_has_the_uses_of_the_source() {
    let (used, documented) = (used(), documented());
    for (module, uses) in &used {
        let row = documented.get(module).unwrap_or_else(|| panic!("docs/architecture.md has no row for `{module}`"));
        let added: Vec<_> = uses.difference(row).collect();
        assert!(added.is_empty(), "`{module}` must not use {added:?}: not in its row of docs/architecture.md");
        let gone: Vec<_> = row.difference(uses).collect();
        assert!(gone.is_empty(), "`{module}` no longer uses {gone:?}: remove it from its row of docs/architecture.md");
    }
    assert_eq!(used.keys().collect::<Vec<_>>(), documented.keys().collect::<Vec<_>>());
}

#[test]
fn there_is_no_cycle() {
    let used = used();
    for module in used.keys() {
        let uses = reachable(&used, module);
        assert!(!uses.contains(module), "`{module}` is part of a cycle: {uses:?} includes it");
    }
}

#[test]
fn the_picture_has_the_arrows_of_the_table() {
    let document = document();
    let picture = document.split("```mermaid\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the picture");
    let drawn: BTreeSet<(String, String)> = picture
        .lines()
        .filter_map(|line| line.trim().split_once(" --> "))
        .flat_map(|(from, to)| to.split(" & ").map(move |to| (from.to_owned(), to.to_owned())))
        .collect();
    let node = |module: &str| module.replace("::", "_");
    let expected = arrows(&used());
    let expected: BTreeSet<_> = expected.iter().map(|(from, to)| (node(from), node(to))).collect();
    let missing: Vec<_> = expected.difference(&drawn).collect();
    let extra: Vec<_> = drawn.difference(&expected).collect();
    assert!(missing.is_empty() && extra.is_empty(), "the picture lacks {missing:?}, and must not have {extra:?}");
}
