//! Runs every command line of README.md and of the pages in `docs` as printed, and checks the exit status that the page
//! states. [`NOT_RUN`] lists the lines that cannot be run here, with the reason. If such a line is a command of
//! mailrun, it is at least parsed.
//!
//! All changes to a line before it runs are in this file: replaced words ([`WORDS`]), lines that need their own
//! environment ([`INSTEAD`]), and shortened loads ([`shortened`]).
use crate::docs_script::{Done, Step, namespaces, run_steps};
use crate::manual::{Command, Place, Section, page, pages};
use crate::party::{peer, skip};
use crate::postfix::base_configuration;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

/// Lines that are not run, with the reason. `make` needs no entry, because its targets are looked up in the Makefile.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo run --release -- bench     # a demonstration on this host: source → relay → sink, 8 seconds", BUILDS),
    ("cargo install --locked --git https://github.com/mailrun/mailrun mailrun", BUILDS),
    ("cargo install --path .       # the same from a clone", BUILDS),
    (
        "mailrun bench 127.0.0.1:25 --tls starttls --insecure --to user@bench.example --sink http://127.0.0.1:8025 --messages 500",
        POSTFIX_TLS,
    ),
    (
        "MAILRUN_PASSWORD=secret mailrun bench mx.example:587 --tls starttls --user ann --to user@bench.example --messages 500",
        POSTFIX_TLS,
    ),
    (
        "mailrun capacity 127.0.0.1:25 --to user@bench.example --sink http://127.0.0.1:8025 --goal 'delivered.p99 < 1s' --max-rate 1k --quick",
        SEARCHES,
    ),
    ("cargo run --release -p mailrun-measurement --example shards -- parts 1000", BUILDS),
    (
        "go-mades-bench -n 1000 -size 3000",
        "the original is not installed everywhere; go_mades_bench.rs compares with it",
    ),
    ("for run in 1 2 3 4 5 6; do mailrun bench mx.example --duration 10s --out before/$run; done", COMPARISONS),
    (
        "mailrun compare --contestant 'smtp-source=smtp-source -d -s {sessions} -m {messages} -l {size} {host}:{port}' --contestant 'go-smtp-source=go-smtp-source -d -s {sessions} -m {messages} -l {size} {host}:{port}' --rounds 40",
        ROUNDS,
    ),
    ("mailrun compare --contestant old=127.0.0.1:2525 --contestant new=127.0.0.1:2526 --to ann@a.example", ROUNDS),
    ("mailrun compare --contestant before=relay-400 --contestant after=my.toml", ROUNDS),
    ("mailrun compare --self --rounds 20", ROUNDS),
    ("mailrun compare after/* --against before/*", COMPARISONS),
    ("mailrun compare after --against before --fail-on-regression 5%", COMPARISONS),
    ("mailrun compare after --against before --html compared.html", COMPARISONS),
    ("mailrun baseline save main before/*", BASELINES),
    ("mailrun compare after/* --baseline main --fail-on-regression 5%", BASELINES),
    ("mailrun baseline show main", BASELINES),
    ("mailrun baseline remove main", BASELINES),
    (
        "mailrun mades --shape quarter-hour --shape 'heartbeat 12m,7m30s,3m before quarter' --shape 'every 10s' --duration 1h",
        "sends half a gigabyte at once; mades.rs runs an accelerated market",
    ),
    (
        "mailrun mades --await-acknowledgements --shape 'every 10s' --duration 1h --threshold 'acknowledged.within(2min) >= 99.9%'",
        "has no message within a second; mades.rs runs an accelerated market",
    ),
    ("mailrun bench smtp-source-table", "takes minutes; tables.rs runs it with small numbers"),
    ("mailrun bench relay-400", RELAYS),
    ("mailrun report target/results/relay-400/records/round-1-1-mailrun", "make results makes the records"),
    (
        "mailrun audit explain mailrun-results/20261129T095200Z-audit-opensmtpd/round-2-power-cut-on-ext4 0",
        "needs a round with losses; audit.rs explains some",
    ),
    ("mailrun bench relay-100k --compare mailrun,postfix --messages 1000 --rounds 6", RELAYS),
    ("sudo mailrun bench limits.toml --sessions 20 --rounds 6", RELAYS),
    ("mailrun capacity --relay postfix --quick --reuse --sessions 20 --goal 'delivered.p99 < 1s'", RELAYS),
    ("mailrun capacity mades --quick --goal 'delivered.p99 < 2s'", SEARCHES),
    (
        "mailrun capacity mades --broker amqp://endpoint@broker.local --password-file pw \
         --goal 'RECEIVED.within(60s) >= 95%'",
        SEARCHES,
    ),
    (
        "mailrun bench --relay postfix --reuse --sessions 20 --rate 797/s --duration 60s --threshold 'delivered.p99 < 1s'",
        RELAYS,
    ),
    (
        "mailrun bench --relay postfix --reuse --sessions 20 --rate 964/s --duration 60s --threshold 'delivered.p99 < 1s'",
        RELAYS,
    ),
    ("mailrun bench backlog", RELAYS),
    ("mailrun bench backlog --relay postfix --messages 50000 --message-size 4k", RELAYS),
    ("mailrun bench backlog --compare postfix,exim,mailrun --messages 50000 --message-size 4k", RELAYS),
    (
        "mailrun bench backlog --relay postfix --receiver 'mail: limit 10/s \"421 4.7.0 Later\"' --no-flush --lost-after 10m",
        RELAYS,
    ),
    ("mailrun bench backlog --relay postfix --receiver like:postgrey --no-flush --lost-after 20m", RELAYS),
    ("mailrun bench backlog 127.0.0.1:25 --sink-listen 127.0.0.1:2526 --lost-after 10m", RELAYS),
    ("mailrun bench kotlin-profile", "takes some seconds; profiles.rs runs it with small numbers"),
    (
        "mailrun bench kotlin-profile 127.0.0.1:2525 --to ann@a.example",
        "takes some seconds; profiles.rs runs it with small numbers",
    ),
    ("mailrun bench sizes", "takes a minute; profiles.rs runs it with small numbers"),
    ("mailrun bench large-message", "takes a minute; profiles.rs runs it with small numbers"),
    (
        "mailrun bench mades-compare                                  # embedded listener; --mode endpoint: all stages",
        CONTESTS,
    ),
    (
        "mailrun bench mades-compare --mode endpoint --drop 1% --max-time 20s --windows 16    # one detects the loss, one hangs",
        CONTESTS,
    ),
    (
        "mailrun bench mades-compare --broker amqp://127.0.0.1:5672   # your broker, queues mailrun.compare.*, which are purged",
        CONTESTS,
    ),
    (
        "scripts/start-artemis.sh ~/artemis-a 5672        # ActiveMQ Artemis with an ECP endpoint's queues and settings",
        BROKERS,
    ),
    ("scripts/start-artemis.sh ~/artemis-b 5674", BROKERS),
    (
        "mailrun mades-endpoint --broker amqp://endpoint@127.0.0.1:5672 --inbox-broker amqp://endpoint@127.0.0.1:5674 --password-file pw",
        BROKERS,
    ),
    (
        "mailrun mades --broker amqp://endpoint@127.0.0.1:5672 --inbox-broker amqp://endpoint@127.0.0.1:5674 --password-file pw",
        BROKERS,
    ),
    ("scripts/start-artemis.sh --stop ~/artemis-a      # and -b", BROKERS),
    ("mailrun mades --mode amqp --broker amqp://user@127.0.0.1:5672 --inbox test.queue --messages 100000", BROKERS),
    (
        "mailrun mades --mode amqp --broker amqp://user@127.0.0.1:5672 --inbox test.queue --rate 5000 --duration 1m --threshold 'inbox.p99 < 50ms'",
        BROKERS,
    ),
    (
        "mailrun bench mades-compare --compare mailrun,quiver,quiver-python,artemis-perf --windows 128,defaults -m 50k --broker amqp://127.0.0.1:5672",
        BROKERS,
    ),
    (
        "mailrun bench mades --mode amqp --messages 20000",
        "takes 40 seconds; mades_bench.rs runs the mode with fewer messages",
    ),
    (
        "smtp-sink -u nobody 127.0.0.1:20025 100 & smtp-source -s 1000 -m 10000 127.0.0.1:20025",
        "takes a minute, most of it waiting for the kernel",
    ),
    ("mailrun bench filter --compare postfix,postfix:opendkim,postfix:rspamd", RELAYS),
    ("export SERVER=mx.example:25 START=$(date -u -d '+2 minutes' +%FT%TZ)", SCHEDULERS),
    ("envsubst '$SERVER $START' < deploy/kubernetes/shards.yaml | kubectl apply -f -", SCHEDULERS),
    ("kubectl wait --for=condition=complete --timeout=1h job/mailrun-load", SCHEDULERS),
    ("kubectl apply -f deploy/kubernetes/merge.yaml", SCHEDULERS),
    ("kubectl logs --follow job/mailrun-merge", SCHEDULERS),
    ("START=$(date -u -d '+2 minutes' +%FT%TZ) SERVER=mx.example:25 sbatch deploy/slurm/shards.sbatch", SCHEDULERS),
    (
        "seq 0 7 | parallel -S host-a,host-b --return part-{} mailrun bench mx.example --shard {}/8 --start-at $START --rate 800/s --duration 60s --out part-{} --quiet",
        SCHEDULERS,
    ),
    (
        "mpirun -n 8 sh -c 'mailrun bench mx.example --shard $OMPI_COMM_WORLD_RANK/8 --start-at $START --duration 60s --out part-$OMPI_COMM_WORLD_RANK'",
        SCHEDULERS,
    ),
    ("mailrun merge part-* --sink http://sink.example:8025", SCHEDULERS),
    ("mailrun locust file > locustfile.py", LOCUST),
    ("mailrun locust master test.toml -- --html report.html", LOCUST),
    (
        "locust -f locustfile.py --master --headless --expect-workers 2 --enable-rebalancing --mailrun-stages 10s:10,60s:10..200",
        LOCUST,
    ),
    ("mailrun locust worker mx.example --master-host 192.0.2.1 --reuse", LOCUST),
    (
        "mailrun locust worker mx.example --master-host 192.0.2.1 --reuse --rate 10 --sessions 50 --arrival poisson",
        LOCUST,
    ),
    ("sha256sum --check --ignore-missing SHA256SUMS", INSTALLS),
    ("sudo apt-get install ./mailrun_0.1.0-1_amd64.deb", INSTALLS),
    ("man mailrun", INSTALLS),
    ("sudoedit /etc/mailrun/relay.toml", INSTALLS),
    ("sudo systemctl enable --now mailrun-relay", INSTALLS),
    ("sudo usermod --append --groups mailrun-awake \"$USER\"    # then log in again", INSTALLS),
    ("sudo apt-get install ./mailrun-drop-in_0.1.0-1_amd64.deb", INSTALLS),
    ("tar -xzf mailrun-0.1.0-x86_64-unknown-linux-gnu-static.tar.gz", INSTALLS),
    ("sudo install mailrun-0.1.0-x86_64-unknown-linux-gnu-static/mailrun /usr/local/bin/", INSTALLS),
    ("sudo mailrun man /usr/local/share/man/man1", INSTALLS),
    ("mailrun completions bash | sudo tee /usr/share/bash-completion/completions/mailrun >/dev/null", INSTALLS),
    ("mailrun completions zsh | sudo tee /usr/share/zsh/vendor-completions/_mailrun >/dev/null", INSTALLS),
    ("mailrun completions fish | sudo tee /usr/share/fish/vendor_completions.d/mailrun.fish >/dev/null", INSTALLS),
    ("docker load --input mailrun-0.1.0-image-amd64.tar          # or podman load", CONTAINERS),
    ("docker run --rm --read-only --tmpfs /tmp mailrun:0.1.0 bench", CONTAINERS),
    ("docker run --rm mailrun:0.1.0 source mx.internal:25 --messages 1000", CONTAINERS),
    ("mkdir /srv/example && docker export \"$(docker create IMAGE)\" | tar -x -C /srv/example", CONTAINERS),
    (
        "docker run --detach --read-only --volume mail:/data --volume ./relay.toml:/etc/mailrun/relay.toml:ro mailrun:0.1.0",
        CONTAINERS,
    ),
    ("cargo install --path .                       # builds soon, for a first look", BUILDS),
    ("cargo install --path . --profile dist        # for figures that you publish", BUILDS),
    ("sudo apt-get remove mailrun", INSTALLS),
    ("sudo apt-get purge mailrun", INSTALLS),
    ("sudo apt-get install dovecot-imapd dovecot-lmtpd", INSTALLS),
    ("sudo install -d -o mail -g mail /tmp/private-dovecot/mail", DOVECOT),
    ("sudo dovecot -F -c /tmp/private-dovecot/dovecot.conf &", DOVECOT),
    ("sudo mailrun bench --relay dovecot --rate 200 --duration 10s", DOVECOT),
    ("sudo mailrun bench --relay ten.toml --messages 100", DOVECOT),
    ("sudo mailrun bench mailbox --compare dovecot,cyrus", DOVECOT),
    ("sudo mailrun bench mailbox --compare dovecot,cyrus --rate 100 --messages 1000", DOVECOT),
    ("export MAILRUN_MAILBOX_PASSWORD=secret", DOVECOT),
    (
        "mailrun bench lmtp://127.0.0.1:40024 --to 'user{0..99}@a.example' --mailbox 'imap://user{0..99}@127.0.0.1:40143' --rate 200 --duration 10s",
        DOVECOT,
    ),
    (
        "mailrun bench lmtp://127.0.0.1:40024 --to 'user{0..99}@a.example' --mailbox 'imap://user{0..99}@127.0.0.1:40143' --rate 200 --duration 10s --poll 1s",
        DOVECOT,
    ),
    (
        "mailrun bench mx.example --to 'user{0..9}@mx.example' --mailbox 'imaps://user{0..9}@mx.example' --mailbox-password-file passwords --rate 5 --duration 1m --threshold 'delivered.within(10s) >= 100%'",
        DOVECOT,
    ),
    ("sudo postsuper -d ID", "deletes a message of a queue that is empty here"),
];
const POSTFIX_TLS: &str = "the Postfix of this page has no certificate; secured_peers.rs has one with TLS and AUTH";
const DOVECOT: &str = "needs Dovecot; the stand-in of load/sink/mailboxes speaks IMAP";
const INSTALLS: &str =
    "installs, removes or downloads packages; packaging/tests/debian.sh does it in a root of its own";
