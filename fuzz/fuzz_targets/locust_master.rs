#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_locust::checks::locust_master::check(data));
