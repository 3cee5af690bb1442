//! What was measured, as a table for people or JSON for programs.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use serde_json::{Map, Value, json};

use super::database::Database;
use super::figure::{Figure, median};
use super::scenarios::Scenario;
use super::{BenchArgs, BenchError};

/// The figures of all rounds so far.
pub(super) struct Report {
    rounds: u32,
    quick: bool,
    postgresql: Option<String>,
    has_pgbench: bool,
    measured: Vec<Measured>,
}

struct Measured {
    scenario: &'static Scenario,
    lines: Vec<Line>,
}

/// A figure over all rounds.
struct Line {
    rounds: Vec<Figure>,
}

impl Report {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// When the database does not tell its version.
    pub(super) async fn new(args: &BenchArgs, database: Option<&Database>) -> Result<Self, BenchError> {
        let postgresql = match database {
            Some(database) => database.version().await?,
            None => None,
        };
        let has_pgbench = database.is_some_and(Database::has_pgbench);
        Ok(Self { rounds: args.rounds, quick: args.quick, postgresql, has_pgbench, measured: Vec::new() })
    }

    /// Adds a round's figures.
    pub(super) fn add(&mut self, scenario: &'static Scenario, figures: Vec<Figure>) {
        let last = self.measured.last_mut().filter(|measured| measured.scenario.name == scenario.name);
        if let Some(measured) = last {
            measured.lines.iter_mut().zip(figures).for_each(|(line, figure)| line.rounds.push(figure));
        } else {
            let lines = figures.into_iter().map(|figure| Line { rounds: vec![figure] }).collect();
            self.measured.push(Measured { scenario, lines });
        }
    }

    /// Whether every figure is what it must be. What could not be measured is not held against anybody.
    pub(super) fn is_met(&self) -> bool {
        self.measured.iter().flat_map(|measured| &measured.lines).all(|line| line.is_met() != Some(false))
    }

    /// Prints it.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(super) fn print(&self, as_json: bool) -> io::Result<()> {
        let text = if as_json { format!("{:#}\n", self.json()) } else { self.table() };
        io::stdout().write_all(text.as_bytes())
    }

    fn table(&self) -> String {
        let database = self
            .postgresql
            .as_ref()
            .map_or_else(|| "a database unseen".to_owned(), |version| format!("PostgreSQL {version}"));
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("median of {rounds} rounds"),
        };
        let quick = if self.quick { ", quick" } else { "" };
        let mut text = format!("roadstead {}, {database}, {rounds}{quick}\n", env!("CARGO_PKG_VERSION"));
        if !self.has_pgbench {
            text.push_str("pgbench was not found or has no database to run on: nothing stands beside the figures\n");
        }
        for Measured { scenario, lines } in &self.measured {
            let width = lines.iter().map(|line| line.what().chars().count()).max().unwrap_or_default().max(24);
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "\n{}: {}", scenario.name, scenario.about);
            let _ = writeln!(
                text,
                "  {:<width$}  {:>14}  {:>8}  {:>6}  {:>10}  {:>6}",
                "", "measured", "must", "", "pgbench", "ratio"
            );
            for line in lines {
                let row = format!(
                    "  {:<width$}  {:>14}  {:>8}  {:>6}  {:>10}  {:>6}",
                    line.what(),
                    line.value().map_or_else(|| "not measured".to_owned(), |value| with_unit(value, line.unit())),
                    line.at_most().map_or_else(String::new, |most| format!("≤ {}", plain(most))),
                    line.is_met().map_or("", |met| if met { "ok" } else { "MISSED" }),
                    line.beside().map_or_else(String::new, |beside| with_unit(beside, line.unit())),
                    line.ratio().map_or_else(String::new, |ratio| format!("{ratio:.1}")),
                );
                let _ = writeln!(text, "{}", row.trim_end());
            }
            let mut absent: Vec<&str> = lines.iter().filter_map(Line::why_absent).collect();
            absent.dedup();
            for why in absent {
                let _ = writeln!(text, "  not measured: {why}");
            }
        }
        text
    }

    fn json(&self) -> Value {
        let scenarios: Vec<Value> = self
            .measured
            .iter()
            .map(|Measured { scenario, lines }| {
                let figures: Vec<Value> = lines.iter().map(Line::json).collect();
                json!({ "name": scenario.name, "about": scenario.about, "figures": figures })
            })
            .collect();
        let mut report = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "rounds": self.rounds,
            "quick": self.quick,
            "pgbench": self.has_pgbench,
            "met": self.is_met(),
            "scenarios": scenarios,
        });
        if let Some(version) = &self.postgresql {
            report["postgresql"] = json!(version);
        }
        report
    }
}

