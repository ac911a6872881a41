//! The JSON Schemas in docs/ are those of the types, and what the agent says keeps to them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{fs, path::Path};

use serde_json::{Value, json};
use support::{Home, Tree};

fn documented(what: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/{what}.schema.json"))).unwrap()
}

fn validator(what: &str) -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(&documented(what)).unwrap()).unwrap()
}

#[test]
fn the_documented_schemas_are_current() {
    let home = Home::new();
    for what in ["report", "config"] {
        let now = home.run(&["schema", what]).exits(0).out;
        assert!(now == documented(what), "docs/{what}.schema.json is not that of the types: run `make docs`");
    }
}

#[test]
fn every_report_keeps_to_its_schema() {
    let home = Home::new();
    let validator = validator("report");
    let simulated = |faults: &str| home.check_with_faults(faults, &["-o", "json"]).json();
    let situations = [
        ("ready", simulated("")),
        ("degraded", simulated("{ hca: mlx5_4, port: DOWN }")),
        ("not-ready", simulated("{ peermem: false }, { openModule: false }")),
        ("degraded", simulated("{ gpu: \"0000:d1:00.0\", lost: true }")),
        ("not-applicable", home.run(&["check", "--simulate", "cpu-only", "-o", "json"]).json()),
        ("ready", home.run(&["check", "--simulate", "hgx-h100", "--loopback", "-o", "json"]).json()),
    ];
    for (state, report) in &situations {
        assert_eq!(report["verdict"]["state"], *state);
        assert_keeps(&validator, report);
    }
    assert_keeps(&validator, &home.check(&Tree::gpu_and_hca()).json());
    let mut wrong = situations[0].1.clone();
    wrong["verdict"]["state"] = json!("splendid");
    assert!(!validator.is_valid(&wrong), "takes a state that is none");
    wrong = situations[0].1.clone();
    wrong.as_object_mut().unwrap().remove("pairs");
    assert!(!validator.is_valid(&wrong), "takes a report without pairs");
}

#[test]
fn the_configuration_has_a_schema_that_refuses_what_the_agent_refuses() {
    let validator = validator("config");
    let file = |more: Value| {
        let mut all = json!({ "apiVersion": "gdr-agent/v1", "kind": "Configuration" });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    assert_keeps(&validator, &file(json!({})));
    assert_keeps(&validator, &serde_json::to_value(gdr_agent::config::Config::default()).unwrap());
    assert_keeps(&validator, &file(json!({ "check": { "interval": "never" }, "http": { "listen": null } })));
    for wrong in [
        json!({ "chek": {} }),
        json!({ "check": { "interval": 15 } }),
        json!({ "check": { "methods": ["gds"] } }),
        json!({ "publish": { "dryrun": true } }),
    ] {
        assert!(!validator.is_valid(&file(wrong.clone())), "takes {wrong}");
    }
}

fn assert_keeps(validator: &jsonschema::Validator, value: &Value) {
    let problems: Vec<_> = validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// The part of the chart's schema that is the agent's: the configuration without its two first lines.
fn with_configuration(mut chart: Value) -> Value {
    let mut config: Value = serde_json::from_str(&documented("config")).unwrap();
    let config = config.as_object_mut().unwrap();
    chart["$defs"] = config.remove("$defs").unwrap();
    config["properties"].as_object_mut().unwrap().retain(|key, _| key != "apiVersion" && key != "kind");
    for key in ["$schema", "title", "required"] {
        config.remove(key);
    }
    config["description"] = json!("The agent's configuration file without apiVersion and kind.");
    chart["properties"]["config"] = Value::Object(config.clone());
    chart
}

#[test]
fn the_charts_schema_has_the_configurations_documentation() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/gdr-agent/values.schema.json");
    let chart: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let now = with_configuration(chart.clone());
    if std::env::var_os("GDR_AGENT_WRITE_DOCS").is_some() {
        fs::write(&file, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
    } else {
        assert!(now == chart, "the chart's values.schema.json is not that of the types: run `make docs`");
    }
}
