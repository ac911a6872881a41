//! The stand-in is as strict as the driver: wrong order, wrong pointers, wrong handles are refused.

use std::{ffi::CStr, ptr};

use crate::*;

const A: &str = "GPU-00000000-1111-2222-3333-444444444444";
const B: &str = "GPU-55555555-1111-2222-3333-444444444444";

fn config(set: &[(&str, &str)]) -> Config {
    Config::read(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
}

fn seen(list: Option<&str>) -> Vec<String> {
    let gpus = format!("0000:13:00.0={A},0000:83:00.0={B}");
    let mut set = vec![("STANDIN_CUDA_GPUS", gpus.as_str())];
    set.extend(list.map(|l| ("CUDA_VISIBLE_DEVICES", l)));
    config(&set).gpus.into_iter().map(|g| g.pci).collect()
}

#[test]
fn visible_devices_by_uuid_index_and_nothing() {
    assert_eq!(seen(None), ["0000:13:00.0", "0000:83:00.0"]);
    assert_eq!(seen(Some(B)), ["0000:83:00.0"]);
    assert_eq!(seen(Some("1,0")), ["0000:83:00.0", "0000:13:00.0"]);
    assert_eq!(seen(Some("0,nonsense,1")), ["0000:13:00.0"], "ends at the first that names none");
    assert!(seen(Some("")).is_empty());
    assert!(seen(Some("GPU-99999999")).is_empty());
}

/// One test, because the driver's state is the process's.
#[test]
fn order_and_pointers() {
    // SAFETY: the other test reads no variable; every pointer given is a local's or null.
    unsafe {
        let (mut number, mut context, mut pointer) = (0, 0_usize, 0_u64);
        assert_eq!(cuDeviceGetCount(&raw mut number), 3);
        assert_eq!(cuMemAlloc_v2(&raw mut pointer, 4096), 3);
        assert_eq!(cuInit(0), 100, "no GPU");
        std::env::set_var("STANDIN_CUDA_GPUS", format!("0000:13:00.0={A}"));
        assert_eq!(cuInit(1), 1);
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuDeviceGetCount(ptr::null_mut()), 1);
        assert_eq!((cuDeviceGetCount(&raw mut number), number), (0, 1));
        assert_eq!(cuDeviceGet(&raw mut number, 1), 101);
        assert_eq!(cuDeviceGetAttribute(&raw mut number, 9999, 0), 1);
        let mut text = [0; 13];
        assert_eq!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 13, 0), 0);
        assert_eq!(CStr::from_ptr(text.as_ptr()).to_str(), Ok("0000:13:00.0"));

        assert_eq!(cuMemAlloc_v2(&raw mut pointer, 4096), 201, "no context");
        assert_eq!(cuCtxSetCurrent(0xdead), 201);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 201, "not retained");
        assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, 0), 0);
        assert_eq!(cuDevicePrimaryCtxSetFlags_v2(0, 4), 708);
        assert_eq!(cuMemAlloc_v2(&raw mut pointer, 4096), 201, "retained, not current");
        assert_eq!(cuCtxSetCurrent(context), 0);
        assert_eq!(cuMemAlloc_v2(&raw mut pointer, 0), 1);
        assert_eq!(cuMemAlloc_v2(&raw mut pointer, 65536), 0);

        let on = 1_u32;
        assert_eq!(cuPointerSetAttribute((&raw const on).cast(), 6, (&raw const on) as u64), 1, "host memory");
        assert_eq!(cuPointerSetAttribute((&raw const on).cast(), 6, pointer), 0);
        assert_eq!(cuMemsetD32_v2(pointer, 0x55aa_55aa, 65536 / 4), 0);
        assert_eq!(cuMemsetD32_v2(pointer, 0, 65536 / 4 + 1), 1, "past the end");
        let mut read = 0_u32;
        assert_eq!(cuMemcpyDtoH_v2((&raw mut read).cast(), pointer + 65532, 4), 0);
        assert_eq!(read, 0x55aa_55aa);
        assert_eq!(cuMemcpyDtoH_v2((&raw mut read).cast(), pointer + 65533, 4), 1);
        assert_eq!(cuMemGetHandleForAddressRange((&raw mut number).cast(), pointer + 1, 4096, 1, 0), 1, "unaligned");
        assert_eq!(cuMemGetHandleForAddressRange((&raw mut number).cast(), pointer, 4096, 1, 0), 801);
        assert_eq!(cuMemFree_v2(pointer + 4096), 1);
        assert_eq!(cuMemFree_v2(pointer), 0);
        assert_eq!(cuMemFree_v2(pointer), 1, "twice");

        std::env::set_var("STANDIN_FAULTS", "cuMemAlloc_v2=code:2");
        assert_eq!(cuMemAlloc_v2(&raw mut pointer, 4096), 2);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 0);
        assert_eq!(cuCtxSynchronize(), 709, "destroyed");
        let mut name = ptr::null();
        assert_eq!(cuGetErrorName(100, &raw mut name), 0);
        assert_eq!(CStr::from_ptr(name).to_str(), Ok("CUDA_ERROR_NO_DEVICE"));
        assert_eq!((cuGetErrorName(12345, &raw mut name), name.is_null()), (1, true));
    }
}