const CONTAINERS: &str = "needs Docker; packaging/tests/image.sh runs the image by what is there";
const COMPARISONS: &str = "compares runs of minutes; compare.rs compares records";
const BASELINES: &str = "keeps runs of minutes; compare.rs keeps records, and docs_reference.rs runs the jobs of ci.md";
const ROUNDS: &str = "takes a minute; compare_live.rs runs it with small numbers";
const SEARCHES: &str = "takes minutes; capacity.rs runs it with small numbers";
const SCHEDULERS: &str = "needs several machines; shards.rs runs what they start, with the environment that they set";
const BUILDS: &str = "builds mailrun, as whoever runs the tests has done";
const LOCUST: &str = "needs a Locust master on another host; locust_masters.rs runs one where Locust is installed";
const RELAYS: &str = "takes minutes, or gigabytes; relay_bench.rs runs it with small numbers";
const CONTESTS: &str = "takes minutes; mades_compare.rs runs it with small numbers";
const BROKERS: &str = "needs ActiveMQ Artemis; mades_brokers.rs runs against one where there is one";

/// Lines that a test cannot run as printed, each with the line that it runs instead. For example, a line is only part
/// of a command, needs a server that the page has not started, or takes too long.
const INSTEAD: &[(&str, &str)] = &[
    ("mailrun COMMAND -h", "mailrun bench -h"),
    ("mailrun install-links DIR", "mailrun install-links links"),
    (
        "mailrun queue show ID",
        "ID=$(mailrun queue list --json --spool standing-spool | jq -r .id | head -n 1) && \
         mailrun queue show \"$ID\" --spool standing-spool",
    ),
    ("mailrun queue retry ID…", "mailrun queue retry \"$ID\" --spool standing-spool"),
    ("mailrun queue hold …", "mailrun queue hold all --spool standing-spool"),
    ("mailrun queue release …", "mailrun queue release \"$ID\" --spool standing-spool"),
    (
        "mailrun capacity 127.0.0.1:25 --sink-listen 127.0.0.1:2526 --goal 'delivered.p99 < 1s'",
        "mailrun capacity --goal 'delivered.p99 < 1s' --quick --trial 200ms --confirm 0s --min-rate 20/s --max-rate 40/s",
    ),
    (
        "mailrun capacity --relay mailrun --quick --reuse --goal 'delivered.p99 < 1s' --peak 300/s --safety 0.6",
        "mailrun capacity --quick --reuse --trial 200ms --confirm 200ms --min-rate 20/s --max-rate 40/s \
         --goal 'delivered.p99 < 1s' --peak 300/s --safety 0.6",
    ),
    (
        "mailrun capacity --relay mailrun --quick --reuse --goal 'delivered.p99 < 1s' --server-cores 1,2",
        "mailrun capacity --quick --reuse --trial 200ms --confirm 0s --min-rate 20/s --max-rate 40/s \
         --goal 'delivered.p99 < 1s' --server-cores 1",
    ),
    (
        "mailrun capacity --quick --reuse --trial 500ms --confirm 1s --goal 'delivered.p99 < 1s' --peak 20000/s",
        "mailrun capacity --quick --reuse --trial 200ms --confirm 0s --min-rate 20/s --max-rate 40/s \
         --goal 'delivered.p99 < 1s' --peak 20000/s",
    ),
    (
        "mailrun capacity --quick --json - | jq .capacity.rate_per_s",
        "mailrun capacity --quick --trial 200ms --confirm 0s --min-rate 20/s --max-rate 40/s --json - | \
         jq .capacity.rate_per_s",
    ),
    ("mailrun disk /var/lib/mailrun", "mkdir -p var-lib-mailrun && mailrun disk var-lib-mailrun --duration 300ms"),
    (
        "mailrun disk /var/lib/mailrun --rate 500/s --message-size 16k",
        "mkdir -p var-lib-mailrun && mailrun disk var-lib-mailrun --rate 1/s --message-size 16k --duration 300ms",
    ),
    ("mailrun queue remove …", "mailrun queue remove all --spool standing-spool"),
];

