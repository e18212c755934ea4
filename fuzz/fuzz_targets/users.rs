#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_party::checks::users::check(data));
