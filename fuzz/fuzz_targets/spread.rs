#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_schedule::checks::spread::check(data));