/// Lines of the pages, each with the lines that the test runs before it. The page describes these earlier lines in
/// words or has them in another section.
const BEFORE: &[(&str, &[&str])] = &[
    (
        "mailrun mades --broker amqps://endpoint@broker.example:5672 --password-file pw --cacert ecp-ca.pem \\\n    \
         --receiver 10V000000000001A --message-type TEST-MESSAGE --messages 100 --max-in-transit 10 --out results",
        &[
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=broker.example \
             -addext subjectAltName=DNS:broker.example -keyout ecp.key -out ecp-ca.pem",
            "mailrun mades-endpoint --embedded --tls-cert ecp-ca.pem --tls-key ecp.key --user endpoint --password-file pw",
        ],
    ),
    (
        "mailrun mades --rate 5 --arrival poisson --duration 10m --message-timeout 2m --out at-5",
        &["mailrun mades-endpoint --embedded --network-rate 60"],
    ),
    (
        "mailrun mades --rate 5 --duration 1h --threshold 'received.within(2min) >= 99.9%' --threshold 'fresh(30s) per 15min >= 98%'",
        &["mailrun mades-endpoint --embedded"],
    ),
    (
        "mailrun mades --acknowledge --rate 5 --duration 1h --threshold 'acknowledged.within(2min) >= 99.9%'",
        &["mailrun mades-endpoint --embedded"],
    ),
    (
        "swaks --server 127.0.0.1:2525 --tls --from ann@a.example --to bob@b.example",
        &["mailrun relay --config secured.toml"],
    ),
    (
        "mailrun queue show ID",
        &[
            "mailrun sink --listen 127.0.0.1:2525 --fault 'rcpt: soft reject 100%'",
            "mailrun source 127.0.0.1:25 --messages 5",
        ],
    ),
    (
        "mailrun spool check /var/lib/mailrun",
        &[
            "mailrun relay --listen 127.0.0.1:2525 --to 127.0.0.1:2526 --spool /var/lib/mailrun",
            "mailrun source 127.0.0.1:2525 --messages 3",
            "kill $!; wait $!",
        ],
    ),
];

