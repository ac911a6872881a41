//! What every call does first: the fault it is told to have, then the check that `cuInit` came before.

/// Declares exported calls. `[bare]` ones work before `cuInit`.
macro_rules! entry {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) $([$bare:ident])? |$state:ident| $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            let wrong = match $crate::entry::fault(stringify!($name)) {
                Some(standin::Fault::Code(code)) => return code as u32,
                Some(standin::Fault::Wrong(word)) => Some(word),
                None => None,
            };
            let mut guard = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let $state = &mut *guard;
            $state.wrong = wrong;
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

/// What the call was told to answer; the GPU is the first that this process may see.
pub(crate) fn fault(call: &str) -> Option<standin::Fault> {
    let gpus = crate::state::Config::from_environment().gpus;
    standin::fault(call, gpus.first().map_or("", |gpu| gpu.pci.as_str()))
}
