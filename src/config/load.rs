//! Reading the file and the environment, and refusing what cannot work.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Config, Interval, Selector};
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
        .map_err(|e| bad(&path.display().to_string(), ".", format!("is not YAML that can be read: {e}")))
}

fn bad(origin: &str, key: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Bad { origin: origin.to_owned(), key: key.to_owned(), problem: problem.into() }
}

fn parse(tree: Value, origin: &str) -> Result<Config, ConfigError> {
    let config: Config = serde_path_to_error::deserialize(tree)
        .map_err(|e| bad(origin, &e.path().to_string(), e.inner().to_string()))?;
    validate(&config).map_err(|(key, problem)| bad(origin, &key, problem))?;
    Ok(config)
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

fn set(tree: &mut Value, path: &[String], value: Value) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut at = tree;
    for key in parents {
        if !at[key.as_str()].is_object() {
            at[key.as_str()] = Value::Object(serde_json::Map::new());
        }
        at = &mut at[key.as_str()];
    }
    at[last.as_str()] = value;
}

type Problem = (String, String);

/// What types can't say.
fn validate(config: &Config) -> Result<(), Problem> {
    let must = |ok: bool, key: &str, problem: String| if ok { Ok(()) } else { Err((key.to_owned(), problem)) };
    must(
        config.api_version == API_VERSION,
        "apiVersion",
        format!("is `{}`; this agent reads `{API_VERSION}`", config.api_version),
    )?;
    must(config.kind == "Configuration", "kind", format!("is `{}`; must be `Configuration`", config.kind))?;
    let check = &config.check;
    if let Interval::Every(span) = check.interval {
        must(span.0.as_secs() >= 1, "check.interval", format!("is {span}; must be at least 1s, or `never`"))?;
    }
    must(!check.methods.is_empty(), "check.methods", "is empty; name dma-buf, peermem or both".into())?;
    for (key, size) in [("check.size", check.size), ("check.deepSize", check.deep_size)] {
        let fits = size.0 >= 64 << 10 && size.0 <= 64 << 30 && size.0.is_multiple_of(64 << 10);
        must(fits, key, format!("is {size}; must be a multiple of 64KiB, from 64KiB to 64GiB"))?;
    }
    must(
        (1..=3600).contains(&check.timeout.0.as_secs()),
        "check.timeout",
        format!("is {}; must be 1s to 1h", check.timeout),
    )?;
    must(
        (1..=64).contains(&check.parallelism),
        "check.parallelism",
        format!("is {}; must be 1 to 64", check.parallelism),
    )?;
    let damping = &config.policy.damping;
    for (key, n) in [("policy.damping.fall", damping.fall), ("policy.damping.rise", damping.rise)] {
        must((1..=100).contains(&n), key, format!("is {n}; must be 1 to 100"))?;
    }
    must(
        config.publish.heartbeat.0.as_secs() >= 10,
        "publish.heartbeat",
        format!("is {}; must be at least 10s", config.publish.heartbeat),
    )?;
    must(
        is_dns_subdomain(&config.publish.prefix),
        "publish.prefix",
        format!("is `{}`; must be a lower-case DNS name of at most 253 characters", config.publish.prefix),
    )?;
    if let Some(file) = &config.hardware.topology_file {
        must(
            file.is_absolute(),
            "hardware.topologyFile",
            format!("is `{}`; must be an absolute path on the node", file.display()),
        )?;
    }
    validate_selectors("check.select.hcas", &check.select.hcas)?;
    for (i, resource) in config.resources.iter().enumerate() {
        let key = format!("resources[{i}].name");
        must(
            is_resource_name(&resource.name),
            &key,
            format!("is `{}`; must be `domain/name`, not in kubernetes.io", resource.name),
        )?;
        let twice = config.resources.iter().take(i).any(|r| r.name == resource.name);
        must(!twice, &key, format!("`{}` is there twice", resource.name))?;
        must((1..=1024).contains(&resource.replicas), &format!("resources[{i}].replicas"), "must be 1 to 1024".into())?;
        validate_selectors(&format!("resources[{i}].select"), &resource.select)?;
        let before = config.resources.iter().take(i).find(|other| other.nccl_env && resource.nccl_env);
        if let Some(other) = before {
            let problem = format!("is on for `{}` too; one resource alone can set NCCL's variables", other.name);
            return Err((format!("resources[{i}].ncclEnv"), problem));
        }
    }
    if let Some(listen) = &config.http.listen {
        must(
            listen.parse::<std::net::SocketAddr>().is_ok(),
            "http.listen",
            format!("is `{listen}`; must be an address and a port like `[::]:9477`, or null"),
        )?;
    }
    Ok(())
}

fn validate_selectors(key: &str, selectors: &[Selector]) -> Result<(), Problem> {
    for (i, selector) in selectors.iter().enumerate() {
        if *selector == Selector::default() {
            return Err((
                format!("{key}[{i}]"),
                "is empty and would match everything; name at least one property".into(),
            ));
        }
        for (name, value) in [("vendor", &selector.vendor), ("device", &selector.device)] {
            if let Some(text) = value
                && !(text.starts_with("0x") && u32::from_str_radix(&text[2..], 16).is_ok_and(|n| n <= 0xffff))
            {
                return Err((format!("{key}[{i}].{name}"), format!("is `{text}`; must be a PCI id like `0x15b3`")));
            }
        }
    }
    Ok(())
}

fn is_dns_subdomain(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

/// `IsExtendedResourceName` of Kubernetes' `pkg/apis/core/v1/helper`.
fn is_resource_name(text: &str) -> bool {
    text.split_once('/').is_some_and(|(domain, name)| {
        is_dns_subdomain(domain)
            && domain != "kubernetes.io"
            && !domain.ends_with(".kubernetes.io")
            && !domain.starts_with("requests.")
            && (1..=63).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
            && [name.bytes().next(), name.bytes().last()].iter().all(|b| b.is_some_and(|b| b.is_ascii_alphanumeric()))
    })
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
