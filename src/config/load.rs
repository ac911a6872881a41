//! Reading the file and the environment, and refusing what cannot work.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Config, validate::validate};
use crate::report::API_VERSION;

/// Read when it is there and `--config` is not given.
pub const DEFAULT_PATH: &str = "/etc/gdr-agent/config.yaml";

/// Prefix of the environment's variables.
const ENV_PREFIX: &str = "GDR_AGENT_";

/// A configuration that was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read {}: {source}; give a readable file by --config", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{origin}: {key}: {problem}")]
    Bad {
        /// The file, or the variable.
        origin: String,
        /// Path of the key, `check.interval`.
        key: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

/// Reads the file (`path`, else [`DEFAULT_PATH`] when it is there), lays the environment over it,
/// and checks the whole.
pub fn load(path: Option<&Path>, environment: impl Iterator<Item = (String, String)>) -> Result<Config, ConfigError> {
    let default = Path::new(DEFAULT_PATH);
    let path = path.or_else(|| default.exists().then_some(default));
    let (mut tree, origin) = match path {
        Some(path) => (read(path)?, path.display().to_string()),
        None => {
            (serde_json::json!({ "apiVersion": API_VERSION, "kind": "Configuration" }), "built-in defaults".to_owned())
        }
    };
    let overlaid = overlay(&mut tree, environment);
    let origin = if overlaid.is_empty() { origin } else { format!("{origin} with {}", overlaid.join(", ")) };
    parse(tree, &origin)
}

fn read(path: &Path) -> Result<Value, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    serde_saphyr::from_str(&text)
        .map(|tree: Value| if tree.is_null() { Value::Object(serde_json::Map::new()) } else { tree })
        .map_err(|e| bad(&path.display().to_string(), ".", format!("is not YAML that can be read: {e}")))
}

fn bad(origin: &str, key: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Bad { origin: origin.to_owned(), key: key.to_owned(), problem: problem.into() }
}

fn parse(tree: Value, origin: &str) -> Result<Config, ConfigError> {
    let config: Config = serde_path_to_error::deserialize(tree)
        .map_err(|e| bad(origin, &e.path().to_string(), with_advice(e.inner().to_string())))?;
    validate(&config).map_err(|(key, problem)| bad(origin, &key, problem))?;
    Ok(config)
}

/// What would be right, beside what serde says: of what is unknown the nearest of all that is known, and of a
/// number without its unit what one looks like.
fn with_advice(text: String) -> String {
    const CLOSE: f64 = 0.8;
    if text.starts_with("invalid type: integer") && text.ends_with("expected a string") {
        return format!("{text} with its unit, like 15m or 2MiB");
    }
    if let Some((found, expected)) = text.rsplit_once("expected ") {
        // Rust's words for what has other ones in YAML.
        match expected {
            "usize" | "u32" => return format!("{found}expected a whole number"),
            _ if expected.starts_with("struct ") => return format!("{found}expected keys with their values"),
            _ => {}
        }
    }
    let mut names = text.split('`').skip(1).step_by(2);
    let unknown = text.starts_with("unknown ").then(|| names.next()).flatten();
    let nearest = unknown.and_then(|unknown| {
        let likeness = |known: &&str| strsim::jaro_winkler(&unknown.to_lowercase(), &known.to_lowercase());
        names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|known| likeness(known) >= CLOSE)
    });
    match nearest {
        Some(known) => format!("{text}; did you mean `{known}`?"),
        None => text,
    }
}

/// `GDR_AGENT_CHECK_INTERVAL` is `check.interval`: every key that is no list of objects has its
/// variable. Others that begin alike (Kubernetes makes some for a Service called gdr-agent) are not
/// ours. Answers the variables that were used.
fn overlay(tree: &mut Value, environment: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut keys = Vec::new();
    leaves(&serde_json::to_value(Config::default()).unwrap_or_default(), &mut Vec::new(), &mut keys);
    let mut used = Vec::new();
    for (name, text) in environment {
        let Some((path, default)) = keys.iter().find(|(path, _)| variable(path) == name) else { continue };
        set(tree, path, scalar(&text, default));
        used.push(name);
    }
    used
}

fn leaves(value: &Value, path: &mut Vec<String>, out: &mut Vec<(Vec<String>, Value)>) {
    if let Value::Object(map) = value {
        for (key, value) in map {
            path.push(key.clone());
            leaves(value, path, out);
            path.pop();
        }
    } else if path.len() > 1 {
        out.push((path.clone(), value.clone()));
    }
}

