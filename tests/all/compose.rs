//! Tests deploy/compose/compose.yaml without containers. The command of each service runs in its own network namespace
//! and under its own host name, and a bridge joins the namespaces, as Compose does. Postfix comes from Debian 13, like
//! the one in the image. The image of mailrun has its own test (packaging/tests/image.sh). The service `report` is
//! busybox's web server, and is not run.
use crate::action::documents;
use crate::manual::root;
use crate::party::{MAILRUN, Process, is_root, peer, skip};
use serde_json::Value;
use std::fs;

/// Runs the services. Its arguments are the path of mailrun, the tar file of a Debian root with Postfix, and a
/// directory. For each command, the directory has a file with the command's words.
const SCRIPT: &str = r#"set -e
mount -t tmpfs tmpfs /run
ip link add bridge type bridge
ip link set bridge up
number=2
echo "127.0.0.1 localhost" > "$3/hosts"
for service in sink postfix bench; do
    ip netns add $service
    ip link add $service type veth peer name eth0 netns $service
    ip link set $service master bridge up
    ip -n $service addr add 10.9.0.$number/24 dev eth0
    ip -n $service link set eth0 up
    ip -n $service link set lo up
    echo "10.9.0.$number $service" >> "$3/hosts"
    number=$((number + 1))
done
mount --bind "$3/hosts" /etc/hosts
mkdir "$3/root" "$3/bin" "$3/data"
ln -s "$1" "$3/bin/mailrun"
tar -xf "$2" -C "$3/root"
cp "$3/hosts" "$3/root/etc/hosts"
mount -t proc proc "$3/root/proc"
mount --bind /dev "$3/root/dev"
# Runs the words of a file after these words, in a service's namespaces.
within() {
    file=$3; service=$1; directory=$2; shift 3
    mapfile -d '' -t words < "$directory/$file"
    cd "$directory/data"
    ip netns exec $service unshare --uts sh -c 'hostname "$0" && exec "$@"' $service "$@" "${words[@]}"
}
wait_for() {
    for attempt in $(seq 600); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done
    echo "waited a minute for $4"; tail -n 20 "$directory"/*.log; exit 9
}
directory=$3
within sink "$3" sink "$1" > "$3/sink.log" 2>&1 &
within postfix "$3" postfix chroot "$3/root" > "$3/postfix.log" 2>&1 &
wait_for within sink "$3" sink-health "$3/bin/mailrun"
wait_for within postfix "$3" postfix-health
status=0
within bench "$3" bench "$1" > "$3/bench.log" 2>&1 || status=$?
cat "$3/bench.log"
exit $status
"#;

#[test]
#[ignore = "slow: make test-slow PART=recipes"]
fn the_services_of_compose_measure_a_postfix_and_write_the_report() {
    let tar = concat!(env!("CARGO_MANIFEST_DIR"), "/target/roots/postfix-trixie.tar");
    if !is_root() || fs::metadata(tar).is_err() {
        return skip("compose", "packaging/tests/debian-root.sh postfix trixie has made no Debian with it");
    }
    let (Some(mut file), Some(_)) = (documents("deploy/compose/compose.yaml"), peer("ip")) else { return };
    let services = file.remove(0)["services"].take();
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, words: &Value, without: usize| {
        let words = words.as_array().unwrap().iter().skip(without).map(|word| format!("{}\0", word.as_str().unwrap()));
        fs::write(place.path().join(name), words.collect::<String>()).unwrap();
    };
    for name in ["sink", "postfix", "bench"] {
        write(name, &services[name]["command"], 0);
    }
    // Skip the word CMD. For the sink, also skip the second word, which is the path of mailrun in the image.
    write("sink-health", &services["sink"]["healthcheck"]["test"], 2);
    write("postfix-health", &services["postfix"]["healthcheck"]["test"], 1);
    let words = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", SCRIPT, "bash"];
    let directory = place.path().to_str().unwrap();
    let ended = Process::start("unshare", &[&words[..], &[MAILRUN, tar, directory]].concat()).finish();
    assert!(ended.code == Some(0) && ended.out.contains("none lost"), "{ended:?}");
    // The service `report` must serve the directory to which the service `bench` writes its results.
    assert_eq!(services["report"]["command"][5], "/data");
    assert_eq!(services["bench"]["volumes"][0], "results:/data");
    let page = fs::read_to_string(place.path().join("data/results/report.html")).unwrap();
    assert!(page.contains("postfix:25"));
}

#[test]
fn the_image_is_the_one_that_a_release_of_this_version_pushes() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let compose = read("deploy/compose/compose.yaml");
    let images: Vec<&str> = compose.lines().filter_map(|line| line.trim().strip_prefix("image: ghcr.io/")).collect();
    assert_eq!(images, [concat!("mailrun/mailrun:", env!("CARGO_PKG_VERSION")); 2]);
    assert!(read("Makefile").contains("push-image.sh \"ghcr.io/mailrun/mailrun:$${TAG#v}\""));
}
