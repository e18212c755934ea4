//! Reasons why a message must not be converted to 7-bit.

/// Reason why a message must not be converted to 7-bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The body is signed, and the signature would no longer match.
    #[error("its body is signed")]
    Signed,
    /// There are 8-bit bytes within multipart/signed or multipart/encrypted (RFC 1847 §2.1).
    #[error("it has 8-bit bytes in a part that is signed or encrypted")]
    Sealed,
    /// There are 8-bit bytes within `message/partial` or a similar type, for which only 7bit is
    /// allowed (RFC 2045 §6.4).
    #[error("it has 8-bit bytes in a part that may not be encoded")]
    FixedMessage,
    /// There are 8-bit bytes within a part that is declared as already encoded.
    #[error("it has 8-bit bytes in a part declared as encoded")]
    Encoded,
    /// A header contains 8-bit bytes, although only encoded words are allowed there. Or readers may
    /// understand the header in different ways.
    #[error("it has a header that is not ASCII or not well-formed")]
    Header,
    /// There are 8-bit bytes before, between or after the parts.
    #[error("it has 8-bit bytes outside of its parts")]
    Outside,
    /// Some readers would take a line for a delimiter, and others would not.
    #[error("its parts cannot be separated reliably")]
    Delimiter,
    /// There are so many parts that their header fields would be longer than the message.
    #[error("it has too many parts that need encoding")]
    Growth,
    /// The parts are nested more deeply than the limit permits.
    #[error("its parts are nested too deep")]
    Depth,
}
