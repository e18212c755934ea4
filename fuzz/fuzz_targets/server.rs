//! Feeds arbitrary bytes to a server session, once as a whole and once cut into blocks. The session must report and
//! send the same in both cases, and must close when its time-out expires. The last octet of the input chooses the
//! limits, the extensions on offer, the cuts, and whether the greeting refuses the client.
#![no_main]
#[path = "../../crates/smtp/tests/all/host.rs"]
mod host;

use libfuzzer_sys::fuzz_target;
use mailrun_smtp::limits::Limits;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::sasl::Mechanisms;
use mailrun_smtp::server::{Offer, Protocol, ServerSettings};
use mailrun_smtp::xclient::Attributes;
use std::sync::Arc;

fn limits(choice: u8) -> Limits {
    let limits = Limits::default();
    match choice % 3 {
        0 => limits,
        1 => Limits { errors: u32::MAX, idle_commands: u32::MAX, junk_commands: u32::MAX, ..limits },
        _ => Limits { text_line_bytes: 12, recipients: 2, message_bytes: 40, errors: 6, idle_commands: 20, ..limits },
    }
}

/// Returns what the server offers and requires. One bit of `choice` adds AUTH and XCLIENT, one adds STARTTLS, and one
/// selects LMTP. If the server offers both AUTH and STARTTLS, it also requires AUTH.
fn offer(choice: u8, limits: &Limits) -> Offer {
    let mut offer = Offer::new(limits);
    if choice & 0x10 != 0 {
        offer.extensions.auth = Mechanisms::ALL;
        offer.extensions.xclient = Attributes::ALL;
    }
    offer.extensions.starttls = choice & 0x20 != 0;
    offer.requires.auth = choice & 0x30 == 0x30;
    offer.protocol = if choice & 0x40 != 0 { Protocol::Lmtp } else { Protocol::Smtp };
    offer
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_last() else { return };
    let limits = limits(choice & 0xf);
    let offer = offer(choice, &limits);
    let identity = Arc::new(ServerSettings::with_offer("test", limits, offer));
    let greeting = (choice & 0x80 != 0).then(|| Reply::new(554, "5.3.2 No service"));
    host::check(greeting.as_ref(), &identity, bytes, choice.into());
});
