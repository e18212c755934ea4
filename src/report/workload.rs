//! What was offered, in words, and where it ran.
use super::numbers::{count, counted, memory, octets, rate, seconds};
use super::section::{Body, Section};
use super::table::plain;
use journey::record::{Arrival, Pipelining, Record, Role, Workload};

/// The load. A sink's own record has none: it does not know what was meant.
pub(crate) fn offered(record: &Record) -> Option<Section> {
    record.parties.iter().find(|party| party.role == Role::Source)?;
    let workload = &record.workload;
    let facts = vec![
        ("load", load(workload)),
        ("sessions", sessions(workload)),
        ("arrival", arrival(workload)),
        ("target", target(workload)),
    ];
    Some(Section { title: "Workload", note: None, body: Body::Facts(facts) })
}

/// Host, version, command line: what another would need to repeat it.
pub(crate) fn surroundings(record: &Record) -> Option<Section> {
    let host = &record.host;
    let machine = [
        host.os.clone(),
        format!("Linux {}", host.kernel),
        host.cpu_model.clone(),
        counted(u64::from(host.cores), "core"),
        memory(host.memory_bytes),
    ];
    let commit = record.commit.as_ref().map_or_else(String::new, |commit| format!(" (commit {commit})"));
    let mut facts = vec![
        ("host", plain(&machine.join(" · "))),
        ("mailrun", format!("{}{commit}", plain(&record.version))),
        ("command", plain(&quoted(&record.command))),
        ("run", format!("{} · started {}", plain(&record.run_id), plain(&record.started_at))),
    ];
    if record.parties.iter().any(|party| party.role == Role::Source) {
        facts.push(("seed", record.workload.seed.to_string()));
    }
    Some(Section { title: "Surroundings", note: None, body: Body::Facts(facts) })
}

fn load(workload: &Workload) -> String {
    let each = format!("{} to {} each", octets(workload.message_bytes), recipients(workload));
    match (workload.messages, workload.duration_limit_s) {
        (Some(number), Some(limit)) => {
            format!("{} of {each}, for at most {}", counted(number, "message"), seconds(limit))
        }
        (Some(number), None) => format!("{} of {each}", counted(number, "message")),
        (None, Some(limit)) => format!("messages of {each}, for {}", seconds(limit)),
        (None, None) => format!("messages of {each}, until stopped"),
    }
}

fn recipients(workload: &Workload) -> String {
    counted(u64::from(workload.recipients), "recipient")
}

fn sessions(workload: &Workload) -> String {
    let reuse = match workload.reuse {
        None => "connections reused without limit".to_owned(),
        Some(1) => "a connection for each message".to_owned(),
        Some(number) => format!("{} a connection", counted(number, "message")),
    };
    let commands = match workload.pipelining {
        Pipelining::Off => "one command at a time",
        Pipelining::Group => "MAIL, RCPT and DATA in one write",
        Pipelining::Stream => "a message and the next MAIL, RCPT and DATA in one write",
    };
    format!("{} · {reuse} · {commands}", count(u64::from(workload.sessions)))
}

fn arrival(workload: &Workload) -> String {
    let paced = workload.rate_per_s.map_or_else(String::new, |pace| format!(" at {} msg/s", rate(pace)));
    match workload.arrival {
        Arrival::Closed => "closed loop: the next message starts when the last is done".to_owned(),
        Arrival::Constant => format!("open loop{paced}, at even distances"),
        Arrival::Poisson => format!("open loop{paced}, at random distances (Poisson)"),
    }
}

fn target(workload: &Workload) -> String {
    let security = match workload.tls.as_str() {
        "" | "none" => "no TLS".to_owned(),
        kind => format!("TLS: {}", plain(kind)),
    };
    let transfer = if workload.chunking { ", BDAT" } else { "" };
    format!("{}, {}{transfer}, {security}", plain(&workload.target), plain(&workload.protocol).to_uppercase())
}

/// A command line that a shell would read back as it was.
fn quoted(command: &[String]) -> String {
    let safe = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_=./:@,+%[]".contains(c));
    let word = |word: &String| if safe(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_load_is_said_in_words() {
        let workload = sample::held().workload;
        assert_eq!(load(&workload), "200,000 messages of 400 B to 1 recipient each");
        assert_eq!(sessions(&workload), "100 · connections reused without limit · one command at a time");
        assert_eq!(target(&workload), "127.0.0.1:40001, SMTP, no TLS");
        let timed = Workload { messages: None, duration_limit_s: Some(10.0), ..workload };
        assert_eq!(load(&timed), "messages of 400 B to 1 recipient each, for 10.00 s");
    }

    #[test]
    fn open_loop_names_its_pace() {
        let workload = Workload { arrival: Arrival::Poisson, rate_per_s: Some(1_000.0), ..sample::held().workload };
        assert_eq!(arrival(&workload), "open loop at 1,000 msg/s, at random distances (Poisson)");
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let command = ["mailrun", "bench", "--name", "two words", "it's"].map(str::to_owned);
        assert_eq!(quoted(&command), r"mailrun bench --name 'two words' 'it'\''s'");
    }

    #[test]
    fn a_sink_alone_has_no_workload() {
        assert!(offered(&sample::sink_alone()).is_none());
        assert!(surroundings(&sample::sink_alone()).is_some());
    }
}
