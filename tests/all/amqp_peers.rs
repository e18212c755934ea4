//! Independent AMQP 1.0 clients (Qpid Proton for Python, Azure's for Go) against the listener of
//! `mailrun mades-endpoint`. The clients compare the messages that come back with the messages that they sent, settle
//! them in each way, and log in. The clients are in `tests/peers`.
//!
//! `make test-slow PART=brokers` installs and runs them.
use crate::party::{Ended, peer, run, skip};
use crate::stand_in_endpoint::Endpoint;

const USER: &str = "ann";
const PASSWORD: &str = "secret-4711";

fn all_came_back(ended: &Ended) {
    assert!(ended.code == Some(0) && ended.out.contains("120 messages came back"), "{ended:?}");
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn qpid_proton_gets_back_what_it_sent() {
    // Use the system's Python, because Debian's package of the module is only for that Python.
    let python = "/usr/bin/python3";
    if std::process::Command::new(python).args(["-c", "import proton"]).status().is_ok_and(|status| status.success()) {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/proton_client.py");
        let address = |endpoint: &Endpoint| endpoint.url.trim_start_matches("amqp://").to_owned();
        let anybody = Endpoint::embedded(&[]);
        all_came_back(&run(python, &[program, &address(&anybody)]));
        let guarded = Endpoint::guarded(USER, PASSWORD);
        all_came_back(&run(python, &[program, &address(&guarded), USER, PASSWORD]));
    } else {
        skip("Qpid Proton", "python3-qpid-proton is not installed");
    }
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn azures_client_gets_back_what_it_sent() {
    let Some(program) = peer("go-amqp-client") else { return };
    let anybody = Endpoint::embedded(&[]);
    all_came_back(&run(&program, &[&anybody.url]));
    let guarded = Endpoint::guarded(USER, PASSWORD);
    all_came_back(&run(&program, &[&guarded.url, USER, PASSWORD]));
}
