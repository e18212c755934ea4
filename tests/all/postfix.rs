//! A private Postfix: its own configuration, queue and log in a directory of the test's, on ports of the test's.
//! `/etc/postfix` is neither read nor written.
use crate::party::{Ended, is_root, low_port, peer, run, skip, wait_until};
use mailrun_bench::recipe::{Places, Recipe};
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Where its mail goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deliver {
    /// Nowhere, logged as sent.
    Discard,
    /// To a server on that port.
    To(u16),
}

/// A Postfix that runs; stopped when dropped.
pub(crate) struct Postfix {
    place: TempDir,
    program: String,
    /// One for each list of options it was started with.
    pub(crate) listening: Vec<SocketAddr>,
}

/// The rest of main.cf: refusals by name, no delays, and room for hostile clients.
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

/// What every private Postfix has: of the recipe's main.cf what is before the settings for speed, and its master.cf without
/// the listener.
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
    /// Starts one with a port for each list of `smtpd` options; `None`, with a note, where that is impossible.
    pub(crate) fn start(deliver: Deliver, services: &[Vec<String>]) -> Option<Self> {
        let program = peer("postfix")?;
        if !is_root() {
            skip("postfix", "only root may start one");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        // Its daemons are other users.
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        // The rest of the tree it makes itself, with the owners it wants.
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

    /// HOST:PORT of its first port.
    pub(crate) fn address(&self) -> String {
        self.listening[0].to_string()
    }

    /// How often its log says that.
    pub(crate) fn logged(&self, text: &str) -> u64 {
        self.log().matches(text).count() as u64
    }

    /// The lines of its log that have that.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        self.log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Has it try at once what it has put off.
    pub(crate) fn flush(&self) {
        self.command("flush");
    }

    /// Recipients it has delivered to.
    pub(crate) fn sent(&self) -> u64 {
        self.log().matches("status=sent").count() as u64
    }
}

/// The options of a port that insists on TLS: by STARTTLS, or (`wrapper`) before the greeting.
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
