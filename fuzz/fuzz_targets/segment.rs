#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_spool::checks::segment::check(data));
