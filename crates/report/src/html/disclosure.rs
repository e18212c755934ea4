//! Tells the reader of a page what its numbers do not prove, for example that a single run shows no variation.
use super::escape::isolated;
use super::tables::PagePart;
use crate::capacity::is_local;
use mailrun_measurement::record::{Arrival, Record, Role};
use mailrun_text::numbers::{counted, seconds};

pub(super) fn part(record: &Record) -> PagePart {
    let rows: String = limits(record).iter().map(|text| format!("<li>{}</li>", isolated(text))).collect();
    PagePart { id: "limits", title: "Limits of this run", body: format!("<ul>{rows}</ul>") }
}

fn limits(record: &Record) -> Vec<String> {
    let mut limits = vec![
        "One run shows no variation. Repeat it on an idle machine before you call another number faster or slower."
            .to_owned(),
    ];
    limits.extend(arrival(record));
    limits.extend(network(record));
    limits.extend(ends(record));
    limits.extend(durability(record));
    limits.extend(journal(record));
    if let Some(warm_up) = record.warm_up {
        limits.push(format!(
            "The first {} are in the ledger, but in no rate, latency or duration.",
            seconds(warm_up.length_s)
        ));
    }
    if record.surroundings.is_none() {
        limits.push("Other activity on the host was not observed.".to_owned());
    }
    limits
}

fn arrival(record: &Record) -> Option<String> {
    record.parties.iter().find(|party| party.role == Role::Source)?;
    let text = match record.workload.arrival {
        Arrival::Closed => {
            "Closed loop: a session sends its next message when the last is answered. The load waits for the server, so \
             that a stall shows up in one message per session, and latency at a given rate is not known."
        }
        Arrival::Constant | Arrival::Poisson | Arrival::Market => {
            "Open loop: latency counts from when a message was due, waiting for a session included. Service time counts \
             from when a session began it."
        }
    };
    Some(text.to_owned())
}

fn network(record: &Record) -> Option<String> {
    let target = record.workload.target.as_str();
    let way = if target.starts_with("unix:") { "through a Unix-domain socket" } else { "over the loopback interface" };
    is_local(target).then(|| {
        format!(
            "The load went {way}: a network's delay and loss are not in the figures, and all processes shared this \
             host's processors."
        )
    })
}

fn ends(record: &Record) -> Vec<String> {
    let mut texts = Vec::new();
    if record.ledger.delivered.is_none() {
        texts.push("No receiver was observed: nothing is known about a message after the server's 250.".to_owned());
    }
    if let Some(untimed) = record.ledger.untimed.filter(|number| *number > 0) {
        texts.push(format!("{} came without a usable time, in no latency.", counted(untimed, "arrival")));
    }
    if let Some(negative) = record.ledger.negative.filter(|number| *number > 0) {
        texts.push(format!(
            "{} had a negative delivered time, because clocks differ, and no latency.",
            counted(negative, "arrival")
        ));
    }
    if let Some(overflow) = record.ledger.overflow.filter(|number| *number > 0) {
        texts.push(format!("The ledger had no room for {}: the fate is unknown.", counted(overflow, "unit")));
    }
    texts
}

fn journal(record: &Record) -> Option<String> {
    record.mades.as_ref().filter(|mades| mades.durable)?;
    Some(
        "The settings of the broker's journal were not read: a durable message that it has accepted need not be on its disk. \
         State them beside the figures."
            .to_owned(),
    )
}

fn durability(record: &Record) -> Option<String> {
    let relay = record.parties.iter().find(|party| party.role == Role::Relay)?;
    match relay.durability.as_str() {
        "sync" => None,
        "write" => Some("The relay did not sync its files: a loss of power may lose accepted mail.".to_owned()),
        _ => Some(
            "The relay's messages need not survive its end: compare it only with relays that keep no more.".to_owned(),
        ),
    }
}
