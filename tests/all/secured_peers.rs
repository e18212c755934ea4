//! Clients and servers that others wrote, over TLS, AUTH and LMTP, with the counts compared at both ends.