/// Lines that must end with an exit status other than 0.
const STATUS: &[(&str, i32)] = &[
    // The test shortens this run to one second. This is less than the window of 15 minutes, so the run has no verdict.
    (
        "mailrun mades --rate 5 --duration 1h --threshold 'received.within(2min) >= 99.9%' --threshold 'fresh(30s) per 15min >= 98%'",
        3,
    ),
    ("mailrun mades --messages 1000 --message-timeout 3s", 1),
    ("mailrun audit mailrun:memory --rounds 1 --inject kill", 1),
    (
        "mailrun bench 127.0.0.1:2525 --sink http://127.0.0.1:8025 --rate 200 --duration 3s --threshold 'accepted.p99 < 1us'",
        1,
    ),
];

/// Paths on the pages that no test may use, and the relative paths that replace them.
const WORDS: &[(&str, &str)] = &[("/var/lib/mailrun", "var-lib-mailrun"), ("/root/", "root-")];

/// Files that pages use without creating them.
const FILES: &[(&str, &str)] = &[
    ("mail.mbox", "From a@a.example Sun Nov 22 10:00:00 2026\nSubject: one\n\nHello.\n"),
    ("users", "ann:secret\n"),
    ("pw", "password\n"),
    ("standing.toml", STANDING),
    ("secured.toml", SECURED),
    ("relay.toml", "spool.directory = \"spool\"\n"),
];

