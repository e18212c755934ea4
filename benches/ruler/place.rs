//! Describes the machine that a measurement runs on.

/// Describes the machine for the first line of a report. Warns if the load average is above 0.5, because other work
/// distorts all figures.
pub(crate) fn place() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let system = rustix::system::uname();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    let advice = if load.parse().is_ok_and(|load: f64| load > 0.5) { ": OTHER WORK IS RUNNING" } else { "" };
    let release = system.release().to_string_lossy();
    format!("{cores} cores, {}, Linux {release}, load average before {load}{advice}", processor_model())
}

fn processor_model() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.to_owned())
}
