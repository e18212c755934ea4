#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_load::sink::checks::rules::check(data));
