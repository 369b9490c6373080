//! Prints the rows as a table, and as JSON.

use std::path::Path;

use crate::rows::{Goal, Row};

pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The median of the turns' ratios to the floor; `None` where the floor is nothing.
fn ratio(row: &Row, entry: usize) -> Option<f64> {
    let floor = &row.entries[0].figures;
    let ratios: Vec<f64> = row.entries[entry].figures.iter().zip(floor).map(|(figure, floor)| figure / floor).collect();
    let ratio = median(&ratios);
    ratio.is_finite().then_some(ratio)
}

fn met(row: &Row) -> bool {
    match row.goal {
        Goal::Figure(goal) => median(&row.entries[1].figures) <= goal,
        Goal::Ratio(goal) => ratio(row, 1).is_some_and(|ratio| ratio <= goal),
    }
}

fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

pub fn print(rows: &[Row]) {
    println!("| work | floor | safealign | peers | goal | met |");
    println!("|---|--:|--:|---|--:|---|");
    for row in rows {
        let cell = |entry: usize| {
            let median = figure(median(&row.entries[entry].figures));
            let ratio = ratio(row, entry).map_or_else(String::new, |ratio| format!(" ({ratio:.2}x)"));
            format!("{median} {}{ratio}", row.unit)
        };
        let peers: Vec<String> =
            (2..row.entries.len()).map(|entry| format!("{} {}", row.entries[entry].name, cell(entry))).collect();
        let goal = match row.goal {
            Goal::Figure(goal) => format!("{goal} {}", row.unit),
            Goal::Ratio(goal) => format!("{goal}x"),
        };
        let met = if met(row) { "yes" } else { "**no**" };
        println!("| {} | {} | {} | {} | {goal} | {met} |", row.name, cell(0), cell(1), peers.join(", "));
    }
}

pub fn json(rows: &[Row], path: &Path) {
    let rows: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            let entries: Vec<serde_json::Value> = (0..row.entries.len())
                .map(|at| {
                    let entry = &row.entries[at];
                    serde_json::json!({
                        "name": entry.name,
                        "figures": entry.figures,
                        "median": median(&entry.figures),
                        "ratio": ratio(row, at),
                    })
                })
                .collect();
            let (goal, kind) = match row.goal {
                Goal::Figure(goal) => (goal, row.unit),
                Goal::Ratio(goal) => (goal, "times the floor"),
            };
            serde_json::json!({
                "work": row.name, "unit": row.unit, "goal": goal, "goal_unit": kind, "met": met(row), "entries": entries,
            })
        })
        .collect();
    let text = serde_json::to_string_pretty(&rows).expect("JSON");
    std::fs::write(path, text + "\n").expect("writes the JSON");
}
