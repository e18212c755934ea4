//! Other activity on the host during a run, read from `/proc`: CPU time that was stolen or used by
//! others, full listen queues, dropped SYNs, and resource limits.
//!
//! The counters are read at the start and at the end, and the record of the run gets the
//! difference. A counter that the kernel does not provide is unknown, which is not an error.
use crate::process_usage::own_sample;
use mailrun_measurement::record::{Resource, Surroundings};
use rustix::process::{Resource as Limit, getrlimit};
use std::fs;

/// Minimum number of ticks (hundredths of a second) over which shares of CPU time are computed. Shares of fewer ticks
/// would be too inaccurate.
const MIN_TICKS: u64 = 100;

/// Readings of the host's counters at the start of a run, with which later readings are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostSampler {
    processors: Option<CpuTicks>,
    queues: ListenQueueCounts,
    /// CPU time in seconds that this process had used when the counters were read.
    own_s: f64,
}

/// CPU time of all processors since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTicks {
    /// User and system time of processes. The time of interrupts is left out, because the run causes interrupts for
    /// packets on the loopback interface, but their time is not part of any process's CPU time.
    busy: u64,
    stolen: u64,
    idle: u64,
    all: u64,
}

/// Numbers of connections and SYNs that the kernel has dropped since the network namespace was created, for example
/// because a listen queue was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ListenQueueCounts {
    listen_overflows: Option<u64>,
    listen_drops: Option<u64>,
    syn_drops: Option<u64>,
}

impl HostSampler {
    pub fn start() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            processors: parse_ticks(&text("/proc/stat")),
            queues: parse_queues(&text("/proc/net/netstat")),
            own_s: own_sample().used_s,
        }
    }

    /// Returns the CPU time in seconds that this process has used since `start`.
    pub fn own_s(&self) -> f64 {
        own_sample().used_s - self.own_s
    }

    /// Reads the counters again and returns the changes since `start`.
    pub fn finish(&self) -> Surroundings {
        Surroundings { somaxconn: read_number("/proc/sys/net/core/somaxconn"), ..self.difference(&Self::start()) }
    }

    fn difference(&self, later: &Self) -> Surroundings {
        let time = self.processors.zip(later.processors).and_then(|(from, to)| from.difference(to));
        let share = |part: fn(&CpuTicks) -> u64| {
            let time = time.filter(|time| time.all >= MIN_TICKS)?;
            Some(part(&time) as f64 / time.all as f64)
        };
        let from = &self.queues;
        let to = &later.queues;
        // A counter that has decreased was reset, so its growth during the run is unknown.
        let counted = |part: fn(&ListenQueueCounts) -> Option<u64>| part(to)?.checked_sub(part(from)?);
        Surroundings {
            processor_s: time.map(|time| time.all as f64 / rustix::param::clock_ticks_per_second() as f64),
            busy_share: share(|time| time.busy),
            other_busy_share: None,
            steal_share: share(|time| time.stolen),
            listen_overflows: counted(|queues| queues.listen_overflows),
            listen_drops: counted(|queues| queues.listen_drops),
            syn_drops: counted(|queues| queues.syn_drops),
            somaxconn: None,
            disk_written_bytes: None,
            load_processor_s: None,
            used_share: share(|time| time.all.saturating_sub(time.idle)),
            processes: Vec::new(),
            foreign: None,
        }
    }
}

impl CpuTicks {
    fn difference(self, later: Self) -> Option<Self> {
        Some(Self {
            busy: later.busy.checked_sub(self.busy)?,
            stolen: later.stolen.checked_sub(self.stolen)?,
            // Count a decrease as 0, because the time of waiting for disks (iowait) can decrease,
            // for example when a processor comes back online.
            idle: later.idle.saturating_sub(self.idle),
            all: later.all.checked_sub(self.all)?,
        })
    }
}

