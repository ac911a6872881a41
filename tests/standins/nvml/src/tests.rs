//! A stand-in that is kinder than the real library is a bug.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, reason = "a test, of its own calls")]

use std::{env, ptr};

use super::*;

#[test]
fn refuses_what_the_library_refuses() {
    // SAFETY: the only test of this process.
    unsafe {
        env::set_var("STANDIN_CUDA_GPUS", "0000:20:00.0=GPU-a,0000:21:00.0=GPU-b");
        env::set_var("STANDIN_NVML_PROCESSES", "0000:21:00.0=7,8,9");
        let mut mode = 0;
        assert_eq!(nvmlDeviceGetComputeMode(0x9000, &raw mut mode), UNINITIALIZED);
        assert_eq!(nvmlShutdown(), UNINITIALIZED);
        assert_eq!(nvmlInit_v2(), 0);

        let mut handle = 0;
        assert_eq!(nvmlDeviceGetHandleByPciBusId_v2(c"0000:22:00.0".as_ptr(), &raw mut handle), NOT_FOUND);
        assert_eq!(nvmlDeviceGetHandleByPciBusId_v2(c"00000000:21:00.0".as_ptr(), &raw mut handle), 0);
        for wrong in [0, handle + 1, handle + 0x100] {
            assert_eq!(nvmlDeviceGetComputeMode(wrong, &raw mut mode), INVALID_ARGUMENT);
        }
        assert_eq!(nvmlDeviceGetComputeMode(handle, ptr::null_mut()), INVALID_ARGUMENT);

        let mut memory = MemoryV2 { version: 0, total: 0, reserved: 0, free: 0, used: 0 };
        assert_eq!(nvmlDeviceGetMemoryInfo_v2(handle, &raw mut memory), ARGUMENT_VERSION_MISMATCH);

        let mut count = 2;
        let mut room = [process(0), process(0), process(0)];
        let infos = room.as_mut_ptr();
        assert_eq!(nvmlDeviceGetComputeRunningProcesses_v3(handle, &raw mut count, infos), INSUFFICIENT_SIZE);
        assert_eq!((count, room[0].pid), (3, 0));
        let infos = room.as_mut_ptr();
        assert_eq!(nvmlDeviceGetComputeRunningProcesses_v3(handle, &raw mut count, infos), 0);
        assert_eq!((count, room[2].pid), (3, 9));

        assert_eq!(nvmlShutdown(), 0);
        assert_eq!(nvmlDeviceGetComputeMode(handle, &raw mut mode), UNINITIALIZED);
    }
}
