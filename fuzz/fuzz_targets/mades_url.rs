//! Any text as the URL of a broker and as a message's id: refused, or what is written back as the same; the guard of frames says the same however octets are cut.
#![no_main]
use libfuzzer_sys::fuzz_target;
use mades::BrokerUrl;
use mades::api::RunMessageId;
use mades::coalescing::FrameValidator;

fuzz_target!(|data: &[u8]| {
    let whole = FrameValidator::default().check(data).is_ok();
    let mut guard = FrameValidator::default();
    assert_eq!(whole, data.chunks(3).all(|piece| guard.check(piece).is_ok()));
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(identity) = RunMessageId::read(text) {
        assert_eq!(identity.to_string(), text);
    }
    if let Ok(url) = text.parse::<BrokerUrl>() {
        let again: BrokerUrl = url.to_string().parse().expect("what is shown is a URL");
        assert_eq!((again.address(), again.is_tls()), (url.address(), url.is_tls()));
    }
});