/// Configuration of the relay that stands for the reader's own server at port 25. It passes mail on to the sink at port
/// 2525.
const STANDING: &str = r#"
listen = ["127.0.0.1:25"]
spool = { directory = "standing-spool" }
tls = { cert = "ca.pem", key = "ca.key" }
auth = { users = "users" }
[[route]]
to = "*"
smtp = "127.0.0.1:2525"
"#;
const STANDING_CERTIFICATE: &str = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=mx.example -addext subjectAltName=DNS:mx.example,DNS:localhost,IP:127.0.0.1 -keyout ca.key -out ca.pem";
const STANDING_RELAY: &str = "mailrun relay --config standing.toml";
const STANDING_SINK: &str = "mailrun sink --listen 127.0.0.1:2525 --http 127.0.0.1:8025";

/// Configuration of the relay that docs/relay.md describes, with the certificate that the page creates.
const SECURED: &str = r#"
listen = ["127.0.0.1:2525"]
spool = { directory = "secured-spool" }
tls = { cert = "certificate.pem", key = "key.pem" }
[[route]]
to = "*"
discard = true
"#;

/// The page that changes the configuration of Postfix. A private Postfix runs for it, whose directory `conf` is mounted
/// at /etc/postfix. All sections of the page run as one, because they change the same Postfix.
const POSTFIX_PAGE: &str = "docs/bench-your-postfix.md";
const START_POSTFIX: &str = "mkdir -p home/queue && chmod 755 home && cp -rn /etc/postfix/* conf/ && sed -i \"s,DIR,$HOME/home,\" conf/main.cf && \
    sed -i '1i 127.0.0.1:25 inet n - n - - smtpd' conf/master.cf && mount --bind conf /etc/postfix && postfix start";

