#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_measurement::checks::threshold::check(data));
