#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| mailrun_amqp::checks::amqp_client::check(data));
