//! Reasons why a message is not converted to 7-bit.

/// Reasons why a message is not converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// A signature would not match any more.
    #[error("its body is signed")]
    Signed,
    /// 8-bit bytes within multipart/signed or multipart/encrypted (RFC 1847 §2.1).
    #[error("it has 8-bit bytes in a part that is signed or encrypted")]
    Sealed,
    /// Within `message/partial` and the like (RFC 2045 §6.4).
    #[error("it has 8-bit bytes in a part that may not be encoded")]
    FixedMessage,
    /// Within a part whose label says that it is encoded already.
    #[error("it has 8-bit bytes in a part declared as encoded")]
    Encoded,
    /// In a header, where only encoded words are allowed; or a header that readers may read in several ways.
    #[error("it has a header that is not ASCII or not well-formed")]
    Header,
    /// Before, between or behind parts.
    #[error("it has 8-bit bytes outside of its parts")]
    Outside,
    /// A line that some readers take for a delimiter.
    #[error("its parts cannot be separated reliably")]
    Delimiter,
    /// So many parts that their labels would be longer than the message.
    #[error("it has too many parts that need encoding")]
    Growth,
    /// Parts nested too deeply.
    #[error("its parts are nested too deep")]
    Depth,
}
