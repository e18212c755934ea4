//! The fuzz targets by name. A new target needs two entries here. `main` reports missing targets.

#[path = "../../fuzz/fuzz_targets/address.rs"]
pub(crate) mod address;
#[path = "../../fuzz/fuzz_targets/addresses.rs"]
pub(crate) mod addresses;
#[path = "../../fuzz/fuzz_targets/aliases.rs"]
pub(crate) mod aliases;
#[path = "../../fuzz/fuzz_targets/amqp_client.rs"]
pub(crate) mod amqp_client;
#[path = "../../fuzz/fuzz_targets/bounce.rs"]
pub(crate) mod bounce;
#[path = "../../fuzz/fuzz_targets/chrony_tracking.rs"]
pub(crate) mod chrony_tracking;
#[path = "../../fuzz/fuzz_targets/chunk.rs"]
pub(crate) mod chunk;
#[path = "../../fuzz/fuzz_targets/client.rs"]
pub(crate) mod client;
#[path = "../../fuzz/fuzz_targets/command.rs"]
pub(crate) mod command;
#[path = "../../fuzz/fuzz_targets/config.rs"]
pub(crate) mod config;
#[path = "../../fuzz/fuzz_targets/corpus.rs"]
pub(crate) mod corpus;
#[path = "../../fuzz/fuzz_targets/data.rs"]
pub(crate) mod data;
#[path = "../../fuzz/fuzz_targets/dump_name.rs"]
pub(crate) mod dump_name;
#[path = "../../fuzz/fuzz_targets/endpoint.rs"]
pub(crate) mod endpoint;
#[path = "../../fuzz/fuzz_targets/envelope.rs"]
pub(crate) mod envelope;
#[path = "../../fuzz/fuzz_targets/go_flags.rs"]
pub(crate) mod go_flags;
#[path = "../../fuzz/fuzz_targets/go_reply.rs"]
pub(crate) mod go_reply;
#[path = "../../fuzz/fuzz_targets/go_subject.rs"]
pub(crate) mod go_subject;
#[path = "../../fuzz/fuzz_targets/hops.rs"]
pub(crate) mod hops;
#[path = "../../fuzz/fuzz_targets/host_port.rs"]
pub(crate) mod host_port;
#[path = "../../fuzz/fuzz_targets/ledger_read.rs"]
pub(crate) mod ledger_read;
#[path = "../../fuzz/fuzz_targets/lines.rs"]
pub(crate) mod lines;
#[path = "../../fuzz/fuzz_targets/locust_master.rs"]
pub(crate) mod locust_master;
#[path = "../../fuzz/fuzz_targets/mades_letter.rs"]
pub(crate) mod mades_letter;
#[path = "../../fuzz/fuzz_targets/mades_listener.rs"]
pub(crate) mod mades_listener;
#[path = "../../fuzz/fuzz_targets/mades_message.rs"]
pub(crate) mod mades_message;
#[path = "../../fuzz/fuzz_targets/mades_plan.rs"]
pub(crate) mod mades_plan;
#[path = "../../fuzz/fuzz_targets/mades_status.rs"]
pub(crate) mod mades_status;
#[path = "../../fuzz/fuzz_targets/mades_url.rs"]
pub(crate) mod mades_url;
#[path = "../../fuzz/fuzz_targets/mailbox.rs"]
pub(crate) mod mailbox;
#[path = "../../fuzz/fuzz_targets/notice.rs"]
pub(crate) mod notice;
#[path = "../../fuzz/fuzz_targets/page.rs"]
pub(crate) mod page;
#[path = "../../fuzz/fuzz_targets/proxy.rs"]
pub(crate) mod proxy;
#[path = "../../fuzz/fuzz_targets/quantities.rs"]
pub(crate) mod quantities;
#[path = "../../fuzz/fuzz_targets/record.rs"]
pub(crate) mod record;
#[path = "../../fuzz/fuzz_targets/record_union.rs"]
pub(crate) mod record_union;
#[path = "../../fuzz/fuzz_targets/reply.rs"]
pub(crate) mod reply;
#[path = "../../fuzz/fuzz_targets/rules.rs"]
pub(crate) mod rules;
#[path = "../../fuzz/fuzz_targets/sasl.rs"]
pub(crate) mod sasl;
#[path = "../../fuzz/fuzz_targets/scenario.rs"]
pub(crate) mod scenario;
#[path = "../../fuzz/fuzz_targets/segment.rs"]
pub(crate) mod segment;
#[path = "../../fuzz/fuzz_targets/server.rs"]
pub(crate) mod server;
#[path = "../../fuzz/fuzz_targets/server_argument.rs"]
pub(crate) mod server_argument;
#[path = "../../fuzz/fuzz_targets/seven_bit.rs"]
pub(crate) mod seven_bit;
#[path = "../../fuzz/fuzz_targets/source_reply.rs"]
pub(crate) mod source_reply;
#[path = "../../fuzz/fuzz_targets/spread.rs"]
pub(crate) mod spread;
#[path = "../../fuzz/fuzz_targets/stages.rs"]
pub(crate) mod stages;
#[path = "../../fuzz/fuzz_targets/threshold.rs"]
pub(crate) mod threshold;
#[path = "../../fuzz/fuzz_targets/trace.rs"]
pub(crate) mod trace;
#[path = "../../fuzz/fuzz_targets/trace_reader.rs"]
pub(crate) mod trace_reader;
#[path = "../../fuzz/fuzz_targets/users.rs"]
pub(crate) mod users;

pub(crate) type Target = (&'static str, fn(&[u8]));

pub(crate) const ALL: &[Target] = &[
    ("address", address::run),
    ("addresses", addresses::run),
    ("aliases", aliases::run),
    ("amqp_client", amqp_client::run),
    ("bounce", bounce::run),
    ("chrony_tracking", chrony_tracking::run),
    ("chunk", chunk::run),
    ("client", client::run),
    ("command", command::run),
    ("config", config::run),
    ("corpus", corpus::run),
    ("data", data::run),
    ("dump_name", dump_name::run),
    ("endpoint", endpoint::run),
    ("envelope", envelope::run),
    ("go_flags", go_flags::run),
    ("go_reply", go_reply::run),
    ("go_subject", go_subject::run),
    ("hops", hops::run),
    ("host_port", host_port::run),
    ("ledger_read", ledger_read::run),
    ("lines", lines::run),
    ("locust_master", locust_master::run),
    ("mades_letter", mades_letter::run),
    ("mades_listener", mades_listener::run),
    ("mades_message", mades_message::run),
    ("mades_plan", mades_plan::run),
    ("mades_status", mades_status::run),
    ("mades_url", mades_url::run),
    ("mailbox", mailbox::run),
    ("notice", notice::run),
    ("page", page::run),
    ("proxy", proxy::run),
    ("quantities", quantities::run),
    ("record", record::run),
    ("record_union", record_union::run),
    ("reply", reply::run),
    ("rules", rules::run),
    ("sasl", sasl::run),
    ("segment", segment::run),
    ("server", server::run),
    ("server_argument", server_argument::run),
    ("scenario", scenario::run),
    ("seven_bit", seven_bit::run),
    ("source_reply", source_reply::run),
    ("spread", spread::run),
    ("stages", stages::run),
    ("threshold", threshold::run),
    ("trace", trace::run),
    ("trace_reader", trace_reader::run),
    ("users", users::run),
];