/// Sets the share of the host's CPU time that was used by processes outside of the run. `theirs_s` is the CPU time, in
/// seconds, that the run's own processes and the bench have used.
pub fn set_other_busy_share(around: &mut Surroundings, theirs_s: f64) {
    let (Some(busy), Some(all_s)) = (around.busy_share, around.processor_s.filter(|all| *all > 0.0)) else { return };
    around.other_busy_share = Some((busy - theirs_s / all_s).clamp(0.0, 1.0));
}

/// Returns the limit of a resource, and how much of the resource this process needs. Each of them is `None` if it is
/// unknown. The need is known only for file descriptors, from the argument `descriptors`.
pub fn resource_limit(resource: Resource, descriptors: u64) -> (Option<u64>, Option<u64>) {
    match resource {
        Resource::Descriptors => (getrlimit(Limit::Nofile).current, Some(descriptors)),
        Resource::HostDescriptors => (read_number("/proc/sys/fs/file-max"), None),
        Resource::Ports => {
            let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
            (port_count(&range), None)
        }
    }
}

/// Returns the number of processes that the kernel has killed since boot because memory ran out.
pub fn out_of_memory_kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Parses the first line of `/proc/stat` (proc(5)): user nice system idle iowait irq softirq steal. The remaining
/// fields, guest and guest_nice, are ignored, because user and nice already include them.
fn parse_ticks(stat: &str) -> Option<CpuTicks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Option<Vec<u64>> = line.split_ascii_whitespace().take(8).map(|field| field.parse().ok()).collect();
    let &[user, nice, system, idle, iowait, irq, softirq, stolen] = fields?.as_slice() else { return None };
    let sum = |parts: &[u64]| parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part));
    let busy = sum(&[user, nice, system])?;
    let idle = sum(&[idle, iowait])?;
    Some(CpuTicks { busy, stolen, idle, all: sum(&[busy, idle, irq, softirq, stolen])? })
}

/// Parses `/proc/net/netstat`, in which each group of counters has a line of names and a line of values.
fn parse_queues(netstat: &str) -> ListenQueueCounts {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let names = lines.next().unwrap_or_default();
    let values = lines.next().unwrap_or_default();
    let value = |wanted: &str| {
        let named = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
        named.into_iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse().ok())
    };
    ListenQueueCounts {
        listen_overflows: value("ListenOverflows"),
        listen_drops: value("ListenDrops"),
        syn_drops: value("TCPReqQFullDrop"),
    }
}

