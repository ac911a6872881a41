//! What types can't say: ranges, names, and what can never work.

use std::path::Path;

use super::{Config, Expect, Function, Interval, Publish, Resource, Selector, Span};
use crate::report::API_VERSION;

/// Path of the key, and what is wrong with what it has.
type Problem = (String, String);

/// What types can't say.
pub(super) fn validate(config: &Config) -> Result<(), Problem> {
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
    validate_prefix(&config.publish)?;
    if let Some(file) = &config.hardware.topology_file {
        must(
            file.is_absolute(),
            "hardware.topologyFile",
            format!("is `{}`; must be an absolute path on the node", file.display()),
        )?;
    }
    if let Some((_, method)) = check.methods.iter().enumerate().find(|(i, m)| check.methods[..*i].contains(m)) {
        return Err(("check.methods".to_owned(), format!("names `{method}` twice")));
    }
    for (key, span, longest) in [
        ("policy.settle", config.policy.settle, 24 * 3600),
        ("policy.portGrace", config.policy.port_grace, 3600),
        ("policy.damping.hold", damping.hold, 24 * 3600),
        ("publish.spread", config.publish.spread, 3600),
    ] {
        must(span.0.as_secs() <= longest, key, format!("is {span}; must be at most {}", Span::seconds(longest)))?;
    }
    for (key, path) in [
        ("publish.nfdDir", &config.publish.nfd_dir),
        ("cdi.dir", &config.cdi.dir),
        ("kubelet.devicePlugins", &config.kubelet.device_plugins),
        ("kubelet.podResources", &config.kubelet.pod_resources),
        ("driver.root", &config.driver.root),
        ("store.dir", &config.store.dir),
    ] {
        must(is_plain(path), key, format!("is `{}`; must be an absolute path without `..`", path.display()))?;
    }
    for (i, entry) in config.policy.expect.iter().enumerate() {
        validate_expect(&format!("policy.expect[{i}]"), entry)?;
    }
    validate_selectors("check.select.hcas", &check.select.hcas)?;
    validate_selectors("check.select.gpus", &check.select.gpus)?;
    for (i, selector) in check.select.gpus.iter().enumerate() {
        let of_an_hca = [
            ("nearest", selector.nearest.map(|nearest| nearest.to_string())),
            ("linkLayer", selector.link_layer.clone()),
            ("minRateGbps", selector.min_rate_gbps.map(|rate| rate.to_string())),
            (
                "function",
                selector.function.map(|function| if function == Function::Pf { "pf" } else { "vf" }.to_owned()),
            ),
        ];
        if let Some((name, Some(value))) = of_an_hca.into_iter().find(|(_, value)| value.is_some()) {
            let key = format!("check.select.gpus[{i}].{name}");
            let right = "a GPU has vendor, device, driver, pci, and its model as name";
            return Err((key, format!("is `{value}`, and of HCAs alone; {right}")));
        }
    }
    for i in 0..config.resources.len() {
        validate_resource(i, &config.resources)?;
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

/// Whether keys may begin so: outside what is Kubernetes' own, and valid as a label's name.
///
/// # Errors
/// The key's path, and what is wrong with its value.
pub fn validate_prefix(publish: &Publish) -> Result<(), Problem> {
    let prefix = &publish.prefix;
    let problem = if !is_dns_subdomain(prefix) {
        "a lower-case DNS name of at most 253 characters"
    } else if is_kubernetes_own(prefix) {
        "outside kubernetes.io and k8s.io, which are Kubernetes' own"
    } else if publish.short_label && prefix.len() > 63 {
        // Without a prefix before it, it is the name of a label.
        "of at most 63 characters unless shortLabel is false"
    } else {
        return Ok(());
    };
    Err(("publish.prefix".to_owned(), format!("is `{prefix}`; must be {problem}")))
}

fn validate_resource(i: usize, all: &[Resource]) -> Result<(), Problem> {
    let resource = &all[i];
    let must = |ok: bool, key: &str, problem: String| {
        if ok { Ok(()) } else { Err((format!("resources[{i}].{key}"), problem)) }
    };
    let before = &all[..i];
    must(
        is_resource_name(&resource.name),
        "name",
        format!("is `{}`; must be `domain/name`, not in kubernetes.io", resource.name),
    )?;
    must(
        before.iter().all(|other| other.name != resource.name),
        "name",
        format!("`{}` is there twice", resource.name),
    )?;
    must((1..=1024).contains(&resource.replicas), "replicas", format!("is {}; must be 1 to 1024", resource.replicas))?;
    must(
        !resource.select.is_empty(),
        "select",
        "is empty and takes nothing; leave it out for the rails, or name properties".into(),
    )?;
    validate_selectors(&format!("resources[{i}].select"), &resource.select)?;
    if let Some(other) = before.iter().find(|other| other.nccl_env && resource.nccl_env) {
        let problem = format!("is on for `{}` too; one resource alone can set NCCL's variables", other.name);
        return must(false, "ncclEnv", problem);
    }
    let same = before.iter().find(|other| other.kind == resource.kind && other.select == resource.select);
    must(
        same.is_none(),
        "select",
        format!(
            "is that of `{}`, which takes all of them before; a device is in the first resource that takes it",
            same.map_or("", |other| &other.name)
        ),
    )
}

fn validate_expect(key: &str, entry: &Expect) -> Result<(), Problem> {
    if entry.gpus.is_none() && entry.rails.is_none() {
        return Err((key.to_owned(), "asks for nothing; say gpus, rails or both".to_owned()));
    }
    for (name, number) in [("gpus", entry.gpus), ("rails", entry.rails)] {
        if let Some(number) = number.filter(|number| *number > 1024) {
            return Err((format!("{key}.{name}"), format!("is {number}; must be 0 to 1024")));
        }
    }
    for (name, pattern) in [("gpuModel", &entry.gpu_model), ("product", &entry.product)] {
        if pattern.as_ref().is_some_and(|pattern| pattern.trim().is_empty()) {
            return Err((
                format!("{key}.{name}"),
                "is empty and matches nothing; a glob like `NVIDIA H100*`".to_owned(),
            ));
        }
    }
    Ok(())
}

/// A path that can be mounted and read the same everywhere.
fn is_plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|part| part != std::path::Component::ParentDir)
}

/// What `linkLayer` can be.
const LINK_LAYERS: [&str; 4] = ["infiniband", "roce", "iwarp", "efa"];

fn validate_selectors(key: &str, selectors: &[Selector]) -> Result<(), Problem> {
    for (i, selector) in selectors.iter().enumerate() {
        if *selector == Selector::default() {
            return Err((
                format!("{key}[{i}]"),
                "is empty and would match everything; name at least one property".into(),
            ));
        }
        let never = |name: &str, problem: String| Err((format!("{key}[{i}].{name}"), problem));
        for (name, value) in [("driver", &selector.driver), ("name", &selector.name)] {
            if value.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return never(name, "is empty and matches nothing; leave it out, or name one".into());
            }
        }
        if let Some(layer) = selector.link_layer.as_ref().filter(|layer| !LINK_LAYERS.contains(&layer.as_str())) {
            return never("linkLayer", format!("is `{layer}`; must be one of {}", LINK_LAYERS.join(", ")));
        }
        if let Some(rate) = selector.min_rate_gbps.filter(|rate| !(*rate > 0.0 && *rate <= 10_000.0)) {
            return never("minRateGbps", format!("is {rate}; must be a rate in Gb/s like 200"));
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

/// Domains in which Kubernetes lets no kubelet and no policy of ours write.
fn is_kubernetes_own(domain: &str) -> bool {
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|own| domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
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
