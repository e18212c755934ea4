#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_dropin::checks::source_reply::check(data));
