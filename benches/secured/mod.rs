//! The TLS bench: runs the programs of OpenSSL and of mailrun, and compares their results.

pub(crate) mod bench;
pub(crate) mod bulk;
pub(crate) mod handshakes;
pub(crate) mod openssl;
pub(crate) mod row;
pub(crate) mod shaker;
