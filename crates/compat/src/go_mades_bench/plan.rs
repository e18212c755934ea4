//! Translates go-mades-bench's flags into the options of mailrun's engine.
use super::options::{BrokerFlags, Options};
use crate::host_port::PublicTargets;
use crate::stderr::FatalError;
use mailrun_mades::api::EndpointQueueNames;
use mailrun_mades::{BrokerSecurity, BrokerUrl, Password, TlsSetup, Verification};
use mailrun_mades_bench::{Leftovers, MadesMode, MadesOptions, MadesPreflight, PayloadKind, RunObserver};
use mailrun_measurement::record::Arrival;
use mailrun_process::live::LiveMode;
use mailrun_schedule::distribution::Distribution;
use std::net::ToSocketAddrs;
use std::rc::Rc;
use std::time::Duration;

const SENDER_APPLICATION: &str = "Go-MADES-Bench";
/// AMQP priority of all messages. go-mades-bench sets no priority, so its AMQP library sends 0, the lowest.
const PRIORITY: u8 = 0;
/// Number of the first message. go-mades-bench increments its counter before it sends, so it never sends number 0.
const FIRST_NUMBER: u64 = 1;
/// Link credit of AMQP: number of messages that a broker may send from each queue before it needs new credit.
const CREDIT: u32 = 1_000;
/// Maximum number of messages in transit. It bounds memory, because a table holds each message in transit.
const MAX_IN_TRANSIT: u64 = 1_000_000;
/// Time-out of a single message: one year, which is practically forever, because go-mades-bench has no such time-out.
/// Instead, the whole run ends if no message arrives for as long as `--timeout` says.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Time for which the bench still reads late messages after the last expected one has arrived. go-mades-bench waits
/// for the same time.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Converts the flags of go-mades-bench into options for mailrun's own MADES bench. Fails if an address is invalid, or
/// if it is public and public addresses are not allowed.
pub(super) fn plan(
    options: &Options,
    mode: MadesMode,
    public: PublicTargets,
    observer: Rc<dyn RunObserver>,
) -> Result<MadesOptions, FatalError> {
    let uses_outbox = mode != MadesMode::Amqp;
    let outbox = broker("outbox", if uses_outbox { &options.outbox } else { &options.inbox }, public)?;
    // In tracing mode, the bench reads no inbox. Ignore the flags for the inbox, and use the outbox as a placeholder.
    let inbox = if mode == MadesMode::Tracing { outbox.clone() } else { broker("inbox", &options.inbox, public)? };
    let max_in_transit = in_transit(options);
    Ok(MadesOptions {
        name: "go-mades-bench".to_owned(),
        mode,
        outbox,
        inbox,
        queues: EndpointQueueNames {
            outbox: options.outbox.queue.clone(),
            reply: options.outbox_reply.clone(),
            inbox: options.inbox.queue.clone(),
            send_event: Some(options.send_event.clone()),
        },
        messages: Some(options.messages).filter(|messages| *messages > 0),
        duration: None,
        sizes: Distribution::constant(options.payload_bytes),
        payload: PayloadKind::Bare,
        receiver: options.receiver.clone(),
        message_type: options.message_type.clone(),
        sender_application: SENDER_APPLICATION.to_owned(),
        priority: Some(PRIORITY),
        first_number: FIRST_NUMBER,
        is_durable: options.is_durable,
        max_in_transit: usize::try_from(max_in_transit).unwrap_or(usize::MAX),
        window: u32::try_from(options.goroutines.min(max_in_transit)).unwrap_or(u32::MAX),
        credit: CREDIT,
        offer: None,
        arrival: Arrival::Closed,
        market: None,
        seed: 1,
        timeout: MESSAGE_TIMEOUT,
        linger: LINGER_TIMEOUT,
        reconnect: options.progress_timeout,
        leftovers: Leftovers::Kept,
        preflight: MadesPreflight::Off,
        acknowledgement: None,
        run: None,
        out: None,
        live: LiveMode::Off,
        http: None,
        observer: Some(observer),
        command: Vec::new(),
        thresholds: Vec::new(),
        abort_on: Vec::new(),
    })
}

/// Returns how many messages may be in transit: the value of `-max-in-transit` (0 means no limit), but at most the
/// number of messages in the run, and at most `MAX_IN_TRANSIT`.
fn in_transit(options: &Options) -> u64 {
    let all = if options.messages == 0 { MAX_IN_TRANSIT } else { options.messages.min(MAX_IN_TRANSIT) };
    if options.max_in_transit == 0 { all } else { options.max_in_transit.min(all) }
}

