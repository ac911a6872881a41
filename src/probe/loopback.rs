//! The proof by transfer: bytes that cross from host memory to GPU memory and back through one
//! HCA, and are compared.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use super::{
    child::Reporter,
    protocol::{Line, Step},
};
use crate::{
    ffi::{
        cuda::Memory,
        queue::{Direction, Loopback, NotConnected, NotMoved, Place, Route},
        verbs::{Access, Errno, Mr, Pd},
    },
    report::{Code, Loopback as Report, Outcome},
};

/// How loopback can go over an HCA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// By this port, and on Ethernet by this entry of its GID table.
    Route(u8, Option<u8>),
    /// No port is ACTIVE.
    PortDown,
    /// A RoCE port without a GID.
    NoGid,
    /// The HCA has no RC queue pairs (EFA), or can't reach itself (iWARP).
    NoRc,
}

/// What no request is larger than.
const CHUNK: usize = 1 << 20;
/// Where a driver's mapping can break (Xid 31 on kernels with 64 KiB pages).
const BOUNDARY: u64 = 4 << 30;

/// Where to transfer: in the MR over all, or in the one that begins a page later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    second: bool,
    /// From the begin of the allocation.
    offset: u64,
    length: usize,
}

/// All of the memory in chunks; odd addresses; the second MR's begin and end; and each boundary from
/// both sides and across.
fn tiles(size: u64, page: u64) -> Vec<Tile> {
    let mut all = Vec::new();
    let mut add = |second: bool, offset: u64, end: u64| {
        let first = if second { page } else { 0 };
        let (offset, end) = (offset.max(first), end.min(size));
        if offset < end {
            let length = usize::try_from(end - offset).unwrap_or(CHUNK).min(CHUNK);
            all.push(Tile { second, offset, length });
        }
    };
    let chunk = CHUNK as u64;
    for offset in (0..size).step_by(CHUNK) {
        add(false, offset, offset + chunk);
    }
    for odd in [1, size / 2 + 1, size.saturating_sub(4095)] {
        add(false, odd, odd + 4093);
    }
    add(true, page, page + chunk);
    add(true, size.saturating_sub(chunk), size);
    let boundaries = (1..).map(|n| n * BOUNDARY).take_while(|b| *b < size);
    for boundary in boundaries {
        for (from, to) in
            [(boundary - chunk, boundary), (boundary, boundary + chunk), (boundary - chunk / 2, boundary + chunk / 2)]
        {
            add(false, from, to);
            add(true, from, to);
        }
    }
    all
}

/// Registers a part of the memory, by offset and length, with one method.
pub(super) type Register<'p, 'f> = &'f dyn Fn(u64, usize) -> Result<Mr<'p>, Errno>;

/// Runs both directions over one HCA with MRs of one method, and says what came of it.
pub(super) fn run<'p>(
    pd: &'p Pd<'p>,
    way: Way,
    hca: &str,
    memory: &Memory<'_>,
    register: Register<'p, '_>,
    r: &mut Reporter<'_>,
) -> io::Result<Report> {
    let route = match way {
        Way::Route(port, gid_index) => Route { port, gid_index },
        Way::PortDown => return Ok(bare(Outcome::Skipped, None)),
        Way::NoGid => return Ok(bare(Outcome::Skipped, Some(Code::errno(libc::ENODATA)))),
        Way::NoRc => return Ok(bare(Outcome::Unsupported, None)),
    };
    r.say(&Line::Step(Step::Connect, Some(hca.to_owned())))?;
    match Transfer::new(pd, route, memory, register) {
        Ok(mut transfer) => transfer.both(hca, r),
        Err(Halt::Port) => Ok(bare(Outcome::Skipped, None)),
        Err(Halt::Refused(Errno(libc::EOPNOTSUPP | libc::ENOSYS))) => Ok(bare(Outcome::Unsupported, None)),
        Err(Halt::Refused(errno)) => Ok(bare(Outcome::Unknown, Some(errno.into()))),
        Err(Halt::Host(not_moved)) => Ok(bare(Outcome::Unknown, Some(not_moved.code()))),
    }
}

pub(super) fn bare(outcome: Outcome, code: Option<Code>) -> Report {
    Report { outcome, write: outcome, read: outcome, bytes: 0, code }
}

/// Why nothing was transferred: none of it says anything of GPU memory.
enum Halt {
    Port,
    Refused(Errno),
    /// Not even from host memory to host memory.
    Host(NotMoved),
}

