//! Removes host names, addresses, paths and user names from command lines and sentences, before a run is published.
use mailrun_measurement::stage::Stage;
use std::net::{IpAddr, SocketAddr};

pub(super) const LEFT_OUT: &str = "…";

/// Options whose value is always removed, because it names people, hosts, queues or files, or because it is free text.
const PRIVATE_OPTIONS: [&str; 51] = [
    "--against",
    "--auth-users",
    "--cacert",
    "--config",
    "--control",
    "--corpus",
    "--domain",
    "--dsn-envid",
    "--dump-dir",
    "--dump-file",
    "--ehlo",
    "--file",
    "--export",
    "--from",
    "--header",
    "--hlog",
    "--hop",
    "--hostname",
    "--inbox",
    "--inbox-password-file",
    "--inbox-user",
    "--label",
    "--ledger",
    "--log-messages",
    "--maildir",
    "--name",
    "--out",
    "--outbox",
    "--outbox-reply",
    "--password",
    "--password-file",
    "--plan",
    "--prefix",
    "--rcpt",
    "--receiver",
    "--reject-message",
    "--rules",
    "--send-event",
    "--spool",
    "--subject",
    "--summary",
    "--tls-cert",
    "--tls-client-ca",
    "--tls-key",
    "--tls-name",
    "--tls-write-cert",
    "--to",
    "--user",
    "--xclient",
    "-o",
    "-u",
];
/// Maximum number of letters in a unit, such as `KiB` or `min`. More letters after a number are not a unit.
const MAX_UNIT_LETTERS: usize = 3;

/// Returns a command line without private values. `target` is the server to which the load was sent.
pub(super) fn public_command(words: &[String], target: &str) -> String {
    let public_value =
        |value: &str| if names_target(value, target) { LEFT_OUT } else { public_value(value) }.to_owned();
    let mut shown = Vec::with_capacity(words.len());
    let mut is_private = false;
    for (place, word) in words.iter().enumerate() {
        if place == 0 {
            shown.push(word.rsplit('/').next().unwrap_or(word).to_owned());
        } else if let Some((option, value)) = word.split_once('=').filter(|_| word.starts_with('-')) {
            let hides = PRIVATE_OPTIONS.contains(&option);
            let value = if hides { LEFT_OUT.to_owned() } else { public_value(value) };
            shown.push(format!("{option}={value}"));
            is_private = false;
        } else if word.starts_with('-') {
            shown.push(word.clone());
            is_private = PRIVATE_OPTIONS.contains(&word.as_str());
        } else {
            shown.push(if is_private { LEFT_OUT.to_owned() } else { public_value(word) });
            is_private = false;
        }
    }
    shown.join(" ")
}

/// Returns a sentence without `target`, and without words that look like host names, addresses or paths.
pub(super) fn public_sentence(text: &str, target: &str) -> String {
    let words = text.split(' ').map(|word| {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && !"[]:/~".contains(c)).trim_end_matches(':');
        let is_private = bare.contains('@')
            || is_foreign_address(bare)
            || names_target(bare, target)
            || is_host_name(bare)
            || is_path(bare);
        if is_private && !bare.is_empty() { word.replace(bare, LEFT_OUT) } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the value of an option if it is a loopback address, a number or a plain word, which reveal nothing.
/// Otherwise returns `LEFT_OUT` in place of the value, because the value may be private.
fn public_value(value: &str) -> &str {
    if is_loopback(value) || is_quantity(value) || is_keyword(value) { value } else { LEFT_OUT }
}

/// Returns true for a value of letters, digits, `-`, `,` and `_` only, such as `stream` or `relay-400`. Without dots,
/// slashes and colons, the value cannot be an address or a path.
fn is_keyword(value: &str) -> bool {
    value.chars().all(|c| c.is_ascii_alphabetic() || c.is_ascii_digit() || c == '-' || c == ',' || c == '_')
}

/// Returns true for a number with a unit, and for a range or list of such numbers. Examples are `64k`, `1s:50/s` and
/// `10..2k`.
fn is_quantity(value: &str) -> bool {
    let is_plain = value.chars().all(|c| c.is_ascii_alphanumeric() || ".,%:/".contains(c));
    let units = value.split(|c: char| !c.is_ascii_alphabetic());
    let rates = value.split('/').skip(1);
    value.starts_with(|c: char| c.is_ascii_digit())
        && is_plain
        && socket_ip(value).is_none()
        && units.into_iter().all(|unit| unit.len() <= MAX_UNIT_LETTERS)
        && rates.into_iter().all(|rest| {
            matches!(rest.chars().nth(1), None | Some(':' | '.' | ',')) && rest.starts_with(['s', 'm', 'h'])
        })
}

fn is_loopback(value: &str) -> bool {
    let value = value.split_once("://").map_or(value, |(_, rest)| rest);
    value == "localhost" || value.starts_with("localhost:") || socket_ip(value).is_some_and(|ip| ip.is_loopback())
}

fn is_foreign_address(word: &str) -> bool {
    socket_ip(word).is_some_and(|ip| !ip.is_loopback())
}

/// Returns true for a word that looks like a host name with a domain, such as `mx.example.net` or
/// `https://a.example:8443/x`. Names of figures such as `delivered.p99` look similar but do not count.
fn is_host_name(word: &str) -> bool {
    let rest = word.split_once("://").map_or(word, |(_, rest)| rest);
    let host = rest.split(['/', ':']).next().unwrap_or_default().trim_end_matches('.');
    let Some((begin, top)) = host.rsplit_once('.') else { return false };
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    let is_top = top.chars().count() > 1 && (top.starts_with("xn--") || top.chars().all(char::is_alphabetic));
    let names_stage = serde_json::from_value::<Stage>(begin.into()).is_ok();
    is_top && !names_stage && begin.split('.').all(is_label)
}

/// Returns true for a path that begins at the root, the home or a parent directory, such as `/var/spool`, `~/runs` or
/// `../runs`.
fn is_path(word: &str) -> bool {
    let rest = word.strip_prefix("../").or_else(|| word.strip_prefix("~/")).or_else(|| word.strip_prefix('/'));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_alphanumeric() || "._-".contains(c)))
}

