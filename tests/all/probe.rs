//! Tests the probe as a process. Its counts of messages must agree with the sinks and the mailboxes, even after kills,
//! restarts and SIGHUP.
use crate::party::{MAILRUN, Process, Sink, low_port, mailrun, wait_until};
use crate::secured::Files;
use std::collections::HashMap;
use std::fs;

/// Values of `/metrics`. The keys are the metrics' names with their labels.
pub(crate) struct Metrics(HashMap<String, f64>);

impl Metrics {
    pub(crate) fn of(&self, name: &str, route: &str) -> f64 {
        self.0.get(&format!("mailrun_probe_{name}{{route=\"{route}\"}}")).copied().unwrap_or_default()
    }

    /// Number of a route's messages, summed over all fates. It must equal the number of created messages.
    pub(crate) fn fates(&self, route: &str) -> f64 {
        let names = ["in_flight", "rejected_total", "failed_total", "in_doubt", "delivered_total", "bounced_total"];
        let others = ["missing", "unwatched_total"];
        names.iter().chain(&others).map(|name| self.of(name, route)).sum()
    }
}

/// A running probe. It is killed when dropped.
pub(crate) struct Probe {
    process: Process,
    url: String,
}

impl Probe {
    pub(crate) fn start(config: &str) -> Self {
        let process = Process::start(MAILRUN, &["probe", "--config", config]);
        let url = wait_until("the probe to listen", || {
            let said = process.complained();
            let rest = said.split_once("metrics on ")?.1;
            rest.split_once('\n').map(|(url, _)| url.to_owned())
        });
        Self { process, url }
    }

    /// URL of `/metrics`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn hang_up(&self) {
        self.process.hang_up();
    }

    /// Sends SIGHUP for the `count`th time, and waits until the probe has read its configuration again.
    fn reload(&self, count: u32) {
        self.hang_up();
        wait_until("the configuration to be read again", || {
            let times = self.process.complained().matches("the configuration was read again").count();
            (times >= count as usize).then_some(())
        });
    }

    /// The text of `/metrics`.
    pub(crate) fn text(&self) -> String {
        let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
        agent.get(&self.url).call().unwrap().body_mut().read_to_string().unwrap()
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let text = self.text();
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Metrics(samples.collect())
    }

    /// Waits until the metric `name` of each route is at least `least`.
    pub(crate) fn await_value(&self, name: &str, routes: &[&str], least: f64) {
        wait_until(&format!("{name} of {routes:?}"), || {
            let metrics = self.metrics();
            routes.iter().all(|route| metrics.of(name, route) >= least).then_some(())
        });
    }
}

#[test]
fn the_account_is_that_of_the_sinks_however_often_probe_and_server_are_killed() {
    let files = Files::new();
    let inbox = files.path("inbox");
    let sink = Sink::start(&[]);
    let listen = format!("127.0.0.1:{}", low_port());
    let server = Sink::start_at(&listen, &["--maildir", &inbox]);
    let thief = Sink::start(&["--fault", "drop 100%"]);
    let routes = [
        format!("name = \"sink\"\nserver = \"{}\"\nsink = \"{}\"", sink.address(), sink.url()),
        format!("name = \"mailbox\"\nserver = \"{listen}\"\nmailbox = \"maildir:{inbox}\""),
        format!("name = \"dead\"\nserver = \"127.0.0.1:{}\"", low_port()),
        format!("name = \"thief\"\nserver = \"{}\"\nsink = \"{}\"\nlost_after = \"2s\"", thief.address(), thief.url()),
    ];
    let text = |rate: &str| {
        let routes: Vec<String> = routes
            .iter()
            .map(|route| {
                let wait = if route.contains("lost_after") { "" } else { "lost_after = \"20s\"\n" };
                format!("[[route]]\n{route}\nto = \"probe@a.example\"\nrate = \"{rate}\"\n{wait}")
            })
            .collect();
        format!("state = \"state\"\nhttp = \"127.0.0.1:0\"\n{}", routes.concat())
    };
    let config = files.keep("probe.toml", &text("10/s"));
    let probe = Probe::start(&config);
    probe.await_value("delivered_total", &["sink", "mailbox"], 10.0);
    // This drop kills the probe.
    drop(probe);
    let probe = Probe::start(&config);
    probe.await_value("delivered_total", &["sink", "mailbox"], 20.0);
    let first = server.took().messages;
    probe.await_value("failed_total", &["mailbox"], 1.0);
    drop(probe);
    let server = Sink::start_at(&listen, &["--maildir", &inbox]);
    let probe = Probe::start(&config);
    probe.await_value("delivered_total", &["sink", "mailbox"], 30.0);
    probe.await_value("lost_total", &["thief"], 5.0);
    files.keep("probe.toml", &text("1/h"));
    probe.hang_up();
    let quiet = wait_until("all messages to have ended", || {
        let metrics = probe.metrics();
        let is_quiet = metrics.of("interval_seconds", "sink") >= 3_600.0
            && ["sink", "mailbox", "thief", "dead"].iter().all(|route| metrics.of("in_flight", route) == 0.0);
        is_quiet.then_some(metrics)
    });
    for route in ["sink", "mailbox", "thief", "dead"] {
        assert_eq!(quiet.of("created_total", route), quiet.fates(route), "{route}");
    }
    assert_eq!(sink.ask("/ledger")[0]["delivered"].as_f64(), Some(quiet.of("delivered_total", "sink")));
    let arrived = first + server.ask("/status")["messages"].as_u64().unwrap();
    assert_eq!(arrived as f64, quiet.of("delivered_total", "mailbox"), "{:?}", quiet.0);
    wait_until("the probe to delete its own mail", || {
        (fs::read_dir(format!("{inbox}/new")).unwrap().count() == 0).then_some(())
    });
    for (name, route, expected) in [("missing", "sink", 0.0), ("missing", "mailbox", 0.0), ("up", "dead", 0.0)] {
        assert_eq!(quiet.of(name, route), expected, "{name} of {route}");
    }
    assert_eq!(quiet.of("repeated_total", "sink") + quiet.of("repeated_total", "mailbox"), 0.0);
    assert!(quiet.of("lost_total", "thief") > 0.0 && quiet.of("failed_total", "dead") > 0.0);
    assert!(quiet.of("backoff_seconds", "dead") > 0.0);
    files.keep("probe.toml", "nonsense");
    probe.hang_up();
    wait_until("the file to be refused", || {
        (probe.metrics().0["mailrun_probe_config_last_reload_successful"] == 0.0).then_some(())
    });
    probe.process.terminate();
    let ended = probe.process.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in ["thief: message", "has not arrived within 2s", "dead: failed at connect", "the old routes stay: "] {
        assert!(ended.err.contains(words), "{words} in {}", ended.err);
    }
}

