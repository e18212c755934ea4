//! The processes of a server under test, found by the address at which it listens.
//!
//! `/proc/net` shows the inode of the socket that listens at an address, and `/proc/PID/fd` shows
//! which processes hold that socket. Both show only what this process may see: a server in another
//! network namespace, or of another user, remains unknown.
use crate::local_address::is_of_this_host;
use crate::proc_stat;
use mailrun_net::Endpoint;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// Programs that only forward connections, for example into a container. If one of them listens at the server's
/// address, the server under test is another process, which remains unknown.
const FORWARDERS: [&str; 8] =
    ["docker-proxy", "rootlessport", "slirp4netns", "pasta", "pasta.avx2", "ssh", "kubectl", "socat"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerProcesses {
    /// The processes of this host that have the listening socket open.
    Here(BTreeSet<u32>),
    Elsewhere,
    /// The server's processes cannot be determined, for a reason such as `its port is forwarded`.
    Unknown(&'static str),
}

/// Finds the processes of this host that listen at `HOST:PORT` or `unix:PATH`.
pub(crate) fn listening_at(server: &str) -> ServerProcesses {
    match Endpoint::resolve_all(server) {
        Ok(endpoints) => listening_at_any(&endpoints),
        Err(_) => ServerProcesses::Unknown("its address cannot be looked up"),
    }
}

fn listening_at_any(endpoints: &[Endpoint]) -> ServerProcesses {
    let is_here = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => address.ip().is_unspecified() || is_of_this_host(address.ip().to_canonical()),
        Endpoint::Unix(_) => true,
    };
    if !endpoints.iter().any(is_here) {
        return ServerProcesses::Elsewhere;
    }
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let inodes: BTreeSet<u64> = endpoints
        .iter()
        .flat_map(|endpoint| match endpoint {
            Endpoint::Tcp(address) => {
                let v4 = tcp_listeners(&read("/proc/net/tcp"), *address);
                v4.into_iter().chain(tcp_listeners(&read("/proc/net/tcp6"), *address)).collect()
            }
            Endpoint::Unix(path) => unix_listeners(&read("/proc/net/unix"), path),
        })
        .collect();
    if inodes.is_empty() {
        return ServerProcesses::Unknown("nothing listens at its address in this network namespace");
    }
    let holders: BTreeSet<u32> = proc_stat::pids().filter(|pid| holds(*pid, &inodes)).collect();
    let is_forwarder = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        proc_stat::name(&stat).is_some_and(|name| FORWARDERS.contains(&name))
    };
    match () {
        () if holders.is_empty() => ServerProcesses::Unknown("its process may not be looked at"),
        // PID 1 is not the server. It holds the socket for a server that it starts later (socket activation).
        () if holders.contains(&1) => ServerProcesses::Unknown("the first process of the host listens for it"),
        () if holders.iter().any(is_forwarder) => ServerProcesses::Unknown("its port is forwarded"),
        () => ServerProcesses::Here(holders),
    }
}

/// Returns true if the process has one of these sockets open. Returns false for a process of
/// another user if its descriptors cannot be read.
fn holds(pid: u32, inodes: &BTreeSet<u64>) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.any(|target| {
        let inode = target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        inode.is_some_and(|inode| inodes.contains(&inode))
    })
}

/// Returns the inodes of the sockets that listen at `wanted`, from the text of `/proc/net/tcp` or `/proc/net/tcp6`. In
/// both files, addresses are written as 32-bit words in the host's byte order.
fn tcp_listeners(table: &str, wanted: SocketAddr) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let row = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (address, port) = fields.nth(1)?.split_once(':')?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        let is_wanted = state == LISTEN
            && u16::from_str_radix(port, 16).ok()? == wanted.port()
            && accepts(ip_address(address)?, wanted.ip());
        is_wanted.then_some(inode)
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Returns true if a socket that is bound to `bound` accepts connections to `wanted`. A socket that
/// is bound to `::` usually accepts IPv4 as well.
fn accepts(bound: IpAddr, wanted: IpAddr) -> bool {
    let wanted = wanted.to_canonical();
    let is_same_family = bound.is_ipv4() == wanted.is_ipv4();
    bound.to_canonical() == wanted
        || wanted.is_unspecified()
        || bound.is_unspecified() && (is_same_family || bound.is_ipv6())
}

