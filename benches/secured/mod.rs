//! The programs of a TLS run, OpenSSL's and mailrun's, and the results of their runs.

pub(crate) mod bench;
pub(crate) mod bulk;
pub(crate) mod handshakes;
pub(crate) mod openssl;
pub(crate) mod row;
pub(crate) mod shaker;
