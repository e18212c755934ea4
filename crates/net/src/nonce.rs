//! Unpredictable bytes for CRAM-MD5 and SCRAM-SHA-256.
use mailrun_smtp::sasl::{NONCE_BYTES, Nonce};

/// Creates a nonce from the kernel's random numbers.
pub fn nonce() -> Nonce {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).expect("the kernel has random octets once it has booted");
    nonce
}