fn ip_address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok();
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?].map(u32::to_ne_bytes);
            let mut octets = [0; 16];
            octets.chunks_exact_mut(4).zip(words).for_each(|(part, word)| part.copy_from_slice(&word));
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// Returns the inodes of the sockets that listen at `wanted`, from the text of `/proc/net/unix`.
fn unix_listeners(table: &str, wanted: &Path) -> Vec<u64> {
    /// Flag of a listening socket (`SO_ACCEPTCON`).
    const ACCEPTS: u32 = 1 << 16;
    let wanted = fs::canonicalize(wanted).unwrap_or_else(|_| wanted.to_owned());
    let row = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
        let inode = fields.nth(2)?.parse().ok()?;
        // Take the rest of the line, because the path is the last field and may contain spaces.
        let path = Path::new(&line[line.find(" /")? + 1..]);
        let bound = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        (flags & ACCEPTS != 0 && bound == wanted).then_some(inode)
    };
    table.lines().skip(1).filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn here() -> ServerProcesses {
        ServerProcesses::Here(BTreeSet::from([std::process::id()]))
    }

    #[test]
    fn the_process_that_listens_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
            // Skip IPv6 addresses if this host has no IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let bound = listener.local_addr().unwrap();
            assert_eq!(listening_at_any(&[Endpoint::Tcp(bound)]), here(), "{address}");
            let loopback: &[&str] = match (bound.ip().is_unspecified(), bound.is_ipv4()) {
                (true, true) => &["127.0.0.1"],
                (true, false) => &["127.0.0.1", "[::1]"],
                (false, _) => &[],
            };
            for host in loopback {
                assert_eq!(listening_at(&format!("{host}:{}", bound.port())), here(), "{address} as {host}");
            }
            drop(listener);
            let gone = listening_at_any(&[Endpoint::Tcp(bound)]);
            assert!(matches!(gone, ServerProcesses::Unknown(_)), "nobody listens any more: {gone:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a socket");
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(listening_at(&format!("unix:{}", path.display())), here());
        assert!(matches!(listening_at("unix:/nowhere"), ServerProcesses::Unknown(_)));
        assert_eq!(listening_at("192.0.2.7:25"), ServerProcesses::Elsewhere);
        assert!(matches!(listening_at("nonsense"), ServerProcesses::Unknown(_)));
    }

    /// The processes of a server of another user remain unknown: the socket tables list the server, but the descriptors
    /// of its processes cannot be read. A server in another network namespace, to which the kernel forwards the port,
    /// is not even listed.
    #[test]
    fn a_process_that_may_not_be_looked_at_is_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let inodes: BTreeSet<u64> = tcp_listeners(&table, listener.local_addr().unwrap()).into_iter().collect();
        assert_eq!(inodes.len(), 1, "{table}");
        assert!(holds(std::process::id(), &inodes));
        // Linux assigns no process ID above 2^22, so no process has this ID.
        assert!(!holds(1 << 23, &inodes));
    }

    #[test]
    fn tables_of_sockets_are_read() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                   0: 0100007F:0019 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1077 1\n\
                   1: 00000000:09DD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1078 1\n\
                   2: 0100007F:0019 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 1079 1\n";
        let find = |text: &str| tcp_listeners(tcp, text.parse().unwrap());
        assert_eq!(find("127.0.0.1:25"), [1077], "the connection is no listener");
        assert_eq!(find("[::ffff:127.0.0.1]:25"), [1077]);
        assert_eq!((find("127.0.0.2:25"), find("192.0.2.1:2525"), find("[::1]:2525")), (vec![], vec![1078], vec![]));
        let tcp6 = "  sl  local_address\n\
                    0: 00000000000000000000000000000000:0019 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 5 1\n\
                    1: 00000000000000000000000001000000:001A 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 6 1\n";
        let find = |text: &str| tcp_listeners(tcp6, text.parse().unwrap());
        assert_eq!((find("127.0.0.1:25"), find("[::1]:25"), find("[::1]:26")), (vec![5], vec![5], vec![6]));
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    000000006d841152: 00000003 00000000 00000000 0001 03 5794398\n\
                    000000006d841153: 00000003 00000000 00000000 0001 03 11 /nowhere/a b\n\
                    0000000093bd8b9c: 00000002 00000000 00010000 0001 01    12 /nowhere/a b\n";
        assert_eq!(unix_listeners(unix, Path::new("/nowhere/a b")), [12]);
        for nonsense in ["", "\n\n", "x\n0: z", "x\n0: 0100007F:0019 0 0A", "x\n /"] {
            assert!(tcp_listeners(nonsense, "127.0.0.1:25".parse().unwrap()).is_empty(), "{nonsense}");
            assert!(unix_listeners(nonsense, Path::new("/a")).is_empty(), "{nonsense}");
        }
    }
}
