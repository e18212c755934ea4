//! Warns if bounces may reach a stranger. A server that cannot deliver a message sends a bounce to the domain of
//! `--from`, which may belong to somebody else.
use mailrun_load::source::AddressPattern;

/// Domains that nobody can own, or that are used only within a network (RFC 2606, RFC 6761, RFC 6762, RFC 8375).
const RESERVED: [&str; 12] = [
    "example",
    "example.com",
    "example.net",
    "example.org",
    "test",
    "invalid",
    "localhost",
    "local",
    "internal",
    "lan",
    "home.arpa",
    "onion",
];

/// Warns if the sender's domain seems to belong to somebody else. This is the case if the domain is neither reserved
/// nor related to the name of this host, to the name of the server or to the domain of a recipient.
pub(crate) fn warn(from: &AddressPattern, to: &[AddressPattern], server: &str) {
    let Some(sender) = from.first_domain() else { return };
    let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    let server = server.rsplit_once(':').map_or(server, |(host, _)| host).to_ascii_lowercase();
    let recipients = to.iter().filter_map(AddressPattern::first_domain);
    let own: Vec<String> = [host, server].into_iter().chain(recipients).collect();
    if is_of_others(&sender, &own) {
        mailrun_process::tell!(
            "mailrun: mail that the server cannot deliver bounces to {sender}, the domain of --from. If {sender} is not \
             yours, use a reserved domain, such as --from from@example.com."
        );
    }
}

/// Returns true if the domain is public, and no name in `own` is the same domain, a subdomain or a parent domain.
fn is_of_others(domain: &str, own: &[String]) -> bool {
    let is_within =
        |name: &str, domain: &str| name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let is_public = domain.contains('.') && !domain.starts_with('[');
    let is_reserved = RESERVED.iter().any(|reserved| is_within(domain, reserved));
    let is_own = |name: &String| name.contains('.') && (is_within(name, domain) || is_within(domain, name));
    is_public && !is_reserved && !own.iter().any(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_domains_of_others_are_warned_of() {
        let own = ["build7.corp.net", "mx.shop.de", "localhost", "127.0.0.1", "bench.firm.org"].map(str::to_owned);
        for (domain, expected) in [
            ("gmail.com", true),
            ("corp.com", true),
            ("notcorp.net", true),
            ("myexample.com", true),
            ("corp.net", false),
            ("shop.de", false),
            ("mail.bench.firm.org", false),
            ("example.com", false),
            ("a.b.example", false),
            ("x.test", false),
            ("b", false),
            ("[192.0.2.1]", false),
        ] {
            assert_eq!(is_of_others(domain, &own), expected, "{domain}");
        }
    }
}
