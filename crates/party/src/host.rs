//! The host of a run, for its record: two figures can be compared only if the place of each measurement is known.
use journey::record::Host;
use std::fs;

/// Text if the host gives no information.
const UNKNOWN: &str = "unknown";

/// Facts about this host.
pub fn facts() -> Host {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    Host {
        os: os_name(&text("/etc/os-release")),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu_model: cpu_model(&text("/proc/cpuinfo")),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory_bytes: memory_bytes(&text("/proc/meminfo")),
    }
}

/// PRETTY_NAME of os-release(5), which may be quoted.
fn os_name(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    known_or_unknown(name.map(|name| name.trim_matches(['"', '\''])))
}

/// x86 has `model name`; ARM has it seldom, and then `Model` or `Hardware`.
fn cpu_model(cpuinfo: &str) -> String {
    let value =
        |wanted: &str| cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == wanted);
    let found = ["model name", "Model", "Hardware"].into_iter().find_map(value);
    known_or_unknown(found.map(|(_, model)| model))
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    kib.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

fn known_or_unknown(name: Option<&str>) -> String {
    name.map(str::trim).filter(|name| !name.is_empty()).unwrap_or(UNKNOWN).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_is_read_with_and_without_quotes() {
        assert_eq!(
            os_name("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(os_name("PRETTY_NAME=Alpine\n"), "Alpine");
        assert_eq!(os_name(""), UNKNOWN);
    }

    #[test]
    fn cpuinfo_and_meminfo_are_read() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), "AMD EPYC");
        assert_eq!(cpu_model("processor\t: 0\n"), UNKNOWN);
        assert_eq!(memory_bytes("MemTotal:       24567890 kB\n"), 24_567_890 << 10);
        assert_eq!(memory_bytes(""), 0);
    }

    #[test]
    fn this_host_has_cores_and_memory() {
        let host = facts();
        assert!(host.cores >= 1 && host.memory_bytes > 0 && !host.kernel.is_empty(), "{host:?}");
    }
}
