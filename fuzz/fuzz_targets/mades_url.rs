//! Parses any text as the URL of a broker, as a message id, and as a load shape such as `quarter-hour:3x40`. An
//! accepted value must stay the same when it is written and read again.
#![no_main]
use mailrun_mades_bench::MarketShape;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    mailrun_mades::checks::mades_url::check(data);
    if let Ok(shape) = String::from_utf8_lossy(data).parse::<MarketShape>() {
        assert_eq!(shape.to_string().parse(), Ok(shape));
    }
});
