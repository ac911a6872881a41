//! Tell the kubelet: which devices there are, whether they are healthy, and how to hand them out.

mod allocate;
mod cdi;
mod devices;
mod folder;
mod preference;
mod prestart;
mod retry;
mod server;
mod socket;
mod specs;
mod supervisor;
#[cfg(test)]
mod tests;

/// The kubelet's contract, generated from `proto/`.
#[allow(clippy::pedantic, missing_docs, unreachable_pub)] // generated code
pub(crate) mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

pub use devices::{Device, by_health};
pub use folder::watch_folder;
pub use server::LOOKS;
pub use specs::{keep_specs, say_what_is_left_out};
pub(crate) use supervisor::dial;
pub use supervisor::{Supervised, supervise};
