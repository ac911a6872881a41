//! NCCL's topology file (`NCCL_TOPO_FILE`), which clouds ship for machines whose guests see no
//! switches. What is read of it is the nesting of `pci` below `cpu`, as NCCL reads it.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use roxmltree::{Document, Node};

use super::PciAddress;
use crate::report::Distance;

/// A topology file that was refused.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// It can't be read.
    #[error("hardware.topologyFile: can't read {}: {source}; give a file of the node that can be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its content is wrong.
    #[error("hardware.topologyFile: {}:{line}: {problem}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u32,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

/// Nobody's switches are in more levels.
const DEEPEST: usize = 16;
/// Real files have a few KiB.
const LARGEST: u64 = 1 << 20;

/// Where a file puts each PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopologyFile {
    seats: BTreeMap<PciAddress, FileSeat>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileSeat {
    /// The `cpu` element, counted.
    cpu: usize,
    numa: i64,
    /// The `pci` elements around it.
    switches: Vec<PciAddress>,
}

impl TopologyFile {
    /// Reads a file of the node: below `root`, where the agent sees the node's files there.
    pub fn read(root: &Path, file: &Path) -> Result<Self, TopologyError> {
        let below = root.join(file.strip_prefix("/").unwrap_or(file));
        let path = if below.is_file() { below } else { file.to_owned() };
        let mut text = String::new();
        fs::File::open(&path)
            .and_then(|f| f.take(LARGEST).read_to_string(&mut text))
            .map_err(|source| TopologyError::Read { path: path.clone(), source })?;
        Self::parse(&text).map_err(|(line, problem)| TopologyError::Bad { path, line, problem })
    }

    /// Reads its text; else the line, and what is wrong there.
    pub fn parse(text: &str) -> Result<Self, (u32, String)> {
        let document = Document::parse(text).map_err(|e| (e.pos().row, format!("is not XML: {e}")))?;
        let mut file = Self::default();
        let system = document.root_element();
        if system.tag_name().name() != "system" {
            return Err(at(system, format!("begins with <{}>; must be <system>", system.tag_name().name())));
        }
        if system.attribute("version") != Some("1") {
            return Err(at(system, "has no version=\"1\", the only one that NCCL reads".to_owned()));
        }
        for (cpu, element) in elements(system).enumerate() {
            if element.tag_name().name() != "cpu" {
                let name = element.tag_name().name();
                return Err(at(element, format!("<{name}> inside <system>; must be <cpu>")));
            }
            let numa = attribute(element, "numaid")?
                .parse()
                .map_err(|_| at(element, "numaid must be a number, -1 where it is unknown".to_owned()))?;
            file.below(element, &FileSeat { cpu, numa, switches: Vec::new() })?;
        }
        if file.seats.is_empty() {
            return Err(at(system, "has no <pci> inside a <cpu>; must place at least one device".to_owned()));
        }
        Ok(file)
    }

    fn below(&mut self, parent: Node<'_, '_>, seat: &FileSeat) -> Result<(), (u32, String)> {
        // Others (gpu, nic, nvlink, c2c) say nothing of the place.
        for element in elements(parent).filter(|e| e.tag_name().name() == "pci") {
            let text = attribute(element, "busid")?;
            let address: PciAddress = text.parse().map_err(|e| at(element, format!("busid: {e}")))?;
            if self.seats.insert(address, seat.clone()).is_some() {
                return Err(at(element, format!("busid {address} is there twice; each function has one place")));
            }
            let mut switches = seat.switches.clone();
            switches.push(address);
            if switches.len() > DEEPEST {
                return Err(at(element, format!("<pci> is nested more than {DEEPEST} deep; no machine is")));
            }
            self.below(element, &FileSeat { switches, ..seat.clone() })?;
        }
        Ok(())
    }

    /// The distance of a GPU and an HCA, where the file has both. NCCL writes an adapter's functions
    /// as one, by the first.
    #[must_use]
    pub fn distance(&self, gpu: PciAddress, hca: PciAddress) -> Option<Distance> {
        let a = self.seats.get(&gpu)?;
        let b = self.seats.get(&hca).or_else(|| self.seats.get(&hca.first_function()))?;
        Some(if a.cpu != b.cpu {
            if a.numa == b.numa && a.numa >= 0 { Distance::Node } else { Distance::Sys }
        } else if a.switches.first().is_none_or(|s| b.switches.first() != Some(s)) {
            Distance::Phb
        } else if a.switches == b.switches {
            Distance::Pix
        } else {
            Distance::Pxb
        })
    }
}

fn elements<'a, 'input>(parent: Node<'a, 'input>) -> impl Iterator<Item = Node<'a, 'input>> {
    parent.children().filter(Node::is_element)
}

