use super::*;
use crate::{
    probe::Step,
    report::Method,
    verdict::fixture::{Scene, refused},
};

/// The text of a machine, and its lines.
fn drawn(gpus: usize, hcas: usize) -> (String, Report) {
    let mut scene = Scene::new();
    scene.grow(gpus, hcas);
    let made = scene.report();
    (report(&made, Style::plain()), made)
}

#[test]
fn large_machines_wrap_into_blocks_with_headers_of_their_own() {
    for (gpus, hcas, blocks) in [(8, 8, 1), (8, 16, 2), (16, 36, 5)] {
        let (text, made) = drawn(gpus, hcas);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|l| l.chars().count() <= WIDTH), "{text}");
        let headers: Vec<&&str> = lines.iter().filter(|l| l.trim_start().starts_with("mlx5_")).collect();
        assert_eq!(headers.len(), blocks, "{text}");
        assert_eq!(lines.iter().filter(|l| l.contains("each cell:")).count(), 1, "{text}");
        for header in headers {
            let at = lines.iter().position(|l| l == header).unwrap();
            assert_eq!(lines[at - 1], "", "a block stands apart: {text}");
            assert!(lines[at + 1].trim_start().starts_with("ACTIVE"), "{text}");
            let rows = lines[at + 2..].iter().take_while(|l| l.len() > 12 && l[2..].starts_with("000"));
            assert_eq!(rows.count(), gpus, "{text}");
        }
        for hca in &made.hcas {
            let named = lines.iter().flat_map(|l| l.split_whitespace()).filter(|w| *w == hca.name).count();
            assert_eq!(named, 1, "{}: {text}", hca.name);
        }
    }
}

#[test]
fn colour_adds_nothing_but_colour() {
    let mut scene = Scene::new();
    scene.grow(8, 16);
    scene.port(4, "DOWN");
    scene.set(0, 9, Method::DmaBuf, &refused(Step::RegDmabuf, 22));
    let made = scene.report();
    let coloured = report(&made, Style::coloured());
    let mut bare = String::new();
    for (i, piece) in coloured.split('\x1b').enumerate() {
        bare.push_str(if i == 0 { piece } else { piece.split_once('m').unwrap().1 });
    }
    let trimmed = |text: &str| text.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
    let plain = report(&made, Style::plain());
    assert_eq!(trimmed(&bare), trimmed(&plain));
    assert!(!plain.contains('\x1b') && coloured.contains("\x1b[31;1m"));
}
