#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_process::checks::users::check(data));