/// Maximum duration of a load or of one of its stages, in seconds. The test shortens longer loads to it.
const MAX_SECONDS: u64 = 1;
/// Loads of more than `MAX_MESSAGES` messages send `FEW_MESSAGES` instead.
const MAX_MESSAGES: u64 = 2000;
const FEW_MESSAGES: &str = "500";

const MAKEFILE: &str = include_str!("../../Makefile");

const THREADS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Treatment {
    /// The test runs this command line, and expects this exit status.
    Run(String, i32),
    /// The line is only the name of a command, which must exist.
    Name(String),
    /// The line is in [`NOT_RUN`], or names a target of the Makefile. If the line begins with a command of mailrun, the
    /// value is this command, which is only parsed.
    Listed(Option<String>),
    /// The line leaves a part out (`…`) or names an unknown target of make, and no table says what to run instead.
    Unknown,
}

fn find<T: Copy>(table: &[(&str, T)], text: &str) -> Option<T> {
    table.iter().find(|(typed, _)| *typed == text).map(|(_, value)| *value)
}

/// The line up to a pipe, redirection, comment or next command. Quoted text is kept whole.
fn first_command(text: &str) -> &str {
    let mut is_quoted = false;
    let end = text.find(|c: char| {
        is_quoted ^= c == '\'';
        !is_quoted && "|;&#>".contains(c)
    });
    text[..end.unwrap_or(text.len())].trim()
}

fn treatment(command: &Command) -> Treatment {
    let text = command.text.as_str();
    if let Some(words) = text.strip_prefix("make ") {
        let target = words.split(' ').next().unwrap_or_default();
        return if MAKEFILE.contains(&format!("\n{target}:")) { Treatment::Listed(None) } else { Treatment::Unknown };
    }
    if find(NOT_RUN, text).is_some() {
        let is_ours = text.starts_with("mailrun ") && !text.contains('…');
        return Treatment::Listed(is_ours.then(|| first_command(text).to_owned()));
    }
    let status = find(STATUS, text).unwrap_or(0);
    if let Some(instead) = find(INSTEAD, text) {
        return Treatment::Run(shortened(instead), status);
    }
    if command.place == Place::Sentence && is_name(text) {
        return Treatment::Name(text.trim_end_matches(" …").to_owned());
    }
    if text.contains('…') {
        return Treatment::Unknown;
    }
    Treatment::Run(prepared(text), status)
}

fn prepared(text: &str) -> String {
    let replaced = WORDS.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value));
    shortened(&with_spool(&replaced))
}

/// Reports whether the line is only the name of a command, such as `mailrun bench mades` or `mailrun smtp-sink …`.
fn is_name(text: &str) -> bool {
    let mut words = text.trim_end_matches(" …").split(' ');
    let is_plain = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    words.next() == Some("mailrun")
        && words.clone().count() <= 2
        && words.all(|word| is_plain(word) && !word.starts_with('-'))
}

fn last_word(text: &str) -> &str {
    text.rsplit(' ').next().unwrap_or(text)
}

/// Adds `--spool` to a queue command that does not say which spool it means.
fn with_spool(text: &str) -> String {
    let says_which = ["--spool", "--config", "--control", "--help"].iter().any(|option| text.contains(option));
    match text.starts_with("mailrun queue ") && !says_which {
        true => format!("{text} --spool standing-spool"),
        false => text.to_owned(),
    }
}

/// Shortens a load. `--duration 60s` and each `--stage` become one second, and more than 2,000 messages become 500.
fn shortened(text: &str) -> String {
    let is_load = ["mailrun bench", "mailrun source", "mailrun mades "].iter().any(|start| text.contains(start));
    let is_original = ["smtp-source ", "go-mades-bench "].iter().any(|start| text.contains(start));
    let mut option = "";
    let mut words = Vec::new();
    for word in text.split(' ') {
        words.push(match option {
            "--messages" | "-m" | "-n" if is_load || is_original => fewer(word),
            "--duration" | "-d" if is_load => shorter(word),
            "--stage" if is_load => staged(word),
            _ => word.to_owned(),
        });
        option = word;
    }
    words.join(" ")
}

fn fewer(word: &str) -> String {
    let number = word.replace('_', "").replace('k', "000").replace('M', "000000");
    let is_many = number.parse::<u64>().is_ok_and(|number| number > MAX_MESSAGES);
    if is_many { FEW_MESSAGES.to_owned() } else { word.to_owned() }
}

fn shorter(word: &str) -> String {
    let digits = word.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let is_long = match &word[digits.len()..] {
        "s" => digits.parse::<u64>().is_ok_and(|seconds| seconds > MAX_SECONDS),
        "ms" => false,
        _ => true,
    };
    if is_long { format!("{MAX_SECONDS}s") } else { word.to_owned() }
}