/// Counts the ports of a range such as `32768 60999`, including both ends.
fn port_count(range: &str) -> Option<u64> {
    let mut ends = range.split_ascii_whitespace().map(|end| end.parse::<u16>().ok());
    let first = ends.next()??;
    let last = ends.next()??;
    Some(u64::from(last.checked_sub(first)?) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Beginning of `/proc/stat` of a host with two processors. The parser does not read the remaining lines.
    const STAT: &str = "cpu  888996 149060 470843 1781472 8963 0 171658 4260 0 0\n\
                        cpu0 397289 64493 241820 939777 2225 0 90274 2107 0 0\nintr 22824410 0 0\n";
    const NETSTAT: &str = "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPHPHits TCPReqQFullDrop\n\
                           TcpExt: 128 773 775 481416516 9\n\
                           IpExt: InNoRoutes ListenDrops\nIpExt: 1 2\n";

    #[test]
    fn captured_text_is_read() {
        let expected = CpuTicks { busy: 888_996 + 149_060 + 470_843, stolen: 4_260, idle: 1_790_435, all: 3_475_252 };
        assert_eq!(parse_ticks(STAT), Some(expected));
        let expected = ListenQueueCounts { listen_overflows: Some(773), listen_drops: Some(775), syn_drops: Some(9) };
        assert_eq!(parse_queues(NETSTAT), expected);
        assert_eq!(port_count("32768\t60999\n"), Some(28_232));
    }

    #[test]
    fn hostile_text_is_unknown() {
        let max = u64::MAX;
        for text in [
            "",
            "cpu",
            "cpu \n",
            "cpu  1 2 3 4 5 6 7",
            "cpu  1 2 3 4 5 6 7 x",
            "cpu  -1 2 3 4 5 6 7 8",
            "cpu0 1 2 3 4 5 6 7 8",
            &format!("cpu  {max} {max} 3 4 5 6 7 8"),
            "cpu  99999999999999999999999 2 3 4 5 6 7 8",
        ] {
            assert_eq!(parse_ticks(text), None, "{text}");
        }
        for text in [
            "",
            "TcpExt:",
            "TcpExt: ListenDrops ListenOverflows",
            "TcpExt: ListenDrops\nTcpExt:\n",
            "TcpExt: ListenDrops\nTcpExt: x\n",
            "TcpExt: ListenDrops ListenOverflows\nTcpExt: -1 18446744073709551616",
            "IpExt: ListenDrops\nIpExt: 1\n",
        ] {
            assert_eq!(parse_queues(text), ListenQueueCounts::default(), "{text}");
        }
        for text in ["", "1", "60999 32768", "a b", "1 65536", "-1 5"] {
            assert_eq!(port_count(text), None, "{text}");
        }
    }

    #[test]
    fn the_difference_is_the_runs() {
        let sampler = |busy, stolen, all, drops| HostSampler {
            processors: Some(CpuTicks { busy, stolen, idle: all / 4, all }),
            queues: ListenQueueCounts { listen_drops: drops, listen_overflows: Some(7), syn_drops: None },
            own_s: 0.0,
        };
        let around = sampler(100, 10, 1000, Some(5)).difference(&sampler(150, 20, 1100, Some(8)));
        assert_eq!((around.busy_share, around.steal_share, around.used_share), (Some(0.5), Some(0.1), Some(0.75)));
        assert_eq!((around.listen_drops, around.listen_overflows, around.syn_drops), (Some(3), Some(0), None));
        // The shares of CPU time must be unknown, because only 99 ticks have passed, fewer than `MIN_TICKS`. The number
        // of drops must be unknown, because its counter has decreased.
        let around = sampler(100, 10, 1000, Some(5)).difference(&sampler(150, 20, 1099, Some(4)));
        assert_eq!((around.busy_share, around.steal_share, around.listen_drops), (None, None, None));
        assert_eq!(sampler(2, 2, 2, None).difference(&sampler(1, 2, 3, None)).processor_s, None);
        assert_eq!(HostSampler::default().difference(&HostSampler::start()), Surroundings::default());
    }

    #[test]
    fn what_the_parties_did_not_use_others_did() {
        let other = |busy_share, processor_s, theirs_s| {
            let mut around = Surroundings { busy_share, processor_s, ..Surroundings::default() };
            set_other_busy_share(&mut around, theirs_s);
            around.other_busy_share
        };
        assert_eq!(other(Some(0.75), Some(20.0), 10.0), Some(0.25));
        assert_eq!(other(Some(0.5), Some(20.0), 12.0), Some(0.0), "ticks are coarse: less than nothing is nothing");
        assert_eq!(other(None, Some(20.0), 1.0), None);
        assert_eq!(other(Some(0.5), Some(0.0), 1.0), None);
    }

    #[test]
    fn this_host_tells() {
        let around = HostSampler::start().finish();
        assert!(around.somaxconn.is_some_and(|longest| longest > 0), "{around:?}");
        assert!(resource_limit(Resource::Descriptors, 9).0.is_some() && resource_limit(Resource::Ports, 9).0.is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_unknown(text in "(TcpExt:|cpu |ListenDrops|[ -~\n]|[0-9]{1,25}){0,40}") {
            let sampler = HostSampler { processors: parse_ticks(&text), queues: parse_queues(&text), own_s: 0.0 };
            let around = sampler.difference(&sampler);
            prop_assert_eq!((around.busy_share, around.steal_share), (None, None));
            prop_assert!(around.listen_drops.unwrap_or(0) == 0);
            let _ = port_count(&text);
        }
    }
}
