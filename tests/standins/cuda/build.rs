//! The library's own name, as NVIDIA's has it: `ldconfig` makes the link `libcuda.so.1` from it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
