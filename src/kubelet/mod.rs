//! Tell the kubelet: which devices there are, whether they are healthy, and how to hand them out.

mod allocate;
mod cdi;
mod devices;
mod preference;
mod prestart;
mod registration;
mod server;
mod specs;
#[cfg(test)]
mod tests;

/// The kubelet's contract, generated from `proto/`.
#[allow(clippy::pedantic, missing_docs, unreachable_pub)] // generated code
pub(crate) mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

pub use devices::Device;
pub(crate) use registration::dial;
pub use registration::{Supervised, supervise};
pub use specs::keep_specs;