fn staged(word: &str) -> String {
    match word.split_once(':') {
        Some((length, rates)) => format!("{}:{rates}", shorter(length)),
        None => word.to_owned(),
    }
}

/// Ports of the server that a command line starts. A command that ends by itself, such as `--help`, starts none.
fn ports(text: &str) -> Vec<u16> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_server = ["sink", "relay", "probe", "mades-endpoint", "smtp-sink"];
    let ends = ["--check", "--help", "--max-messages", "-h"].iter().any(|option| words.contains(option));
    let starts = words.iter().position(|word| *word == "mailrun").and_then(|at| words.get(at + 1));
    if ends || !starts.is_some_and(|word| is_server.contains(word)) {
        return Vec::new();
    }
    let mut ports: Vec<u16> = Vec::new();
    for pair in words.windows(2) {
        if ["--listen", "--http", "-c"].contains(&pair[0]) {
            ports.extend(pair[1].rsplit(':').next().and_then(|port| port.parse::<u16>().ok()));
        }
    }
    let usual = match *starts.unwrap() {
        "mades-endpoint" => 5672,
        "probe" => 9725,
        _ if text.contains("standing.toml") => 25,
        _ => 2525,
    };
    ports.extend((!words.contains(&"--listen") && !words.contains(&"-c")).then_some(usual));
    ports
}

/// Returns the steps that start the servers which a section expects: the private Postfix on [`POSTFIX_PAGE`], and
/// elsewhere the reader's server at port 25 and its sink, if the section mentions them.
fn standing(section: &Section) -> Vec<Step> {
    let is_of = |what: &[&str]| {
        let has = |command: &Command| what.iter().any(|what| command.text.contains(what));
        section.commands.iter().any(has)
    };
    if section.page == POSTFIX_PAGE {
        return vec![Step { text: START_POSTFIX.to_owned(), ports: Vec::new() }];
    }
    let asks_queue = section.commands.iter().any(|command| with_spool(&command.text) != command.text);
    let mut steps = Vec::new();
    let mut add = |text: &str| steps.push(Step { text: text.to_owned(), ports: ports(text) });
    let needs_relay =
        asks_queue || is_of(&["127.0.0.1:25 ", "127.0.0.1:25'", "mx.example", "mailrun bench 127.0.0.1:25"]);
    if needs_relay || is_of(&["127.0.0.1:2525", "127.0.0.1:8025"]) {
        add(STANDING_SINK);
    }
    if needs_relay {
        add(STANDING_CERTIFICATE);
        add(STANDING_RELAY);
    }
    steps
}

/// The steps of a section, each with the expected status and, if the step is on the page, its command.
fn steps(section: &Section) -> Vec<(Option<&Command>, Step, i32)> {
    let mut steps: Vec<_> = standing(section).into_iter().map(|step| (None, step, 0)).collect();
    for command in &section.commands {
        for line in BEFORE.iter().filter(|(typed, _)| *typed == command.text).flat_map(|(_, lines)| *lines) {
            let text = prepared(line);
            steps.push((None, Step { ports: ports(&text), text }, 0));
        }
        let (text, status) = match treatment(command) {
            Treatment::Run(text, status) => (text, status),
            // Programs such as our smtp-sink print the help of the program that they replace. Some of them print it to
            // standard error or exit with an error. So look only for the line with the usage.
            Treatment::Name(text) => (
                format!("({text} --help || true) 2>&1 | grep -i -e 'usage: {text}' -e 'usage.*{}'", last_word(&text)),
                0,
            ),
            // Drop the words after ` -- `, because they are for another program.
            Treatment::Listed(Some(text)) => (format!("{} --help", text.split(" -- ").next().unwrap_or_default()), 0),
            Treatment::Listed(None) | Treatment::Unknown => continue,
        };
        steps.push((Some(command), Step { ports: ports(&text), text }, status));
    }
    steps
}

fn faults(flags: &[&str], section: &Section) -> Vec<String> {
    let steps = steps(section);
    let run: Vec<Step> = steps.iter().map(|(_, step, _)| step.clone()).collect();
    let [main, master] = base_configuration("DIR");
    let files = [FILES, &[("conf/main.cf", main.as_str()), ("conf/master.cf", master.as_str())]].concat();
    let done = run_steps(flags, &files, &run);
    let wrong = steps.iter().zip(done).filter(|((_, _, status), done)| !is_right(*status, done));
    let told = wrong.map(|((command, step, status), done)| {
        let line = command.map_or(0, |command| command.line);
        let said: Vec<&str> = done.said.lines().rev().take(8).collect();
        let said = said.into_iter().rev().collect::<Vec<_>>().join("\n      ");
        format!(
            "{} ({}):{line}: {}\n   status {:?}, not {status}:\n      {said}",
            section.page, section.heading, step.text, done.code
        )
    });
    told.collect()
}

