//! The bench, in its smallest form: what it prints, not what it measures.

use serde_json::Value;

use crate::harness::Folder;
use crate::harness::program::run;

/// Every scenario gives all its figures as numbers, those with a bound judged by it; the database it made is gone.
#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_gives_its_figures() {
    let temporary = Folder::new();
    let env = [("TMPDIR", temporary.path().to_str().unwrap())];
    let all = ["handover", "expiry", "feed", "settle", "parked", "crowd", "fleet"];
    let ran = run(&[&["bench", "--quick", "--rounds", "1", "--json"], &all[..]].concat(), &env).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (&report["rounds"], &report["quick"], report["postgresql"].is_string()),
        (&1.into(), &true.into(), true)
    );
    let mut found = Vec::new();
    for scenario in report["scenarios"].as_array().unwrap() {
        let figures = scenario["figures"].as_array().unwrap();
        for figure in figures {
            let value = figure["value"].as_f64().filter(|value| value.is_finite() && *value >= 0.0);
            let value = value.unwrap_or_else(|| panic!("{}: {figure}", scenario["name"]));
            let judged = figure["at_most"].as_f64().map(|most| value <= most);
            assert_eq!(figure["met"].as_bool(), judged, "{figure}");
            let ratio = figure["pgbench"].as_f64().map(|beside| value / beside);
            assert_eq!(figure["ratio"].as_f64(), ratio, "{figure}");
        }
        let count = |key: &str| figures.iter().filter(|figure| figure.get(key).is_some()).count();
        found.push((scenario["name"].as_str().unwrap(), figures.len(), count("at_most"), count("pgbench")));
    }
    // Figures, those that must be something, and those that pgbench stands beside where it is installed.
    let beside = |number| if report["pgbench"] == true { number } else { 0 };
    let expected = [
        ("handover", 6, 4, beside(6)),
        ("expiry", 6, 3, 0),
        ("feed", 4, 1, beside(2)),
        ("settle", 4, 2, beside(2)),
        ("parked", 6, 3, 0),
        ("crowd", 11, 2, beside(2)),
        ("fleet", 8, 3, 0),
    ];
    assert_eq!(found, expected, "{report:#}");
    assert!(found_number(&report, "crowd", "connections") > 0.0 && found_number(&report, "parked", "polls") > 0.0);
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "nothing is left behind");
}

/// The first figure of a scenario whose name begins so.
fn found_number(report: &Value, scenario: &str, what: &str) -> f64 {
    let scenarios = report["scenarios"].as_array().unwrap();
    let figures = scenarios.iter().find(|found| found["name"] == scenario).unwrap()["figures"].as_array().unwrap();
    let figure = figures.iter().find(|figure| figure["what"].as_str().unwrap().starts_with(what)).unwrap();
    figure["value"].as_f64().unwrap()
}