fn variable(path: &[String]) -> String {
    let snake = path.join("_").chars().fold(String::new(), |mut out, c| {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
        out
    });
    format!("{ENV_PREFIX}{snake}")
}

fn scalar(text: &str, default: &Value) -> Value {
    match default {
        Value::Bool(_) => text.parse().map_or_else(|_| text.into(), Value::Bool),
        Value::Number(_) => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        Value::Array(_) => text.split(',').map(|part| Value::from(part.trim())).collect(),
        _ if text == "null" => Value::Null,
        _ => text.into(),
    }
}

/// Where the file has something else in the way it stays, to be refused by its own name.
fn set(tree: &mut Value, path: &[String], value: Value) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut at = tree;
    for key in parents {
        let Value::Object(map) = at else { return };
        at = map.entry(key).or_insert(Value::Null);
        if at.is_null() {
            *at = Value::Object(serde_json::Map::new());
        }
    }
    if let Value::Object(map) = at {
        map.insert(last.clone(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_yaml(yaml: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        fs::write(&path, yaml).unwrap();
        load(Some(&path), environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    const HEAD: &str = "apiVersion: gdr-agent/v1\nkind: Configuration\n";

    #[test]
    fn two_lines_are_a_whole_file() {
        assert_eq!(from_yaml(HEAD, &[]).unwrap(), Config::default());
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let yaml = format!("{HEAD}check: {{ interval: 1h, parallelism: 2 }}\n");
        let environment = [
            ("GDR_AGENT_CHECK_INTERVAL", "30s"),
            ("GDR_AGENT_CHECK_METHODS", "peermem"),
            ("GDR_AGENT_PORT_9477_TCP", "x"),
        ];
        let config = from_yaml(&yaml, &environment).unwrap();
        assert_eq!(config.check.interval.to_string(), "30s");
        assert_eq!(config.check.methods, [crate::report::Method::Peermem]);
        assert_eq!(config.check.parallelism, 2);
        assert!(from_yaml(HEAD, &[("GDR_AGENT_PUBLISH_DRY_RUN", "true")]).unwrap().publish.dry_run);
    }

    #[test]
    fn refuses_with_the_key_and_what_would_be_right() {
        for (yaml, key, hint) in [
            ("check: { intervall: 1m }", "check.intervall", "unknown field"),
            ("check: { interval: soon }", "check.interval", "15m"),
            ("check: { interval: 0s }", "check.interval", "at least 1s"),
            ("check: { methods: [] }", "check.methods", "dma-buf"),
            ("check: { methods: [gdrcopy] }", "check.methods[0]", "peermem"),
            ("check: { size: 4KiB }", "check.size", "64KiB"),
            ("check: { parallelism: 0 }", "check.parallelism", "1 to 64"),
            ("policy: { damping: { fall: 0 } }", "policy.damping.fall", "1 to 100"),
            ("publish: { prefix: Bad_Prefix }", "publish.prefix", "lower-case"),
            ("publish: { mode: labels }", "publish.mode", "nfd"),
            ("resources: [ { name: hca } ]", "resources[0].name", "domain/name"),
            ("resources: [ { name: kubernetes.io/hca } ]", "resources[0].name", "kubernetes.io"),
            ("resources: [ { name: a/b }, { name: a/b } ]", "resources[1].name", "twice"),
            ("resources: [ { select: [ {} ] } ]", "resources[0].select[0]", "empty"),
            ("resources: [ { select: [ { vendor: mellanox } ] } ]", "resources[0].select[0].vendor", "0x15b3"),
            ("resources: [ { select: [ { pci: \"1b:00\" } ] } ]", "resources[0].select[0].pci", "0000:1b:00.0"),
            (
                "resources: [ { name: a/b, ncclEnv: true }, { name: a/c, ncclEnv: true } ]",
                "resources[1].ncclEnv",
                "`a/b` too",
            ),
            ("hardware: { topologyFile: topo.xml }", "hardware.topologyFile", "absolute path"),
            ("http: { listen: everywhere }", "http.listen", "9477"),
            ("bogus: 1", "bogus", "unknown field"),
        ] {
            let error = from_yaml(&format!("{HEAD}{yaml}\n"), &[]).expect_err(yaml).to_string();
            assert!(
                error.contains("c.yaml") && error.contains(&format!(" {key}:")) && error.contains(hint),
                "{yaml}: {error}"
            );
        }
        let error = from_yaml("kind: Configuration\n", &[]).unwrap_err().to_string();
        assert!(error.contains("apiVersion"), "{error}");
    }
}