fn broker(side: &str, typed: &BrokerFlags, public: PublicTargets) -> Result<mailrun_mades::Broker, FatalError> {
    let unable = |text: String| FatalError(format!("Unable to create {side} AMQP client:Dialing AMQP server: {text}"));
    let url: BrokerUrl = typed.address.parse().map_err(|error: mailrun_mades::UrlError| unable(error.to_string()))?;
    let addresses = (url.host(), url.port()).to_socket_addrs();
    for address in addresses.map_err(|error| unable(format!("{}: {error}", url.host())))? {
        public.check(address.ip(), url.host()).map_err(unable)?;
    }
    // A login in the address takes precedence over the login in the flags.
    let url = if url.user().is_some() { url } else { url.with_login(&typed.user, Password::new(&*typed.password)) };
    Ok(mailrun_mades::Broker {
        security: BrokerSecurity {
            // Do not verify certificates, because go-mades-bench does not verify them either. It has no flag that says
            // whom to trust.
            tls: TlsSetup { verification: Verification::Off, ..TlsSetup::default() },
            ..BrokerSecurity::default()
        },
        is_address_allowed: if public == PublicTargets::Allowed {
            |_| true
        } else {
            mailrun_process::local_address::is_local_address
        },
        ..mailrun_mades::Broker::new(url, format!("go-mades-bench-{side}-{}", std::process::id()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::observer::BenchObserver;
    use super::*;

    fn planned(line: &str) -> Result<MadesOptions, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let options = Options::parse(&words).unwrap();
        let mode = super::super::stages::mode(&options.mode).unwrap();
        let observer = Rc::new(BenchObserver::new(&options, mode));
        plan(&options, mode, PublicTargets::Refused, observer).map_err(|fatal| fatal.to_string())
    }

    #[test]
    fn the_defaults_are_the_originals() {
        let plan = planned("-goroutines 2").unwrap();
        assert_eq!((plan.max_in_transit, plan.window, plan.credit), (1000, 2, 1000));
        assert_eq!((plan.messages, plan.sizes.as_constant(), plan.is_durable), (Some(10_000), Some(1_000_000), true));
        assert_eq!(plan.queues, EndpointQueueNames::ecp("ecp.endpoint"));
        assert_eq!((plan.outbox.url.user(), plan.outbox.url.port()), (Some("endpoint"), 5672));
        assert_eq!((plan.priority, plan.first_number), (Some(0), 1));
        assert_eq!((plan.leftovers, plan.sender_application.as_str()), (Leftovers::Kept, "Go-MADES-Bench"));
    }

    #[test]
    fn the_window_is_never_larger_than_there_are_messages() {
        for (line, max_in_transit, window) in [
            ("-n 5 -goroutines 9", 5, 5),
            ("-n 5 -max-in-transit 3 -goroutines 9", 3, 3),
            ("-n 5 -max-in-transit 0 -goroutines 1", 5, 1),
            ("-n 0 -goroutines 4", 1000, 4),
            ("-n 18446744073709551615 -max-in-transit 0 -goroutines 18446744073709551615", 1_000_000, 1_000_000),
        ] {
            let plan = planned(line).unwrap();
            assert_eq!((plan.max_in_transit, plan.window), (max_in_transit, window), "{line}");
        }
        assert_eq!(planned("-n 0").unwrap().messages, None);
    }

    #[test]
    fn only_the_brokers_of_the_mode_are_looked_at() {
        let bad_outbox = "-outbox-addr foo://127.0.0.1";
        let bad_inbox = "-inbox-addr foo://127.0.0.1";
        assert!(planned(&format!("-mode amqp {bad_outbox}")).is_ok());
        assert!(planned(&format!("-mode tracing {bad_inbox}")).is_ok());
        for mode in ["endpoint", "toolbox"] {
            for (bad, side) in [(bad_outbox, "outbox"), (bad_inbox, "inbox")] {
                let error = planned(&format!("-mode {mode} {bad}")).unwrap_err();
                assert!(
                    error.starts_with(&format!("Unable to create {side} AMQP client:Dialing AMQP server: ")),
                    "{error}"
                );
            }
        }
        assert!(planned("-outbox-addr amqp://8.8.8.8").unwrap_err().contains("public address"));
    }

    #[test]
    fn a_user_in_the_address_comes_first() {
        let plan = planned("-outbox-addr amqp://a:b@127.0.0.1 -outbox-user c -inbox-user d").unwrap();
        assert_eq!((plan.outbox.url.user(), plan.inbox.url.user()), (Some("a"), Some("d")));
    }
}
