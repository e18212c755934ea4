//! A probe watches three routes: a private Postfix, our relay, and a port where nobody listens. Meanwhile the probe,
//! the servers and the sinks are killed and started again in turns. At the end, the counts of the probe and of the
//! sinks must agree.
use crate::party::{MAILRUN, Process, Sink, low_port, wait_until};
use crate::postfix::{Deliver, Postfix};
use crate::probe::Probe;
use crate::secured::Files;
use std::thread;
use std::time::{Duration, Instant};

/// A sink that keeps its mail in a Maildir. Its count of messages includes the messages of its earlier processes.
struct Keeper {
    listen: String,
    inbox: String,
    sink: Option<Sink>,
    before: u64,
    restarts: u32,
}

impl Keeper {
    fn start(inbox: String) -> Self {
        let listen = format!("127.0.0.1:{}", low_port());
        let sink = Some(Sink::start_at(&listen, &["--maildir", &inbox]));
        Self { listen, inbox, sink, before: 0, restarts: 0 }
    }

    fn restart(&mut self) {
        self.restarts += 1;
        self.before += self.sink.take().unwrap().took().messages;
        self.sink = Some(Sink::start_at(&self.listen, &["--maildir", &self.inbox]));
    }

    fn messages(&self) -> u64 {
        self.before + self.sink.as_ref().unwrap().ask("/status")["messages"].as_u64().unwrap()
    }
}

fn relay(listen: &str, next_hop: &str, spool: &str) -> Process {
    let process = Process::start(MAILRUN, &["relay", "--listen", listen, "--to", next_hop, "--spool", spool]);
    wait_until("the relay to listen", || std::net::TcpStream::connect(listen).ok());
    process
}

#[test]
#[ignore = "slow: make test-slow PART=probe"]
fn the_account_is_that_of_the_sinks_after_restarts_of_everything() {
    let time = std::env::var("MAILRUN_PROBE_SECONDS").map_or(60, |text| text.parse::<u64>().unwrap());
    let files = Files::new();
    let mut behind_postfix = Keeper::start(files.path("behind-postfix"));
    let mut behind_relay = Keeper::start(files.path("behind-relay"));
    let next_hop = behind_postfix.listen.rsplit_once(':').unwrap().1.parse().unwrap();
    let Some(postfix) = Postfix::start(Deliver::To(next_hop), &[vec![]]) else { return };
    let listen = format!("127.0.0.1:{}", low_port());
    let spool = files.path("spool");
    let mut relay_process = Some(relay(&listen, &behind_relay.listen, &spool));
    let routes = [
        format!(
            "name = \"postfix\"\nserver = \"{}\"\nmailbox = \"maildir:{}\"",
            postfix.address(),
            behind_postfix.inbox
        ),
        format!("name = \"relay\"\nserver = \"{listen}\"\nmailbox = \"maildir:{}\"", behind_relay.inbox),
        format!("name = \"dead\"\nserver = \"127.0.0.1:{}\"", low_port()),
    ];
    let text = |rate: &str| {
        let routes = routes.iter().map(|route| {
            format!("[[route]]\n{route}\nto = \"probe@bench.example\"\nrate = \"{rate}\"\nlost_after = \"2m\"\n")
        });
        format!("state = \"state\"\nhttp = \"127.0.0.1:0\"\n{}", routes.collect::<String>())
    };
    let config = files.keep("probe.toml", &text("2/s"));
    let mut probe = Some(Probe::start(&config));
    let began = Instant::now();
    let mut kills = 0_u32;
    for turn in 0.. {
        thread::sleep(Duration::from_secs(7).min(Duration::from_secs(time / 8)));
        if began.elapsed() >= Duration::from_secs(time) {
            break;
        }
        match turn % 5 {
            0 => {
                // This drop kills the probe.
                drop(probe.take());
                probe = Some(Probe::start(&config));
                kills += 1;
            }
            1 => behind_postfix.restart(),
            2 => {
                drop(relay_process.take());
                relay_process = Some(relay(&listen, &behind_relay.listen, &spool));
            }
            3 => behind_relay.restart(),
            _ => postfix.restart(),
        }
    }
    files.keep("probe.toml", &text("1/h"));
    let probe = probe.unwrap();
    probe.hang_up();
    let watched = ["postfix", "relay"];
    let metrics = wait_until("all messages to have ended", || {
        postfix.flush();
        let metrics = probe.metrics();
        let is_quiet = metrics.of("interval_seconds", "relay") >= 3_600.0
            && watched.iter().all(|route| metrics.of("in_flight", route) + metrics.of("missing", route) == 0.0);
        is_quiet.then_some(metrics)
    });
    for (route, keeper) in watched.iter().zip([&behind_postfix, &behind_relay]) {
        assert_eq!(metrics.of("created_total", route), metrics.fates(route), "{route}");
        let arrived = metrics.of("delivered_total", route) + metrics.of("repeated_total", route);
        // The sink may count more arrivals than the probe, because a killed relay may send its last message again after
        // the probe has forgotten the first arrival. The sink may also count fewer arrivals, because a stopped sink may
        // have stored a message without counting it. The server got no reply and sends the message again, so the probe
        // finds two copies, but the sink has counted only one.
        let unknown = keeper.messages() as f64 - arrived;
        println!("{route}: {unknown} arrivals more at the sink, after {} of its restarts", keeper.restarts);
        let allowed = -f64::from(keeper.restarts)..=f64::from(kills);
        assert!(allowed.contains(&unknown), "{route}: {unknown} arrivals more");
        assert!(metrics.of("delivered_total", route) > time as f64 / 4.0, "{route}");
    }
    assert_eq!(metrics.of("created_total", "dead"), metrics.fates("dead"));
    assert!(metrics.of("failed_total", "dead") >= 1.0 && metrics.of("accepted_total", "dead") == 0.0);
    let shown = |route: &&str| {
        let names =
            ["created_total", "delivered_total", "rejected_total", "failed_total", "in_doubt", "repeated_total"];
        let counts = names.map(|name| format!("{name} {}", metrics.of(name, route)));
        format!("{route}: {}", counts.join(", "))
    };
    println!(
        "{kills} kills of the probe; {}",
        watched.iter().chain(&["dead"]).map(shown).collect::<Vec<_>>().join("; ")
    );
}
