//! Any text as an address and a port: what is wrong with it, or parts that make the same again.
#![no_main]
use libfuzzer_sys::fuzz_target;
use mailrun_net::Endpoint;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Endpoint::host_and_port(text) {
        Ok((host, port)) => {
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            let again = format!("{host}:{port}");
            assert_eq!(Endpoint::host_and_port(&again), Endpoint::host_and_port(text));
        }
        Err(why) => assert!(!why.is_empty() && !why.contains('\n')),
    }
});
