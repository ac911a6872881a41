//! HCAs with their ports, and GPUs, as cards.

use maud::{Markup, html};

use super::Tone;
use crate::report::{Gpu, GpuRole, Hca, HcaRole, Port, Report};

pub(super) fn hcas(report: &Report) -> Markup {
    html! {
        @if !report.hcas.is_empty() {
            section {
                h2 { "HCAs" }
                ul.devices { @for hca in &report.hcas { (hca_card(hca)) } }
            }
        }
    }
}

fn hca_card(hca: &Hca) -> Markup {
    let active = hca.ports.iter().any(|p| p.state == "ACTIVE");
    let tone = match (hca.role, active) {
        (HcaRole::Eligible, true) => Tone::Good,
        (HcaRole::Eligible, false) if hca.rail => Tone::Bad,
        _ => Tone::None,
    };
    let role = if hca.rail { "rail".to_owned() } else { hca.role.to_string() };
    let numa = hca.numa.map(|n| format!("NUMA {n}"));
    let pci = hca.pci.map(|p| p.to_string());
    let firmware = hca.firmware.as_ref().map(|f| format!("firmware {f}"));
    let used_by = hca.used_by.as_ref().map(|who| format!("used by {who}"));
    html! {
        li.card.(tone.class()) {
            p.name { strong { (hca.name) } " " span.faint { (role) } }
            p { @for port in &hca.ports { (port_tag(port)) " " } @if hca.ports.is_empty() { "no port" } }
            (line([pci, numa, Some(hca.transport.to_string())]))
            (line([hca.driver.clone(), firmware, used_by]))
        }
    }
}

fn port_tag(port: &Port) -> Markup {
    let tone = if port.state == "ACTIVE" { Tone::Good } else { Tone::Bad };
    let rate = port.rate_gbps.filter(|_| port.state == "ACTIVE").map(f64::from);
    html! {
        span.tag.(tone.class()) {
            "port " (port.number) " " (port.state)
            @if let Some(rate) = rate { " " (rate) " Gb/s" }
        }
    }
}

pub(super) fn gpus(report: &Report) -> Markup {
    html! {
        @if !report.gpus.is_empty() {
            section {
                h2 { "GPUs" }
                ul.devices { @for gpu in &report.gpus { (gpu_card(gpu)) } }
            }
        }
    }
}

fn gpu_card(gpu: &Gpu) -> Markup {
    let (tone, served) = match gpu.served {
        _ if !gpu.role.counts() => (Tone::None, gpu.role.to_string()),
        Some(true) => (Tone::Good, "served".to_owned()),
        Some(false) => (Tone::Bad, "not served".to_owned()),
        None => (Tone::Doubt, "not known".to_owned()),
    };
    let lost = (gpu.role == GpuRole::Lost).then(|| "fallen off the bus".to_owned());
    let numa = gpu.numa.map(|n| format!("NUMA {n}"));
    let driver = gpu.driver.as_ref().map(|d| format!("driver {d}"));
    let skipped = gpu.skipped.map(|reason| format!("skipped: {reason}"));
    html! {
        li.card.(tone.class()) {
            p.name { strong { (gpu.pci) } " " span.tag { (served) } }
            (line([gpu.model.clone(), numa, driver]))
            (line([lost, skipped, None]))
            @if !gpu.nearest.is_empty() { p { "nearest: " (gpu.nearest.join(", ")) } }
        }
    }
}

fn line(parts: [Option<String>; 3]) -> Markup {
    let known: Vec<String> = parts.into_iter().flatten().collect();
    html! { @if !known.is_empty() { p.faint { (known.join(", ")) } } }
}
