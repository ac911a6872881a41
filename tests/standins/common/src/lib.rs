//! What every stand-in library shares: faults on command (`STANDIN_FAULTS`) and the ledger
//! (`STANDIN_LEDGER`). `../README.md` has the grammar.
#![allow(unsafe_code)] // crashing on command is what a part of this crate is for

use std::{
    collections::BTreeMap,
    env,
    io::Write as _,
    sync::Mutex,
    time::{Duration, Instant},
};

/// What a call was told to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Fail with this code, a `CUresult` or an errno.
    Code(i32),
    /// Succeed, and answer something wrong; the call knows what the word means.
    Wrong(String),
}

#[derive(Debug, PartialEq, Eq)]
struct Order<'a> {
    call: &'a str,
    device: Option<&'a str>,
    nth: Option<u32>,
    what: &'a str,
}

/// `call[/device][@n]=what`
fn parse(item: &str) -> Option<Order<'_>> {
    let (target, what) = item.trim().split_once('=')?;
    let (target, nth) = match target.split_once('@') {
        Some((target, nth)) => (target, Some(nth.parse().ok()?)),
        None => (target, None),
    };
    let (call, device) = match target.split_once('/') {
        Some((call, device)) => (call, Some(device)),
        None => (target, None),
    };
    Some(Order { call, device, nth, what })
}

static CALLS: Mutex<BTreeMap<(String, String), u32>> = Mutex::new(BTreeMap::new());

fn count(call: &str, device: &str) -> u32 {
    let mut calls = CALLS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let seen = calls.entry((call.to_owned(), device.to_owned())).or_default();
    *seen += 1;
    *seen
}

/// To be called once at the begin of each call: carries out the faults that the environment orders
/// for it, and says what is to be answered. `device` is the GPU or HCA that it is about, or empty.
pub fn fault(call: &str, device: &str) -> Option<Fault> {
    let orders = env::var("STANDIN_FAULTS").ok()?;
    let (any, of_device) = (count(call, ""), count(call, &format!("/{device}")));
    let mut answer = None;
    for item in orders.split(';').filter(|item| !item.trim().is_empty()) {
        let order = parse(item).unwrap_or_else(|| refuse(item));
        let nth = if order.device.is_some() { of_device } else { any };
        let meant =
            order.call == call && order.device.is_none_or(|d| d == device) && order.nth.is_none_or(|n| n == nth);
        if meant {
            answer = carry_out(order.what, item).or(answer);
        }
    }
    answer
}

fn carry_out(what: &str, item: &str) -> Option<Fault> {
    let (kind, value) = what.split_once(':').unwrap_or((what, ""));
    match kind {
        "code" => return Some(Fault::Code(value.parse().unwrap_or_else(|_| refuse(item)))),
        "wrong" => return Some(Fault::Wrong(value.to_owned())),
        "delay" => take(Duration::from_secs_f64(value.parse::<f64>().unwrap_or_else(|_| refuse(item)) / 1000.0)),
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        "stubborn" => {
            // SAFETY: ignoring a signal is always allowed.
            unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
        "write" => std::fs::write(value, "x").unwrap_or_else(|error| eprintln!("standin: {item}: {error}")),
        "read" => match std::fs::read(value) {
            Ok(_) => ledger(&format!("read {value}")),
            Err(error) => ledger(&format!("can't read {value}: {:?}", error.kind())),
        },
        "exit" => std::process::exit(value.parse().unwrap_or_else(|_| refuse(item))),
        "crash" => {
            let signal = match value {
                "SEGV" => libc::SIGSEGV,
                "BUS" => libc::SIGBUS,
                "ABRT" => libc::SIGABRT,
                _ => refuse(item),
            };
            // SAFETY: the default action ends this process, which is what was asked for.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        _ => refuse(item),
    }
    None
}

/// Takes as long as asked for: a sleep alone is a tenth of a millisecond too long, which is a tenth
/// of a registration.
fn take(time: Duration) {
    let end = Instant::now() + time;
    std::thread::sleep(time.saturating_sub(Duration::from_micros(150)));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// A test that orders what does not exist must not pass.
fn refuse(item: &str) -> ! {
    eprintln!("standin: STANDIN_FAULTS: not an order: {item}");
    std::process::abort()
}

/// One line to the ledger, in one write, so that processes side by side don't mix theirs:
/// `PID +thing` for what was acquired, `PID -thing` for what was released.
pub fn ledger(line: &str) {
    let Ok(file) = env::var("STANDIN_LEDGER") else { return };
    let text = format!("{} {line}\n", std::process::id());
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    if let Err(error) = opened.and_then(|mut f| f.write_all(text.as_bytes())) {
        eprintln!("standin: {file}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_order() {
        let order = |call, device, nth, what| Some(Order { call, device, nth, what });
        assert_eq!(parse("cuInit=code:100"), order("cuInit", None, None, "code:100"));
        assert_eq!(parse(" ibv_reg_mr/mlx5_1@2=hang"), order("ibv_reg_mr", Some("mlx5_1"), Some(2), "hang"));
        assert_eq!(parse("ibv_reg_mr@x=hang"), None);
        assert_eq!(parse("nonsense"), None);
    }
}
