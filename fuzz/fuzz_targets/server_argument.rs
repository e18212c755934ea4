//! Parses any text as SERVER on the command line. The parser must report a mistake, or return an
//! address that stays the same when it is written and read again.
#![no_main]
#[path = "../../crates/cli/src/options/server.rs"]
#[allow(dead_code)] // a part of it is the command line's
mod server;

use libfuzzer_sys::fuzz_target;
use server::{Scheme, ServerArg};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ServerArg::parse(text) {
        Ok(server) => {
            let address = server.address();
            assert!(address.starts_with("unix:") || address.rsplit_once(':').is_some_and(|(_, port)| port != "0"));
            if server.scheme() == Scheme::Smtp {
                let again = ServerArg::parse(address).expect("an address is a server");
                assert_eq!((again.address(), again.scheme()), (address, Scheme::Smtp));
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
});
