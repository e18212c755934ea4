#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_mades::checks::mades_plan::check(data));