#[test]
fn copies_at_a_sink_count_once_however_often_the_probe_asks_for_them() {
    let files = Files::new();
    let sink = Sink::start(&["--fault", "duplicate 100%"]);
    let text = format!(
        "state = \"state\"\nhttp = \"127.0.0.1:0\"\n[[route]]\nname = \"a\"\nserver = \"{}\"\nsink = \"{}\"\n\
         to = \"probe@a.example\"\nrate = \"5/s\"\n",
        sink.address(),
        sink.url()
    );
    let probe = Probe::start(&files.keep("probe.toml", &text));
    for round in 1..=3 {
        probe.await_value("repeated_total", &["a"], 5.0 * f64::from(round));
        let repeated = probe.metrics().of("repeated_total", "a");
        let copies = sink.ask("/ledger")[0]["duplicates"].as_f64().unwrap();
        assert!(repeated <= copies, "the probe counts {repeated} copies, and the sink {copies}");
        probe.reload(round);
    }
}

#[test]
fn copies_in_a_mailbox_count_once_and_are_deleted_unless_the_user_keeps_mail() {
    for keeps in [false, true] {
        let files = Files::new();
        let inbox = files.path("inbox");
        let sink = Sink::start(&["--maildir", &inbox]);
        let text = format!(
            "state = \"state\"\nhttp = \"127.0.0.1:0\"\n[[route]]\nname = \"a\"\nserver = \"{}\"\n\
             mailbox = \"maildir:{inbox}\"\nkeep_mail = {keeps}\nto = \"probe@a.example\"\nrate = \"1/h\"\n",
            sink.address()
        );
        let config = files.keep("probe.toml", &text);
        let names = || fs::read_dir(format!("{inbox}/new")).unwrap().map(|entry| entry.unwrap().path());
        let await_deletion = || {
            if !keeps {
                wait_until("the probe to delete its mail", || (names().count() == 0).then_some(()));
            }
        };
        let probe = Probe::start(&config);
        probe.await_value("delivered_total", &["a"], 1.0);
        let content = fs::read_to_string(names().next().unwrap()).unwrap();
        // Rename the copy into the mailbox, so that the probe cannot read half of it.
        let copy = |name: &str| fs::rename(files.keep(name, &content), format!("{inbox}/new/{name}")).unwrap();
        copy("1.copy");
        probe.await_value("repeated_total", &["a"], 1.0);
        await_deletion();
        copy("2.copy");
        probe.await_value("repeated_total", &["a"], 2.0);
        probe.reload(1);
        copy("3.copy");
        probe.await_value("repeated_total", &["a"], 3.0);
        assert_eq!(probe.metrics().of("repeated_total", "a"), 3.0, "after SIGHUP, keep_mail = {keeps}");
        drop(probe);
        let probe = Probe::start(&config);
        // The new process reports the messages that it finds before it reports its own first message. It must not
        // report the old copies again.
        probe.await_value("delivered_total", &["a"], 2.0);
        assert_eq!(probe.metrics().of("repeated_total", "a"), 3.0, "after a restart, keep_mail = {keeps}");
        await_deletion();
        assert_eq!(names().count(), if keeps { 5 } else { 0 });
    }
}

