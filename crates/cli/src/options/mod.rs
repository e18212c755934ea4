//! Options that several commands have, and the parsers of their values.
pub(crate) mod busy_poll;
pub(crate) mod connection;
pub(crate) mod cpus;
pub(crate) mod dialogue;
pub(crate) mod keep_awake;
pub(crate) mod measurement;
pub(crate) mod party_outputs;
pub(crate) mod rare;
pub(crate) mod server;
pub(crate) mod silent_run;
pub(crate) mod values;
