//! Runs the command lines of a section of the manual in one shell, in their own directory and network namespace.
//!
//! Only loopback is up in the namespace. Ports such as 25 are free, names such as `mx.example` resolve to this host,
//! and nothing leaves the host. The processes have a PID namespace too, so they end with the shell. A server that a
//! page starts in the foreground ("in another terminal") runs in the background, and the next line runs once it
//! listens. An earlier server on the same ports is stopped first.
use crate::party::{MAILRUN, Process, is_root, peer, run, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Contents of /etc/hosts for the commands in docs/*.md: their host names resolve to this host.
const HOSTS: &str = "127.0.0.1 localhost mx.example broker.example smarthost.example\n::1 localhost\n";

/// Time limit for all commands of a section, in seconds. Commands that still run after it are killed.
const SECTION_SECONDS: u32 = 300;

const PRELUDE: &str = r#"set -o pipefail
export USER=${USER:-root}
ip link set lo up
mount --bind "$HOME/harness/hosts" /etc/hosts
declare -A servers
sudo() { "$@"; }
listens() { grep -q "$(printf ':%04X' "$1") [0-9A-F]*:0000 0A" /proc/self/net/tcp /proc/self/net/tcp6; }
stop() {
  [ -z "${servers[$1]:-}" ] && return
  kill "${servers[$1]}" 2>/dev/null; wait "${servers[$1]}" 2>/dev/null
  unset "servers[$1]"
}
run_step() {
  for attempt in 1 2 3 4 5; do
    . "$HOME/harness/steps/$1" > "$HOME/harness/out/$1" 2>&1 < /dev/null
    outcome=$?
    # A machine that is busy may be the limit itself.
    grep -qE 'INVALID|Threshold missed|asked for' "$HOME/harness/out/$1" || break
    [ $outcome -eq 0 ] && break
  done
  echo "$1 $outcome" >> "$HOME/harness/results"
}
serve_step() {
  step=$1; shift
  for port; do stop "$port"; done
  . "$HOME/harness/steps/$step" > "$HOME/harness/out/$step" 2>&1 < /dev/null
  started=$!
  outcome=0
  for port; do
    servers[$port]=$started
    for attempt in $(seq 1200); do
      listens "$port" && continue 2
      kill -0 "$started" 2>/dev/null || break
      sleep 0.05
    done
    outcome=1
  done
  echo "$step $outcome" >> "$HOME/harness/results"
}
"#;

#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The command as the shell gets it.
    pub(crate) text: String,
    /// Ports of the server that the command starts. Empty for a command that ends by itself.
    pub(crate) ports: Vec<u16>,
}

#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Exit status. `None` if the command did not end in time.
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

/// Runs all steps, even if an earlier one fails.
pub(crate) fn run_steps(flags: &[&str], files: &[(&str, &str)], steps: &[Step]) -> Vec<Done> {
    let place = tempfile::tempdir().unwrap();
    // Postfix's daemons run as other users and need access to this directory.
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let script = write(&place, files, steps);
    let bin = Path::new(MAILRUN).parent().unwrap().display();
    let enter = format!(
        "cd {0} && HOME={0} PATH={bin}:$PATH:/usr/sbin exec timeout -k 5 {3} unshare {1} bash {2}",
        place.path().display(),
        flags.join(" "),
        script.display(),
        SECTION_SECONDS
    );
    let ended = Process::start("sh", &["-c", &enter]).finish();
    let results = fs::read_to_string(place.path().join("harness/results")).unwrap_or_default();
    let code = |number: usize| {
        let own = format!("{number} ");
        results.lines().find_map(|line| line.strip_prefix(&own)).map(|code| code.parse().unwrap())
    };
    let said = |number: usize| {
        let said = fs::read(place.path().join(format!("harness/out/{number}"))).unwrap_or_default();
        format!("{}{}", String::from_utf8_lossy(&said), ended.err)
    };
    (0..steps.len()).map(|number| Done { code: code(number), said: said(number) }).collect()
}

fn write(place: &TempDir, files: &[(&str, &str)], steps: &[Step]) -> PathBuf {
    let at = |name: &str| place.path().join(name);
    fs::create_dir_all(at("harness/steps")).unwrap();
    fs::create_dir(at("harness/out")).unwrap();
    fs::write(at("harness/hosts"), HOSTS).unwrap();
    for (name, text) in files {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), text).unwrap();
    }
    let mut script = PRELUDE.to_owned();
    for (number, step) in steps.iter().enumerate() {
        let is_server = !step.ports.is_empty();
        let background = if is_server && !step.text.trim_end().ends_with('&') { " &" } else { "" };
        fs::write(at(&format!("harness/steps/{number}")), format!("{}{background}\n", step.text)).unwrap();
        let ports: Vec<String> = step.ports.iter().map(u16::to_string).collect();
        let verb = if is_server { "serve_step" } else { "run_step" };
        script += &format!("{verb} {number} {}\n", ports.join(" "));
    }
    fs::write(at("harness/script"), script).unwrap();
    at("harness/script")
}

/// Returns the options of unshare(1) for the namespaces of a section. Returns `None`, and notes the skipped test, if
/// this machine forbids the namespaces.
pub(crate) fn namespaces() -> Option<Vec<&'static str>> {
    let unshare = peer("unshare")?;
    let _ = peer("bash")?;
    let own = ["--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"];
    let by_user = [["--user", "--map-root-user"].as_slice(), &own].concat();
    let mut why = String::new();
    // If possible, run as the real root, because nobody else can start a Postfix.
    for flags in [is_root().then(|| own.to_vec()), Some(by_user)].into_iter().flatten() {
        let ended = run(&unshare, &[flags.as_slice(), &["ip", "link", "set", "lo", "up"]].concat());
        if ended.code == Some(0) {
            return Some(flags);
        }
        why = ended.err;
    }
    skip("a network namespace", why.trim());
    None
}