/// Returns the IP address in a text such as `192.0.2.1`, `192.0.2.1:25` or `[2001:db8::1]:25`.
fn socket_ip(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| bare.parse()).ok()
}

/// Returns true if the word begins with the host to which the load was sent. A port or path may follow the host.
fn names_target(word: &str, target: &str) -> bool {
    let target = target.split_once("://").map_or(target, |(_, rest)| rest);
    let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
    let word = word.split_once("://").map_or(word, |(_, rest)| rest);
    let rest = word.strip_prefix(host).filter(|_| !host.is_empty() && !is_loopback(target));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(words: &str) -> String {
        public_command(&words.split(' ').map(str::to_owned).collect::<Vec<_>>(), "mailhub:25")
    }

    #[test]
    fn a_command_keeps_its_figures_and_leaves_out_names_and_places() {
        for (words, expected) in [
            (
                "/home/ann/bin/mailrun bench mx.example:25 --messages 1.5k --message-size 64k --rate 50/s --to ann@b.example",
                "mailrun bench … --messages 1.5k --message-size 64k --rate 50/s --to …",
            ),
            (
                "mailrun bench 127.0.0.1:2525 --stage 1s:50/s..150/s",
                "mailrun bench 127.0.0.1:2525 --stage 1s:50/s..150/s",
            ),
            ("mailrun source 192.0.2.1:25 --user ann", "mailrun source … --user …"),
            ("mailrun source 192.0.2.1 --user=ann --sessions=5", "mailrun source … --user=… --sessions=5"),
            ("mailrun mades --broker amqps://ann:secret@mx.example:5671/x", "mailrun mades --broker …"),
            ("mailrun mades --broker amqp://127.0.0.1:5672", "mailrun mades --broker amqp://127.0.0.1:5672"),
            (
                "mailrun bench relay-400 --pipelining stream --out /home/ann/x",
                "mailrun bench relay-400 --pipelining stream --out …",
            ),
            ("mailrun bench 1.example.com --think-time 10ms..2s", "mailrun bench … --think-time 10ms..2s"),
            ("mailrun bench 2026/ann/x.toml", "mailrun bench …"),
            ("mailrun bench mailhub --sessions 5", "mailrun bench … --sessions 5"),
            ("mailrun bench [2001:db8::1]:25", "mailrun bench …"),
            (
                "mailrun mades --outbox acme --out=acme-run --user ann --prefix acme",
                "mailrun mades --outbox … --out=… --user … --prefix …",
            ),
        ] {
            assert_eq!(shown(words), expected);
        }
    }

    #[test]
    fn a_sentence_does_not_name_the_server() {
        for (text, target, expected) in [
            ("mx.example:25 stopped answering", "mx.example:25", "… stopped answering"),
            ("No reply from smtp://mx.example, at 1.4 s.", "smtp://mx.example:25", "No reply from …, at 1.4 s."),
            ("192.0.2.9:25: refused for <ann@b.example>.", "mx", "…: refused for <…>."),
            ("200,000 delivered, none lost", "127.0.0.1:2525", "200,000 delivered, none lost"),
            ("127.0.0.1:2525 went away", "127.0.0.1:2525", "127.0.0.1:2525 went away"),
            ("Deferred at mx3.corp.example.net, then at gw.intern.", "mx", "Deferred at …, then at …."),
            (
                "delivered.p99 < 50ms: it was 1.5 ms at 900 msg/s",
                "mx",
                "delivered.p99 < 50ms: it was 1.5 ms at 900 msg/s",
            ),
            ("accepted.rate > 900/s was missed. Lost: 20.", "mx", "accepted.rate > 900/s was missed. Lost: 20."),
            ("The disk of /home/ann/spool (~/runs) is full", "mx", "The disk of … (…) is full"),
        ] {
            assert_eq!(public_sentence(text, target), expected);
        }
    }

    proptest! {
        #[test]
        fn nothing_of_a_foreign_record_panics_or_shows_an_address(words in prop::collection::vec(".{0,12}", 0..6), target in ".{0,9}") {
            let mut words = words;
            words.push("ann@private.example".to_owned());
            prop_assert!(!public_command(&words, &target).contains("private") || words.len() == 1);
            prop_assert!(!public_sentence(&words.join(" "), &target).contains("ann@private"));
        }
    }
}