fn attribute<'a>(element: Node<'a, '_>, name: &str) -> Result<&'a str, (u32, String)> {
    element.attribute(name).ok_or_else(|| at(element, format!("<{}> has no {name}", element.tag_name().name())))
}

fn at(node: Node<'_, '_>, problem: String) -> (u32, String) {
    (node.document().text_pos_at(node.range().start).row, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="ffff:ff:02.0" class="0x060400">
        <pci busid="0001:00:00.0" class="0x030200"><gpu dev="0"><nvlink target="x" count="1"/></gpu></pci>
        <pci busid="0101:00:00.0" class="0x020700"><nic><net name="mlx5_0"/></nic></pci>
      </pci>
      <pci busid="0102:00:00.0" class="0x020700"/>
    </pci>
    <pci busid="0103:00:00.0" class="0x020700"/>
  </cpu>
  <cpu numaid="1"><pci busid="0104:00:00.0"/></cpu>
</system>"#;

    #[test]
    fn nesting_is_distance() {
        let file = TopologyFile::parse(FILE).unwrap();
        let gpu = "0001:00:00.0".parse().unwrap();
        for (hca, distance) in [
            ("0101:00:00.0", Some(Distance::Pix)),
            ("0101:00:00.1", Some(Distance::Pix)),
            ("0102:00:00.0", Some(Distance::Pxb)),
            ("0103:00:00.0", Some(Distance::Phb)),
            ("0104:00:00.0", Some(Distance::Sys)),
            ("0105:00:00.0", None),
        ] {
            assert_eq!(file.distance(gpu, hca.parse().unwrap()), distance, "{hca}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..40)) {
            let _ = TopologyFile::parse(&pieces.concat());
        }
    }

    const PIECES: &[&str] = &[
        "<system version=\"1\">",
        "</system>",
        "<cpu numaid=\"-1\">",
        "</cpu>",
        "<pci busid=\"0000:01:00.0\">",
        "<pci busid=\"",
        "</pci>",
        "<pci/>",
        "<net name=\"\u{fffd}\"/>",
        "&amp;",
        "&x;",
        "<!DOCTYPE a [",
        "]>",
        "<!--",
        "-->",
        "\n",
        "\0",
        "numaid=\"99999999999999999999\"",
        "<?xml version=\"1.0\"?>",
        "<![CDATA[",
        ">",
    ];

    #[test]
    fn what_is_broken_is_refused_with_its_line() {
        let nested = |levels: usize| {
            let open: Vec<_> = (0..levels).map(|i| format!("<pci busid=\"{i:04x}:00:00.0\">\n")).collect();
            let open = open.concat();
            format!("<system version=\"1\"><cpu numaid=\"0\">\n{open}{}</cpu></system>", "</pci>".repeat(levels))
        };
        assert!(TopologyFile::parse(&nested(DEEPEST)).is_ok());
        let (deep, deepest) = (nested(DEEPEST + 1), nested(30_000));
        for (text, line, hint) in [
            (deep.as_str(), 18, "16 deep"),
            (&deepest, 18, "16 deep"),
            ("", 1, "is not XML"),
            ("<system version=\"1\">\n<cpu numaid=\"0\">\n</system>", 3, "is not XML"),
            ("<topology/>", 1, "must be <system>"),
            ("\n<system/>", 2, "version=\"1\""),
            ("<system version=\"2\"/>", 1, "version=\"1\""),
            ("<system version=\"1\"/>", 1, "at least one device"),
            ("<system version=\"1\">\n<pci busid=\"0000:01:00.0\"/></system>", 2, "must be <cpu>"),
            ("<system version=\"1\">\n<cpu><pci busid=\"0000:01:00.0\"/></cpu></system>", 2, "has no numaid"),
            ("<system version=\"1\">\n<cpu numaid=\"one\"/></system>", 2, "must be a number"),
            ("<system version=\"1\"><cpu numaid=\"0\">\n\n<pci class=\"0x060400\"/></cpu></system>", 3, "has no busid"),
            ("<system version=\"1\"><cpu numaid=\"0\">\n<pci busid=\"1b:00\"/></cpu></system>", 2, "0000:1b:00.0"),
            (
                "<system version=\"1\"><cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\"/>\n<pci busid=\"0000:01:00.0\"/></cpu></system>",
                3,
                "twice",
            ),
        ] {
            let (at, problem) = TopologyFile::parse(text).unwrap_err();
            assert_eq!(at, line, "{text}: {problem}");
            assert!(problem.contains(hint), "{text}: {problem}");
        }
    }
}
