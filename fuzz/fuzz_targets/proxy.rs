#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_smtp::checks::proxy::check(data));