impl Line {
    fn what(&self) -> &str {
        self.rounds.first().map_or("", |figure| &figure.what)
    }

    fn unit(&self) -> &'static str {
        self.rounds.first().map_or("", |figure| figure.unit)
    }

    fn at_most(&self) -> Option<f64> {
        self.rounds.first().and_then(|figure| figure.at_most)
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().filter_map(|figure| figure.value.as_ref().ok().copied())
    }

    fn value(&self) -> Option<f64> {
        median(self.values())
    }

    fn beside(&self) -> Option<f64> {
        median(self.rounds.iter().filter_map(|figure| figure.beside))
    }

    /// The median of the rounds' own ratios: each is of the same minute.
    fn ratio(&self) -> Option<f64> {
        median(self.rounds.iter().filter_map(|figure| Some(*figure.value.as_ref().ok()? / figure.beside?)))
    }

    fn is_met(&self) -> Option<bool> {
        self.value().zip(self.at_most()).map(|(value, most)| value <= most)
    }

    fn why_absent(&self) -> Option<&str> {
        self.rounds.iter().find_map(|figure| figure.value.as_ref().err()).map(String::as_str)
    }

    fn json(&self) -> Value {
        let mut line = Map::new();
        line.insert("what".to_owned(), json!(self.what()));
        line.insert("unit".to_owned(), json!(self.unit()));
        line.insert("rounds".to_owned(), json!(self.values().collect::<Vec<_>>()));
        let numbers =
            [("value", self.value()), ("at_most", self.at_most()), ("pgbench", self.beside()), ("ratio", self.ratio())];
        line.extend(numbers.into_iter().filter_map(|(name, number)| Some((name.to_owned(), json!(number?)))));
        line.extend(self.is_met().map(|met| ("met".to_owned(), json!(met))));
        line.extend(self.why_absent().map(|why| ("not_measured".to_owned(), json!(why))));
        Value::Object(line)
    }
}

/// Two places for what is small, none for what is large.
fn plain(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1_000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    format!("{} {unit}", plain(value)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAPS: Scenario =
        Scenario { name: "naps", about: "how long they last", long: false, run: |_| Box::pin(async { Ok(vec![]) }) };

    fn report(rounds: &[(f64, f64)]) -> Report {
        let mut report = Report { rounds: 3, quick: false, postgresql: None, has_pgbench: true, measured: Vec::new() };
        for (value, beside) in rounds {
            report.add(
                &NAPS,
                vec![
                    Figure::new("median", "ms", *value).at_most(3.0).beside(Some(*beside)),
                    Figure::absent("dreams", "", "nobody remembers").at_most(1.0),
                ],
            );
        }
        report
    }

    #[test]
    fn the_median_of_the_rounds_is_judged_and_each_ratio_is_of_its_own_round() {
        let report = report(&[(2.0, 1.0), (9.0, 0.5), (3.0, 2.0)]);
        let json = report.json();
        let figure = &json["scenarios"][0]["figures"][0];
        assert_eq!((&figure["value"], &figure["pgbench"], &figure["ratio"]), (&json!(3.0), &json!(1.0), &json!(2.0)));
        assert_eq!((&figure["met"], &json["met"]), (&json!(true), &json!(true)));
        assert_eq!(json["scenarios"][0]["figures"][1]["not_measured"], "nobody remembers");
        assert!(json["scenarios"][0]["figures"][1].get("met").is_none());
    }

    #[test]
    fn a_figure_that_is_too_much_is_missed() {
        let report = report(&[(3.5, 1.0)]);
        assert!(!report.is_met());
        let table = report.table();
        let row = table.lines().find(|line| line.starts_with("  median")).filter(|line| line.contains("MISSED"));
        assert_eq!(
            row.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).as_deref(),
            Some("median 3.50 ms ≤ 3 MISSED 1 ms 3.5")
        );
        assert!(table.contains("not measured: nobody remembers"), "{table}");
    }
}
