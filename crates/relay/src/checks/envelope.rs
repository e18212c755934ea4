//! Checks the decoders of envelopes and of notes about a message's progress with arbitrary bytes, for fuzz targets and
//! property tests. A decoder must reject the bytes, or return a value whose encoding is the same bytes.
use crate::message::envelope::{MessageEnvelope, MessageProgress, decode_note, encode_note};

pub fn check(data: &[u8]) {
    match MessageEnvelope::decode(data) {
        Ok(envelope) => assert_eq!(envelope.encode().as_deref(), Ok(data)),
        Err(malformed) => assert!(malformed.offset <= data.len()),
    }
    if let Ok(facts) = decode_note(data) {
        assert_eq!(encode_note(&facts).as_deref(), Ok(data));
        let mut progress = MessageProgress::new(3);
        if progress.apply_note(data).is_ok() {
            assert_eq!(progress.recipients.len(), 3);
        }
    }
}
