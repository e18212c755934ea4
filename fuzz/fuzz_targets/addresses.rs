#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_load::source::checks::addresses::check(data));