#[test]
fn a_mailbox_that_is_away_is_reported_once() {
    let files = Files::new();
    let [inbox, away] = ["inbox", "away"].map(|name| files.path(name));
    let sink = Sink::start(&["--maildir", &inbox]);
    let text = format!(
        "state = \"state\"\nhttp = \"127.0.0.1:0\"\n[[route]]\nname = \"a\"\nserver = \"{}\"\n\
         mailbox = \"maildir:{inbox}\"\nto = \"probe@a.example\"\nrate = \"1/h\"\n",
        sink.address()
    );
    let probe = Probe::start(&files.keep("probe.toml", &text));
    probe.await_value("delivered_total", &["a"], 1.0);
    let is_up = || probe.metrics().of("watch_up", "a");
    fs::rename(&inbox, &away).unwrap();
    wait_until("the probe to miss the mailbox", || (is_up() == 0.0).then_some(()));
    for _ in 0..30 {
        assert_eq!(is_up(), 0.0, "the mailbox is still away");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    fs::rename(&away, &inbox).unwrap();
    wait_until("the probe to find the mailbox", || (is_up() == 1.0).then_some(()));
    let said = probe.process.complained();
    assert_eq!(said.matches("cannot see what arrives").count(), 1, "{said}");
}

#[test]
fn routes_to_several_domains_share_a_sink() {
    let files = Files::new();
    let sink = Sink::start(&[]);
    let route = |name: &str| {
        let (server, url) = (sink.address(), sink.url());
        format!(
            "[[route]]\nname = \"{name}\"\nserver = \"{server}\"\nto = \"probe@{name}.example\"\nrate = \"10/s\"\n\
             sink = \"{url}\"\nlost_after = \"5s\"\n"
        )
    };
    let routes = ["a", "b", "c"];
    let text = format!("state = \"state\"\nhttp = \"127.0.0.1:0\"\n{}", routes.map(route).concat());
    let probe = Probe::start(&files.keep("probe.toml", &text));
    probe.await_value("delivered_total", &routes, 60.0);
    let metrics = probe.metrics();
    routes.iter().for_each(|route| assert_eq!(metrics.of("lost_total", route), 0.0, "{route}"));
}

#[test]
fn a_second_probe_and_a_damaged_account_are_refused() {
    let files = Files::new();
    let sink = Sink::start(&[]);
    let route = format!("[[route]]\nserver = \"{}\"\nto = \"a@b.example\"\n", sink.address());
    let config = files.keep("probe.toml", &format!("state = \"state\"\nhttp = \"127.0.0.1:0\"\n{route}"));
    let probe = Probe::start(&config);
    probe.await_value("unwatched_total", &[&sink.address()], 1.0);
    let second = mailrun(&["probe", "--config", &config]);
    assert!(second.code == Some(2) && second.err.contains("another probe uses it"), "{second:?}");
    drop(probe);
    files.keep("state/account", "hello\n");
    let refused = mailrun(&["probe", "--config", &config]);
    assert!(refused.code == Some(2) && refused.err.contains("its first line"), "{refused:?}");
}

#[test]
fn the_command_line_is_checked_before_anything_is_sent() {
    let files = Files::new();
    let state = files.path("state");
    let good = files.keep("good.toml", "[[route]]\nserver = \"127.0.0.1:25\"\nto = \"a@b.example\"\n");
    let checked = mailrun(&["probe", "--config", &good, "--check"]);
    assert_eq!((checked.code, checked.out.as_str()), (Some(0), "configuration OK: 1 route\n"), "{checked:?}");
    for (words, expected) in [
        (&["8.8.8.8", "--to", "a@b.example"][..], "is a public address"),
        (&["127.0.0.1:25", "--to", "a b"], "is not an address"),
        (&["127.0.0.1:25", "--to", "a@b.example", "--rate", "100"], "at most 10 messages per second"),
        (&["127.0.0.1:25", "--to", "a@b.example", "--rate", "0"], "must be more than zero"),
        (&["127.0.0.1:25", "--to", "a@b.example", "--mailbox", "imap://a@127.0.0.1"], "MAILRUN_MAILBOX_PASSWORD"),
        (&["127.0.0.1:25", "--to", "a@b.example", "--mailbox", "imap://a:b@127.0.0.1"], "password"),
        (&["smtps://127.0.0.1", "--tls", "none", "--to", "a@b.example"], "smtps:// means TLS before the greeting"),
        (&["127.0.0.1:25", "127.0.0.1:25", "--to", "a@b.example"], "two routes have the name"),
        (&["127.0.0.1:25", "--to", "a@b.example", "--sink", "https://x"], "is not an http:// address"),
    ] {
        let ended = mailrun(&[&["probe", "--state", &state, "--http", "127.0.0.1:0"], words].concat());
        assert!(ended.code == Some(2) && ended.err.contains(expected), "{words:?}: {ended:?}");
    }
}
