//! Tests that relay, queue and spool refuse wrong inputs with an error of one line that contains the given words.
use crate::wrong_inputs::assert_refused;
use std::fs;

/// A command line, and words that the error message must contain. `GOOD` stands for a valid relay.toml. `DIR` stands
/// for a directory that contains a file `file` and an empty directory `empty`.
type Row = (&'static str, &'static [&'static str]);

const NO_RELAY: &str = "--config <FILE>, or --to <WHERE> and --spool <DIR>, is required";
const NO_ID: &str = "an id, all, or --hop <NAME> is required";

const COMMANDS: &[Row] = &[
    ("relay", &[NO_RELAY]),
    ("relay --to 127.0.0.1:1", &["--spool <DIR> is required"]),
    ("relay --spool DIR/s", &["--to <WHERE> is required"]),
    ("relay --check", &["--config <FILE>"]),
    ("relay --config DIR/gone.toml", &["gone.toml:1:1: it cannot be read: No such file or directory\n"]),
    ("relay --config DIR/empty", &["empty:1:1: it cannot be read: "]),
    ("relay --config GOOD --to discard --spool DIR/s", &["--config <FILE> cannot be used together with", "--to"]),
    ("relay --config GOOD --listen 127.0.0.1:1", &["--listen", "cannot be used together with", "--config"]),
    ("relay --to discard --spool DIR/s --durability never", &["\"never\" is not one of sync, write, memory"]),
    ("relay --to discard --spool DIR/s --log loud", &["\"loud\" is not one of error, warn, info, debug"]),
    ("relay --to discard --spool DIR/s --workers 0", &["--workers: \"0\": must be more than zero"]),
    ("relay --to discard --spool DIR/s --workers 2000", &["--workers", "2000", "1024"]),
    ("relay --to discard --spool DIR/s --workers -1", &["-1", "must be positive"]),
    ("relay --to discard --spool DIR/s --http 127.0.0.1", &["--http", "no port"]),
    ("relay --to discard --spool DIR/s --http 127.0.0.1:http", &["--http", "must be a number"]),
    ("relay --to discard --spool DIR/s --listen 127.0.0.1", &["--listen", "no port"]),
    ("relay --to discard --spool DIR/s --listen 127.0.0.1:99999", &["--listen", "99999"]),
    ("relay --to 8.8.8.8 --spool DIR/s", &["--to 8.8.8.8 is a public address", "--allow-public"]),
    ("relay --to http://mx.example --spool DIR/s", &["--to", "is not a next hop", "smtp://"]),
    ("relay --to 127.0.0.1:0 --spool DIR/s", &["--to \"127.0.0.1:0\" is not a valid host"]),
    ("relay --to mx.example:smtp --spool DIR/s", &["--to \"mx.example:smtp\" is not a valid host"]),
    ("relay --to lmtp:unix: --spool DIR/s", &["--to "]),
    ("relay --cofnig GOOD", &["unknown option \"--cofnig\"; did you mean \"--config\"?"]),
    ("relay --relayhost mx.example", &["unknown option \"--relayhost\"; use --to"]),
    ("relay mx.example", &["unexpected argument \"mx.example\""]),
    ("relay --to discard --spool DIR/s -q -v", &["--verbose", "cannot be used together with", "--quiet"]),
    ("relay --to discard --spool DIR/s -v --log error", &["--verbose", "cannot be used together with", "--log"]),
    ("relay --to", &["--to <WHERE> needs a value"]),
    ("queue list", &["no relay named: give --spool DIR, --control PATH or --config FILE"]),
    ("queue list --spool DIR/s", &["no relay answers at", "control.sock", "check that it is running"]),
    ("queue list --config DIR/gone.toml", &["gone.toml:1:1: it cannot be read"]),
    ("queue list --max-rows 0 --spool DIR/s", &["--max-rows: \"0\": must be more than zero"]),
    ("queue list --max-rows many --spool DIR/s", &["--max-rows", "\"many\""]),
    ("queue list --state odd --spool DIR/s", &["\"odd\" is not one of ready, deferred, sending, held, telling"]),
    ("queue list --spool DIR/s --control DIR/c", &["cannot be used together with"]),
    ("queue list --hop", &["--hop <NAME> needs a value"]),
    ("queue show --spool DIR/s", &["<ID> is required"]),
    ("queue show 12 --spool DIR/s", &["\"12\" is not a queue id, which has 16 hexadecimal digits"]),
    ("queue show all --spool DIR/s", &["\"all\" is not a queue id"]),
    ("queue hold --spool DIR/s", &[NO_ID]),
    ("queue release --spool DIR/s", &[NO_ID]),
    ("queue retry --spool DIR/s", &[NO_ID]),
    ("queue remove --spool DIR/s", &[NO_ID]),
    ("queue remove all --hop mx:a --spool DIR/s", &["cannot be used together with"]),
    ("queue flush all --spool DIR/s", &["unexpected argument \"all\""]),
    ("queue lst --spool DIR/s", &["unknown command \"lst\"; did you mean \"list\"?"]),
    ("queue delete all --spool DIR/s", &["unknown command \"delete\""]),
    ("spool check", &["<DIR> is required"]),
    ("spool check DIR/gone", &["cannot read the spool", "gone: no such directory"]),
    ("spool check DIR/file", &["file"]),
    ("spool check DIR/empty more", &["unexpected argument \"more\""]),
    ("spool chek DIR/empty", &["unknown command \"chek\"; did you mean \"check\"?"]),
    ("spool salvage DIR/empty", &["--out <WHERE> is required"]),
    ("spool salvage DIR/empty --out there", &["--out", "write maildir:DIR or spool:DIR"]),
    ("spool salvage DIR/empty --out maildir:", &["--out", "write maildir:DIR or spool:DIR"]),
    ("spool export DIR/gone --out DIR/out", &["cannot read the spool", "gone: no such directory"]),
    ("spool export DIR/empty", &["--out <DIR> is required"]),
];

/// Text after the `spool.directory` line of a relay.toml, and words that the error about this text
/// must contain.
const FILES: &[Row] = &[
    ("listn = '127.0.0.1:0'", &["relay.toml:2:1: unknown key \"listn\"; did you mean \"listen\"?"]),
    ("foo = 1", &["relay.toml:2:1: unknown key \"foo\"; known keys: "]),
    ("hostname = 5", &["relay.toml:2:12: \"5\" is not a valid host name"]),
    ("hostname = ", &["relay.toml:2:12: not valid TOML"]),
    ("listen = '127.0.0.1'", &["relay.toml:2:10: ", "127.0.0.1"]),
    ("listen_tls = '127.0.0.1:0'", &["relay.toml:2:1: listen_tls requires [tls] with cert and key"]),
    ("networks = '0.0.0.0/0'", &["relay.toml:2:12: ", "open relay"]),
    ("workers = 'two'", &["relay.toml:2:11: \"two\""]),
    ("log = 'loud'", &["relay.toml:2:7: \"loud\" is not one of error, warn, info, debug"]),
    ("allow_public = 1", &["relay.toml:2:16: allow_public must be true or false"]),
    ("proxy_protocol = 'v2'", &["relay.toml:2:18: proxy_protocol must be true or false"]),
    ("xclient = 'mx.example'", &["relay.toml:2:11: \"mx.example\" is not a valid network"]),
    ("control = 5", &["relay.toml:2:11: control has the wrong type"]),
    ("limits.max_message_size = '10X'", &["relay.toml:2:27: \"10X\""]),
    ("limits.max_recipients = 1", &["relay.toml:2:25: ", "too small"]),
    ("retry.first = 'soon'", &["relay.toml:2:15: \"soon\" is not a valid time"]),
    ("delivery.overall = 0", &["relay.toml:2:20: \"0\""]),
    ("[tls]\nkey = 'k'", &["relay.toml:2:1: TLS requires both: cert = "]),
    ("[auth]\nusers = 'gone'", &["relay.toml:3:9: cannot read ", "gone: No such file or directory"]),
    ("[route]\nto = '*'", &["relay.toml:2:1: route is a list of tables; write [[route]]"]),
    ("[[route]]\nto = '*'", &["relay.toml:2:1: the route has no destination"]),
    ("[[route]]\nsmtp = 'a'", &["relay.toml:2:1: the route has no domains"]),
    ("[[route]]\nto = '*'\nsmtp = 'a:b:c'", &["relay.toml:4:8: \"a:b:c\" is not a valid host"]),
    ("[[route]]\nto = '*'\nsmtp = '8.8.8.8'", &["relay.toml:4:8: 8.8.8.8 is a public address"]),
    ("[[route]]\nto = '*'\nsmtp = 'a'\ntls = 'maybe'", &["relay.toml:5:7: \"maybe\" is not one of none, opp"]),
    ("[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'", &["relay.toml:5:8: user requires a password", "MAILRUN_PASSWORD"]),
    ("[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'\npassword = 'p'", &["relay.toml:6:1: a password must not be in"]),
    ("[[route]]\nto = '*'\nsmtp = 'a'\nuser = 'u'\npassword_env = 'P'", &["relay.toml:6:1: ", "MAILRUN_PASSWORD"]),
    ("[[route]]\nto = '*'\nsmtp = 'a'\ninsecure = true\ntls = 'none'", &["relay.toml:5:1: insecure has no effect"]),
    ("[local]\ndomains = 'a.example'", &["relay.toml:3:11: mail to a.example has no destination"]),
];

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn each_wrong_input_has_one_cause_in_one_line() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().to_str().unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    fs::create_dir(place.path().join("empty")).unwrap();
    fs::write(place.path().join("good.toml"), "spool.directory = \"s\"\n").unwrap();
    let good = format!("{directory}/good.toml");
    assert_refused(
        COMMANDS
            .iter()
            .map(|(line, pieces)| (words(&line.replace("DIR", directory).replace("GOOD", &good)), pieces.to_vec())),
    );
}

#[test]
fn each_mistake_in_a_configuration_has_one_cause_and_its_place() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("relay.toml");
    let typed = words(&format!("relay --config {}", file.display()));
    assert_refused(FILES.iter().map(|(text, pieces)| {
        fs::write(&file, format!("spool.directory = \"s\"\n{text}\n")).unwrap();
        (typed.clone(), pieces.to_vec())
    }));
}
