use super::*;
use crate::{report::Method, verdict::fixture::Scene};

const HOSTILE: &str = "<script>alert('\"&')</script>";

/// Text that a machine may hold anything in, everywhere that a page shows it.
fn hostile() -> (Report, Inventory) {
    let mut scene = Scene::new();
    scene.port(4, "DOWN");
    HOSTILE.clone_into(&mut scene.inventory.hcas[4].name);
    scene.memory.seen_active.insert(HOSTILE.to_owned());
    scene.inventory.gpus[0].model = Some(HOSTILE.to_owned());
    scene.inventory.hcas[5].firmware = Some(HOSTILE.to_owned());
    scene.verify_all();
    let mut report = scene.report();
    HOSTILE.clone_into(&mut report.node);
    HOSTILE.clone_into(&mut report.verdict.message);
    report.hcas[3].ports[0].state = HOSTILE.to_owned();
    report.pairs[0].dma_buf.step = Some(HOSTILE.to_owned());
    report.pairs[0].dma_buf.outcome = Outcome::Failed;
    let finding = &mut report.findings[0];
    finding.evidence = vec![HOSTILE.to_owned()];
    HOSTILE.clone_into(&mut finding.message);
    HOSTILE.clone_into(&mut finding.remedy);
    (report, scene.inventory)
}

#[test]
fn nothing_of_a_machine_is_markup() {
    let (report, inventory) = hostile();
    let page = html(&report, Some(&inventory));
    assert!(!page.contains("<script"), "{page}");
    // Whatever stands in an attribute ends where the attribute does.
    assert!(!page.contains("alert('\""), "{page}");
    assert!(page.matches("&lt;script&gt;").count() >= 12, "{}", page.matches("&lt;script&gt;").count());
}

#[test]
fn a_page_needs_nothing_outside_it() {
    let (report, inventory) = hostile();
    let page = html(&report, Some(&inventory));
    for outside in ["src=", "href=", "url(", "@import", "http:", "https:", "<link", "<script", "onclick"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains(CONTENT_POLICY) && page.contains("width=device-width"));
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn every_pair_has_its_cell_and_its_words() {
    let mut scene = Scene::new();
    scene.grow(16, 36);
    scene.set(0, 0, Method::Peermem, &crate::verdict::fixture::refused(crate::probe::Step::RegMr, 12));
    let report = scene.report();
    let page = html(&report, None);
    assert_eq!(page.matches("<td class=\"pair").count(), 16 * 36);
    let counted = report.pairs.iter().filter(|p| p.counted).count();
    assert!(counted > 0 && page.matches("<td class=\"pair counted").count() == counted);
    let pair = &report.pairs[0];
    let text = format!("{} with {} (PIX, nearest: counts)", pair.gpu, pair.hca);
    assert!(page.contains(&text.replace("PIX", &pair.distance.to_string())), "{text}");
    assert!(page.contains("peermem failed at ibv_reg_mr: ENOMEM (12)"));
    assert!(page.contains("1 of 576 pairs are not verified"));
    assert!(!page.contains("Topology</h2>"), "no machine at hand, no tree");
}

#[test]
fn a_finding_is_whole_and_simulation_is_said() {
    let mut scene = Scene::new();
    scene.port(4, "DOWN");
    let report = scene.report();
    let page = html(&report, Some(&scene.inventory));
    let finding = &report.findings[0];
    let seen = maud::html! { (finding.evidence[0]) }.into_string();
    for part in [finding.reason.as_str(), "to act: hardware", "port 1 DOWN", "mlx5_4", &seen, "Look at the cable"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        page.contains("Simulated.") && page.contains("switch 0000:16:00.0") && page.contains("1970-01-01 00:00:00 UTC")
    );
    let real = Report { simulated: false, ..report };
    assert!(!html(&real, None).contains("Simulated."));
}