impl From<NotConnected> for Halt {
    fn from(error: NotConnected) -> Self {
        match error {
            NotConnected::Port(_) => Self::Port,
            NotConnected::Refused(errno) => Self::Refused(errno),
        }
    }
}

impl From<Errno> for Halt {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// Host memory that the HCA may touch.
struct Buffer<'p> {
    // Before the bytes: deregistered first.
    mr: Mr<'p>,
    bytes: Vec<u8>,
}

impl<'p> Buffer<'p> {
    fn new(pd: &'p Pd<'p>, length: usize) -> Result<Self, Errno> {
        let bytes = vec![0; length];
        let mr = pd.register(bytes.as_ptr().expose_provenance() as u64, length, Access::ReadWrite)?;
        Ok(Self { mr, bytes })
    }

    fn place(&self) -> Place {
        Place { address: self.bytes.as_ptr().expose_provenance() as u64, key: self.mr.facts().lkey }
    }
}

struct Transfer<'p, 'm> {
    pd: &'p Pd<'p>,
    route: Route,
    memory: &'m Memory<'m>,
    tiles: Vec<Tile>,
    // Dropped in this order, the last that was made first.
    second: Mr<'p>,
    whole: Mr<'p>,
    sink: Buffer<'p>,
    source: Buffer<'p>,
}

impl<'p, 'm> Transfer<'p, 'm> {
    /// Registers everything, and sees that the HCA can reach itself at all.
    fn new(pd: &'p Pd<'p>, route: Route, memory: &'m Memory<'m>, register: Register<'p, '_>) -> Result<Self, Halt> {
        let page = rustix::param::page_size();
        let length = CHUNK.min(memory.size());
        let source = Buffer::new(pd, length)?;
        let mut sink = Buffer::new(pd, length)?;
        host_to_host(pd, route, &source, &mut sink)?;
        let whole = register(0, memory.size())?;
        let second = register(page as u64, memory.size() - page)?;
        let tiles = tiles(memory.size() as u64, page as u64);
        Ok(Self { pd, route, memory, tiles, second, whole, sink, source })
    }

    fn both(&mut self, hca: &str, r: &mut Reporter<'_>) -> io::Result<Report> {
        let mut result = bare(Outcome::Verified, None);
        // A queue pair is of no use after an error: each direction has its own.
        for direction in [Direction::Write, Direction::Read] {
            let (outcome, code) = self.one(direction, hca, r, &mut result.bytes)?;
            match direction {
                Direction::Write => result.write = outcome,
                Direction::Read => result.read = outcome,
            }
            result.code = result.code.or(code);
        }
        result.outcome = match [result.write, result.read] {
            both if both.contains(&Outcome::Failed) => Outcome::Failed,
            [Outcome::Verified, Outcome::Verified] => Outcome::Verified,
            _ => Outcome::Unknown,
        };
        Ok(result)
    }

    fn one(
        &mut self,
        direction: Direction,
        hca: &str,
        r: &mut Reporter<'_>,
        moved: &mut u64,
    ) -> io::Result<(Outcome, Option<Code>)> {
        let pairs = match Loopback::connect(self.pd, self.route) {
            Ok(pairs) => pairs,
            Err(NotConnected::Port(_)) => return Ok((Outcome::Skipped, None)),
            Err(NotConnected::Refused(errno)) => return Ok((Outcome::Unknown, Some(errno.into()))),
        };
        for tile in self.tiles.clone() {
            let step = if direction == Direction::Write { Step::Write } else { Step::Read };
            r.say(&Line::Step(step, Some(hca.to_owned())))?;
            match self.tile(&pairs, direction, tile)? {
                Ok(()) => *moved += tile.length as u64,
                Err((outcome, code)) => return Ok((outcome, Some(code))),
            }
        }
        Ok((Outcome::Verified, None))
    }

