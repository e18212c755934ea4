#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_dropin::checks::host_port::check(data));
