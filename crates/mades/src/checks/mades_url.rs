//! Passes arbitrary text from a fuzz target to the parsers of broker URLs and of message ids. What a parser accepts
//! must stay the same when it is written and read again.
use crate::BrokerUrl;
use crate::api::RunMessageId;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(identity) = RunMessageId::read(text) {
        assert_eq!(identity.to_string(), text);
    }
    if let Ok(url) = text.parse::<BrokerUrl>() {
        let again: BrokerUrl = url.to_string().parse().expect("what is shown is a URL");
        assert_eq!((again.address(), again.is_tls()), (url.address(), url.is_tls()));
    }
}
