//! The section about the server under test: how the server identified itself, how busy this host was, and the processes
//! of the server if they are visible.
use super::capacity::{is_local, resources_used};
use super::figures::{Section, SectionBody};
use mailrun_measurement::record::{HostProcess, Record, ServerRow};
use mailrun_text::numbers::memory;
use mailrun_text::table::plain;

/// A process is shown if it used at least this much CPU time, in seconds.
const MIN_TOLD_S: f64 = 0.05;

/// Returns the section about the server, or `None` if the bench made no test connection to it, for example because the
/// bench started the server itself.
pub(crate) fn under_test(record: &Record) -> Option<Section> {
    let server = record.server.as_ref()?;
    let mut facts =
        vec![("banner", plain(&server.banner)), ("extensions", extensions(server)), ("AUTH", logins(server))];
    facts.push(("TLS", tls(record)));
    facts.push(("host", resources_used(record)));
    facts.extend(processes(record).map(|processes| ("other processes", processes)));
    Some(Section { title: "Server", note: None, body: SectionBody::Facts(facts) })
}

fn extensions(server: &ServerRow) -> String {
    let words = server.extensions.iter().filter(|line| login_mechanisms(line).is_none());
    match words.map(|line| plain(line)).collect::<Vec<_>>().join(" · ") {
        none if none.is_empty() => "none".to_owned(),
        words => words,
    }
}

fn logins(server: &ServerRow) -> String {
    let mechanisms = server.extensions.iter().find_map(|line| login_mechanisms(line));
    mechanisms.map_or_else(|| "not offered".to_owned(), |mechanisms| plain(mechanisms.trim()))
}

/// Returns the mechanisms in a line of an EHLO reply such as `AUTH PLAIN LOGIN`, or `None` for a line without `AUTH`.
/// Old servers write `=` in place of the space after `AUTH`.
fn login_mechanisms(line: &str) -> Option<&str> {
    let (word, rest) = line.split_at_checked(4)?;
    (word.eq_ignore_ascii_case("auth") && (rest.is_empty() || rest.starts_with([' ', '=']))).then_some(rest)
}

/// Returns the TLS version and cipher suite that most of the source's connections used.
fn tls(record: &Record) -> String {
    let rows = record.tls.iter().filter(|row| row.party == "source");
    match rows.max_by_key(|row| row.handshakes) {
        Some(row) => plain(&format!("{}, {}", row.version, row.cipher)),
        None => "not used".to_owned(),
    }
}

/// Lists the processes on this host that do not belong to the run, because the server may be among them. Returns `None`
/// if there are none, or if the server is on another host.
fn processes(record: &Record) -> Option<String> {
    let surroundings = record.surroundings.as_ref().filter(|_| is_local(&record.workload.target))?;
    let one = |process: &HostProcess| {
        let number = if process.processes > 1 { format!(" × {}", process.processes) } else { String::new() };
        let used = format!("{:.2} s of CPU, {}", process.processor_s, memory(process.rss_bytes));
        format!("{}{number}: {used}", plain(&process.name))
    };
    // Leave out kernel threads, which have no memory of their own.
    let is_telling = |process: &&HostProcess| process.rss_bytes > 0 && process.processor_s >= MIN_TOLD_S;
    let all: Vec<String> = surroundings.processes.iter().filter(is_telling).map(one).collect();
    (!all.is_empty()).then(|| all.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use mailrun_measurement::record::Surroundings;

    #[test]
    fn a_server_is_shown_as_it_introduced_itself() {
        let mut record = sample::held();
        assert!(under_test(&record).is_none());
        let extensions = ["PIPELINING", "SIZE 10240000", "auth PLAIN LOGIN", "AUTHX"].map(str::to_owned).to_vec();
        record.server = Some(ServerRow { banner: "mx.example ESMTP\u{202e}".to_owned(), extensions });
        let process = HostProcess {
            name: "smtpd".to_owned(),
            processes: 12,
            processor_s: 3.5,
            rss_bytes: 120 << 20,
            foreign: false,
        };
        record.surroundings = Some(Surroundings { processes: vec![process], ..Surroundings::default() });
        let SectionBody::Facts(facts) = under_test(&record).unwrap().body else { panic!("facts") };
        let fact = |name: &str| facts.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        assert!(
            fact("banner").unwrap().starts_with("mx.example ESMTP") && !fact("banner").unwrap().contains('\u{202e}')
        );
        assert_eq!(fact("extensions"), Some("PIPELINING · SIZE 10240000 · AUTHX"));
        assert_eq!((fact("AUTH"), fact("TLS")), (Some("PLAIN LOGIN"), Some("not used")));
        assert_eq!(fact("other processes"), Some("smtpd × 12: 3.50 s of CPU, 120 MiB"));
        record.workload.target = "mx.example:25".to_owned();
        let SectionBody::Facts(facts) = under_test(&record).unwrap().body else { panic!("facts") };
        assert!(facts.iter().all(|(name, _)| *name != "other processes"), "they are not the server's");
    }
}
