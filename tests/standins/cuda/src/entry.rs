//! What every call does first: the fault it is told to have, then the check that `cuInit` came before.

use std::{env, io::Write as _, time::Duration};

/// Declares exported calls. `[bare]` ones work before `cuInit`.
macro_rules! entry {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) $([$bare:ident])? |$state:ident| $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            if let Some(code) = $crate::entry::fault(stringify!($name)) {
                return code;
            }
            let mut guard = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let $state = &mut *guard;
            let bare = false $(|| stringify!($bare) == "bare")?;
            if !bare && $state.config.is_none() {
                return NOT_INITIALIZED;
            }
            #[allow(unused_unsafe)]
            let call = || -> Result { $body };
            #[allow(unused_mut)]
            let mut call = call;
            call().err().unwrap_or(0)
        }
    )*};
}
pub(crate) use entry;

/// Carries out the fault that the environment asks for; a code ends the call with it.
pub(crate) fn fault(call: &str) -> Option<u32> {
    let set = |what: &str| env::var(format!("STANDIN_CUDA_{what}_{call}")).ok();
    if let Some(ms) = set("DELAY").and_then(|v| v.parse().ok()) {
        std::thread::sleep(Duration::from_millis(ms));
    }
    if set("HANG").is_some_and(|v| v == "1") {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    let signal = match set("CRASH").as_deref() {
        Some("SEGV") => Some(libc::SIGSEGV),
        Some("BUS") => Some(libc::SIGBUS),
        _ => None,
    };
    if let Some(signal) = signal {
        // SAFETY: the default action ends this process, which is what was asked for.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    set("RESULT")?.parse().ok()
}

/// One line to the ledger, in one write, so that processes side by side don't mix theirs.
pub(crate) fn ledger(line: &str) {
    let Ok(file) = env::var("STANDIN_CUDA_LEDGER") else { return };
    let text = format!("{} {line}\n", std::process::id());
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    if let Err(error) = opened.and_then(|mut f| f.write_all(text.as_bytes())) {
        eprintln!("standin-cuda: {file}: {error}");
    }
}
