//! Parses any text as SERVER on the command line. The parser must report a mistake, or return a
//! server that stays the same when its URL is written and read again.
#![no_main]
#[path = "../../crates/cli/src/options/server.rs"]
#[allow(dead_code)] // only the command line uses the rest of this file
mod server;

use libfuzzer_sys::fuzz_target;
use server::ServerArg;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ServerArg::parse(text) {
        Ok(server) => {
            let address = server.address();
            assert!(address.starts_with("unix:") || address.rsplit_once(':').is_some_and(|(_, port)| port != "0"));
            let again = ServerArg::parse(&server.url()).expect("a URL is a server");
            assert_eq!((again.address(), again.scheme()), (address, server.scheme()));
        }
        Err(why) => assert!(!why.is_empty()),
    }
});
