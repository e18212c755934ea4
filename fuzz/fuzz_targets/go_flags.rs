#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_compat::checks::go_flags::check(data));
