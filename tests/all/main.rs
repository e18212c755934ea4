//! Tests of the program from outside, as users run it: with real processes, real sockets and real
//! peers, including hostile ones.
//!
//! | file | what it plays |
//! |---|---|
//! | `party` | the program's own processes: sink, source, bench |
//! | `wire` | a client that sends any bytes at all |
//! | `stand_in` | a server that is honest but for one fault |
//! | `recorder` | a server that records every octet and answers by a script |
//! | `smtp_pair` | Postfix's smtp-sink and ours side by side |
//! | `postfix` | a private Postfix: own configuration, own queue, own port |
//! | `exim` | a private Exim, in a Debian of its own |
//! | `mailbox_servers` | private servers of mailboxes: Dovecot and Cyrus |
//!
//! No test sleeps in the hope that something happens in time: `party::wait_until` looks until it
//! has happened, or fails. Every test has its own ports and directories, so that tests can run in
//! parallel.
#![allow(clippy::unwrap_used)] // The lint exempts `#[test]` functions but not the functions that they call

mod action;
mod amqp_peers;
mod architecture;
mod audit;
mod audit_planted;
mod bench;
mod bench_modes;
mod book;
mod capacity;
mod certificates;
mod ci_gate;
mod circles;
mod compare;
mod compare_live;
mod completions;
mod compose;
mod defects;
#[path = "../dialogs/dialog.rs"]
mod dialog;
mod dialogs;
mod dialogue;
mod disk;
mod docs;
mod docs_reference;
mod docs_script;
mod embedding;
mod embedding_examples;
mod embedding_messages;
mod endings;
mod exim;
mod go_mades_bench;
mod go_smtp_source;
mod grafana;
mod honesty;
mod hostile_clients;
mod hostile_servers;
mod listen;
mod live_line;
mod locust;
mod locust_masters;
mod mades;
mod mades_brokers;
mod mades_compare;
mod mades_help;
mod mailbox_servers;
mod mailboxes;
mod manual;
mod no_panics;
mod own_certificate;
mod party;
mod peers;
mod postfix;
mod probe;
mod probe_restarts;
mod profiles;
mod proxied;
mod recipes;
mod record_fields;
mod recorder;
mod relay;
mod relay_bench;
mod relay_blocked;
mod relay_control;
mod relay_damage;
mod relay_delivery;
mod relay_faults;
mod relay_help;
mod relay_host;
mod relay_hostile;
mod relay_limits;
mod relay_notices;
mod report_screen;
mod rows;
mod ruler;
mod secured;
mod secured_hostile;
mod secured_peers;
mod send;
mod service;
mod shards;
mod sink_rules;
mod skipped;
mod smtp_pair;
mod smtp_sink;
mod smtp_sink_own;
mod smtp_source;
mod source_check;
mod source_text;
mod spool_offline;
mod stand_in;
mod stand_in_endpoint;
mod stored_runs;
mod tables;
mod terminal;
mod thresholds;
mod tls;
mod traced;
mod verdict;
mod wire;
mod workflows;
mod workloads;
mod wrong_inputs;
