#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_mades_simulator::checks::mades_plan::check(data));
