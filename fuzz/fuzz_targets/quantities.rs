#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_text::checks::quantities::check(data));
