//! A private Postfix with its own configuration, queue and log in a directory of the test, on its own ports. It neither
//! reads nor writes `/etc/postfix`.
use crate::party::{Ended, is_root, low_port, peer, run, skip, wait_until};
use mailrun_bench::recipe::{Places, Recipe};
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deliver {
    /// Discards mail and logs it as sent.
    Discard,
    /// Delivers to a server on this port.
    To(u16),
    /// Delivers to a server on this port, without the header lines whose names begin with `X-`.
    Stripped(u16),
    /// Delivers to a server on this port, but replaces or copies some recipients, as [`REWRITES`] says.
    Rewritten(u16),
}

/// Parameters of main.cf that `Deliver::Rewritten` sets, each with the text of its lookup table.
const REWRITES: [(&str, &str); 3] = [
    (
        "virtual_alias_maps",
        "/^one@/ other@x.example\n/^two@/ a@x.example, b@x.example\n/^too@/ too@bench.example, b@x.example\n",
    ),
    ("recipient_canonical_maps", "/^(u[0-9]+)@bench\\.example$/ $1@y.example\n"),
    ("recipient_bcc_maps", "/^bcc/ audit@x.example\n"),
];

/// A running Postfix. It is stopped when dropped.
pub(crate) struct Postfix {
    place: TempDir,
    program: String,
    /// Addresses on which Postfix listens, one for each list of options passed to `start`.
    pub(crate) listening: Vec<SocketAddr>,
}

/// Settings that follow the shared part of main.cf: recipients that Postfix refuses by name, no delays, and limits high
/// enough for hostile clients.
const MAIN: &str = "
smtpd_recipient_restrictions = check_recipient_access regexp:DIR/conf/refuse
smtpd_helo_required = yes
smtpd_error_sleep_time = 0
smtpd_soft_error_limit = 1000
smtpd_hard_error_limit = 1000
smtpd_recipient_limit = 1000
smtp_tls_security_level = none
default_process_limit = 100
initial_destination_concurrency = 20
in_flow_delay = 0
";

/// Returns the configuration that all private Postfixes share: the main.cf of mailrun's recipe for Postfix up to the
/// settings for speed, and the recipe's master.cf without the listener.
pub(crate) fn base_configuration(directory: &str) -> [String; 2] {
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let places =
        Places { state: directory.into(), ..Places::in_directory(directory.into(), nowhere, nowhere, Path::new("")) };
    let files = Recipe::load("postfix").unwrap().files(&places);
    let text = |name: &str| files.iter().find(|(path, ..)| path.ends_with(name)).unwrap().1.as_str();
    let [main, master] = ["main.cf", "master.cf"].map(text);
    let (_listener, services) = master.split_once('\n').unwrap();
    [main.split("# ").next().unwrap().to_owned(), services.to_owned()]
}

impl Postfix {
    /// Starts a Postfix with one port for each list of `smtpd` options. Returns `None`, and notes the skipped test, if
    /// Postfix cannot run here.
    pub(crate) fn start(deliver: Deliver, services: &[Vec<String>]) -> Option<Self> {
        let program = peer("postfix")?;
        if !is_root() {
            skip("postfix", "only root may start one");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        // Postfix's daemons run as other users and need access to this directory.
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        // Postfix creates the other directories itself, with the owners that it requires.
        fs::create_dir(place.path().join("queue")).unwrap();
        let ports: Vec<u16> = services.iter().map(|_| low_port()).collect();
        let mut postfix = Self { place, program, listening: Vec::new() };
        postfix.configure(deliver, services, &ports);
        let started = postfix.command("start");
        assert_eq!(started.code, Some(0), "{started:?} {}", postfix.log());
        postfix.listening = ports.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).collect();
        for address in &postfix.listening {
            wait_until("Postfix to listen", || TcpStream::connect(address).ok());
        }
        Some(postfix)
    }

    fn configure(&self, deliver: Deliver, services: &[Vec<String>], ports: &[u16]) {
        let conf = self.place.path().join("conf");
        fs::create_dir(&conf).unwrap();
        let transport = match deliver {
            Deliver::Discard => "default_transport = discard\n".to_owned(),
            Deliver::To(port) => format!("relayhost = [127.0.0.1]:{port}\n"),
            Deliver::Stripped(port) => {
                fs::write(conf.join("headers"), "/^X-/ IGNORE\n").unwrap();
                let headers = conf.join("headers");
                format!("relayhost = [127.0.0.1]:{port}\nheader_checks = regexp:{}\n", headers.display())
            }
            Deliver::Rewritten(port) => {
                let mut text = format!("relayhost = [127.0.0.1]:{port}\n");
                for (name, table) in REWRITES {
                    fs::write(conf.join(name), table).unwrap();
                    text += &format!("{name} = regexp:{}\n", conf.join(name).display());
                }
                text
            }
        };
        let directory = self.place.path().to_str().unwrap();
        let [own, services_of_own] = base_configuration(directory);
        let main = own + &MAIN.replace("DIR", directory) + &transport;
        let inet = |(port, options): (&u16, &Vec<String>)| {
            let options: String = options.iter().map(|option| format!(" -o {option}")).collect();
            format!("127.0.0.1:{port} inet n - n - - smtpd{options}\n")
        };
        let master: String = ports.iter().zip(services).map(inet).chain([services_of_own]).collect();
        fs::write(conf.join("main.cf"), main).unwrap();
        fs::write(conf.join("master.cf"), master).unwrap();
        fs::write(conf.join("refuse"), "/^refuse-([0-9]+)@/ $1 refused by name\n").unwrap();
    }

    fn command(&self, what: &str) -> Ended {
        run(&self.program, &["-c", self.path("conf").to_str().unwrap(), what])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// First address on which Postfix listens, as HOST:PORT.
    pub(crate) fn address(&self) -> String {
        self.listening[0].to_string()
    }

    /// Number of times that `text` occurs in the log.
    pub(crate) fn logged(&self, text: &str) -> u64 {
        self.log().matches(text).count() as u64
    }

    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        self.log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Stops the server, and starts it again.
    pub(crate) fn restart(&self) {
        self.command("stop");
        let started = self.command("start");
        assert_eq!(started.code, Some(0), "{started:?} {}", self.log());
        for address in &self.listening {
            wait_until("Postfix to listen", || TcpStream::connect(address).ok());
        }
    }

    /// Retries deferred mail at once.
    pub(crate) fn flush(&self) {
        self.command("flush");
    }

    pub(crate) fn sent(&self) -> u64 {
        self.log().matches("status=sent").count() as u64
    }
}

/// Returns the `smtpd` options of a port that requires TLS: before the greeting if `wrapper` is set, otherwise by
/// STARTTLS.
pub(crate) fn tls_options(wrapper: bool, certificate: &str, key: &str) -> Vec<String> {
    let begin = if wrapper { "smtpd_tls_wrappermode=yes" } else { "smtpd_tls_wrappermode=no" };
    let files = [format!("smtpd_tls_cert_file={certificate}"), format!("smtpd_tls_key_file={key}")];
    let words = ["smtpd_tls_security_level=encrypt", "smtpd_tls_loglevel=1", begin];
    words.map(str::to_owned).into_iter().chain(files).collect()
}

impl Drop for Postfix {
    fn drop(&mut self) {
        self.command("stop");
    }
}