/// Returns true if a command ended as the page says, or if the command could not give a verdict because the machine was
/// busy.
fn is_right(status: i32, done: &Done) -> bool {
    let is_open = ["INVALID", "INCONCLUSIVE"].iter().any(|outcome| done.said.contains(outcome));
    done.code == Some(status) || (status < 2 && done.code == Some(3) && is_open)
}

fn sections() -> Vec<Section> {
    let sections: Vec<Section> = pages().iter().flat_map(|page| page.sections()).collect();
    let (postfix, mut sections): (Vec<_>, Vec<_>) =
        sections.into_iter().partition(|section| section.page == POSTFIX_PAGE);
    sections.extend(postfix.into_iter().reduce(|mut whole, section| {
        whole.commands.extend(section.commands);
        whole
    }));
    sections
}

fn can_run(section: &Section, flags: &[&str]) -> bool {
    if section.page != POSTFIX_PAGE {
        return true;
    }
    if flags.contains(&"--user") {
        skip("postfix", "only root may start one");
        return false;
    }
    peer("postfix").is_some()
}

#[test]
#[ignore = "slow: make test-slow PART=docs"]
fn every_command_line_runs() {
    let Some(flags) = namespaces() else { return };
    let only = std::env::var("MAILRUN_DOCS_PAGE").unwrap_or_default();
    let mut waiting: Vec<Section> =
        sections().into_iter().filter(|section| section.page.contains(&only) && can_run(section, &flags)).collect();
    // The threads take sections from the end of the list. Sort the longest sections to the end, so that they start
    // first. Otherwise, a long section might still run alone when all others have ended.
    waiting.sort_by_key(|section| section.commands.len());
    let waiting = Mutex::new(waiting);
    let faults = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let Some(section) = waiting.lock().unwrap().pop() else { break };
                    let found = self::faults(&flags, &section);
                    faults.lock().unwrap().extend(found);
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
#[ignore = "slow: make test-slow PART=docs"]
fn every_line_that_is_not_run_is_listed_and_every_listed_line_exists() {
    let commands: Vec<Command> = sections().into_iter().flat_map(|section| section.commands).collect();
    assert!(commands.len() > 150, "{} command lines", commands.len());
    let printed: BTreeSet<&str> = commands.iter().map(|command| command.text.as_str()).collect();
    let unknown = commands.iter().filter(|command| treatment(command) == Treatment::Unknown);
    let unknown: Vec<String> = unknown.map(|command| format!("line {}: {}", command.line, command.text)).collect();
    assert!(unknown.is_empty(), "neither run nor listed:\n{}", unknown.join("\n"));
    let lists = NOT_RUN.iter().chain(INSTEAD).map(|(typed, _)| *typed);
    let lists = lists.chain(STATUS.iter().map(|(typed, _)| *typed)).chain(BEFORE.iter().map(|(typed, _)| *typed));
    let stale: Vec<&str> = lists.filter(|typed| !printed.contains(typed)).collect();
    assert!(stale.is_empty(), "listed, and on no page:\n{}", stale.join("\n"));
}

#[test]
fn loads_are_cut_short() {
    let table = [
        ("mailrun bench --duration 60s --messages 10k", "mailrun bench --duration 1s --messages 500"),
        ("mailrun source a:1 -m 2000 -d 500ms", "mailrun source a:1 -m 2000 -d 500ms"),
        ("mailrun bench --stage 10s:100/s --stage 1m:1/s..9/s", "mailrun bench --stage 1s:100/s --stage 1s:1/s..9/s"),
        ("mailrun smtp-source -d -m 10000 a:1", "mailrun smtp-source -d -m 500 a:1"),
        ("curl -m 5000 x", "curl -m 5000 x"),
    ];
    for (typed, run) in table {
        assert_eq!(shortened(typed), run);
    }
}

/// Each line of the sample report in README must begin with the same word as a line in the report of a real run.
#[test]
#[ignore = "slow: make test-slow PART=docs"]
fn the_sample_looks_like_a_run() {
    let sample = page("README.md").blocks("text").into_iter().find(|block| block.starts_with("mailrun bench:"));
    let out = tempfile::tempdir().unwrap();
    let ended = crate::party::mailrun(&["bench", "--duration", "2s", "--out", out.path().to_str().unwrap()]);
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let printed: BTreeSet<String> = ended.out.lines().map(first).collect();
    let sample = sample.expect("a sample in README");
    assert_eq!(sample.lines().next(), ended.out.lines().next(), "the first line has no figures");
    let missing: Vec<&str> =
        sample.lines().filter(|line| !line.starts_with("  ") && !printed.contains(&first(line))).collect();
    // On a busy machine, these lines may be missing: the run may not pass, or there may be too many remarks.
    assert!(
        missing.iter().all(|line| ["PASS", "CPU,", "slowest"].contains(&first(line).as_str())),
        "{missing:?}: {ended:?}"
    );
}