    /// One transfer: the destination begins as the complement of what must arrive.
    fn tile(
        &mut self,
        pairs: &Loopback<'_>,
        direction: Direction,
        tile: Tile,
    ) -> io::Result<Result<(), (Outcome, Code)>> {
        let pattern = &mut self.source.bytes[..tile.length];
        randomise(pattern)?;
        let complement: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
        let prepared = match direction {
            Direction::Write => self.memory.copy_in(tile.offset, &complement),
            Direction::Read => {
                self.sink.bytes[..tile.length].copy_from_slice(&complement);
                self.memory.copy_in(tile.offset, &self.source.bytes[..tile.length])
            }
        };
        if let Err(error) = prepared {
            return Ok(Err((Outcome::Unknown, error.into())));
        }
        let local = if direction == Direction::Write { self.source.place() } else { self.sink.place() };
        let mr = if tile.second { &self.second } else { &self.whole };
        let remote = Place { address: self.memory.address() + tile.offset, key: mr.facts().rkey };
        let length = u32::try_from(tile.length).unwrap_or(u32::MAX);
        match pairs.transfer(direction, local, remote, length) {
            Ok(()) => {}
            Err(silent @ NotMoved::Silent) => return Ok(Err((Outcome::Unknown, silent.code()))),
            Err(error) => return Ok(Err((Outcome::Failed, error.code()))),
        }
        if direction == Direction::Write {
            let arrived = &mut self.sink.bytes[..tile.length];
            if let Err(error) = self.memory.copy_out(tile.offset, arrived) {
                return Ok(Err((Outcome::Unknown, error.into())));
            }
        }
        Ok(match differs(&self.source.bytes[..tile.length], &self.sink.bytes[..tile.length]) {
            None => Ok(()),
            Some(at) => Err((Outcome::Failed, Code::differs_at(tile.offset + at))),
        })
    }
}

/// The control of the proof: what fails here too says nothing of GPU memory.
fn host_to_host(pd: &Pd<'_>, route: Route, source: &Buffer<'_>, sink: &mut Buffer<'_>) -> Result<(), Halt> {
    let pairs = Loopback::connect(pd, route)?;
    for direction in [Direction::Write, Direction::Read] {
        let length = u32::try_from(source.bytes.len().min(4096)).unwrap_or(4096);
        let remote = Place { key: sink.mr.facts().rkey, ..sink.place() };
        pairs.transfer(direction, source.place(), remote, length).map_err(Halt::Host)?;
    }
    Ok(())
}

/// Fresh bytes: the kernel's seed, stretched.
fn randomise(bytes: &mut [u8]) -> io::Result<()> {
    let mut seed = [0; 8];
    getrandom(&mut seed, GetRandomFlags::empty())?;
    let mut state = u64::from_ne_bytes(seed) | 1;
    for word in bytes.chunks_mut(8) {
        // xorshift64 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes()[..word.len()]);
    }
    Ok(())
}

fn differs(wanted: &[u8], have: &[u8]) -> Option<u64> {
    wanted.iter().zip(have).position(|(a, b)| a != b).map(|at| at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(size: u64, page: u64) {
        let all = tiles(size, page);
        let mut end = 0;
        for tile in all.iter().filter(|t| !t.second).take(usize::try_from(size.div_ceil(CHUNK as u64)).unwrap()) {
            assert_eq!(tile.offset, end, "a gap");
            end += tile.length as u64;
        }
        assert_eq!(end, size, "all of it");
        for tile in &all {
            assert!(tile.length <= CHUNK && tile.length > 0, "{tile:?}");
            assert!(tile.offset + tile.length as u64 <= size, "{tile:?}");
            assert!(!tile.second || tile.offset >= page, "{tile:?}");
        }
        assert!(all.iter().any(|t| t.offset % 2 == 1), "an odd address");
        assert!(all.iter().any(|t| t.second && t.offset == page), "the second MR's begin");
        assert!(all.iter().any(|t| t.second && t.offset + t.length as u64 == size), "the second MR's end");
    }

    #[test]
    fn every_byte_and_every_odd_corner_is_transferred() {
        covered(64 << 20, 4096);
        covered(1 << 16, 4096);
        covered((3 << 20) + (1 << 16), 1 << 16);
    }

    #[test]
    fn boundaries_are_crossed_from_both_sides_by_both_regions() {
        let all = tiles(9 << 30, 1 << 16);
        for boundary in [BOUNDARY, 2 * BOUNDARY] {
            for second in [false, true] {
                let of = |f: &dyn Fn(&Tile) -> bool| all.iter().any(|t| t.second == second && f(t));
                assert!(of(&|t| t.offset + t.length as u64 == boundary), "below");
                assert!(of(&|t| t.offset == boundary), "above");
                assert!(of(&|t| t.offset < boundary && t.offset + t.length as u64 > boundary), "across");
            }
        }
    }

    #[test]
    fn one_byte_is_a_difference() {
        let mut bytes = vec![0; 4096];
        randomise(&mut bytes).unwrap();
        let mut other = bytes.clone();
        assert_eq!(differs(&bytes, &other), None);
        other[4095] ^= 1;
        assert_eq!(differs(&bytes, &other), Some(4095));
        assert!(bytes.chunks(8).collect::<std::collections::BTreeSet<_>>().len() > 500, "no repetition");
    }
}
