//! Feeds arbitrary replies to a client session, once as a whole and once cut into blocks. The session must send the
//! same bytes in both cases, and must always know which reply it waits for. The last octet of the input chooses the
//! session's options and the cuts. In a second check, the input decides what a simulated server replies, and which of
//! its replies are dropped or changed on the way.
#![no_main]
#[path = "../../crates/smtp/tests/all/adversary.rs"]
mod adversary;
#[path = "../../crates/smtp/tests/all/caller.rs"]
mod caller;

use libfuzzer_sys::fuzz_target;
use mailrun_smtp::client::{BurstSize, Chunking, Notifications, Options, PipelineMode, Protocol, StartTls};
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_smtp::xclient::{Attribute, XclientRequest};
use std::sync::Arc;

fn options(choice: u8) -> Options {
    let is = |bit: u8| choice & (1 << bit) != 0;
    let introduction = XclientRequest::default().with_attribute(Attribute::Name, "a").expect("a good name");
    let mechanism = Mechanism::ALL[usize::from(choice >> 5) % 5];
    let credentials = Credentials::new("user", "pencil").by(Mechanisms::NONE.with(mechanism));
    Options {
        protocol: if is(1) { Protocol::Lmtp } else { Protocol::Smtp },
        pipelining: if is(0) { PipelineMode::Group } else { PipelineMode::Off },
        tls: if is(3) { StartTls::IfOffered } else { StartTls::Never },
        credentials: is(4).then_some(credentials),
        chunking: if is(2) { Chunking::IfOffered } else { Chunking::Never },
        xclient: (choice > 0xf0).then_some(introduction),
        notifications: if choice.is_multiple_of(7) { Notifications::Asked } else { Notifications::Unasked },
        burst: BurstSize::of(u32::from(choice % 5)),
        quit_timeout: None,
        refuses_own_name: false,
        greeting_timeout: None,
        message_timeout: None,
        stop_after: None,
    }
}

fuzz_target!(|data: &[u8]| {
    adversary::check(data);
    let Some((&choice, bytes)) = data.split_last() else { return };
    caller::check(bytes, &Arc::new(options(choice)), choice.into());
});
