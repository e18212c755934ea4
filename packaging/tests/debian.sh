#!/usr/bin/env bash
# The Debian packages in a clean Debian: installed, used, upgraded, downgraded, removed and purged. systemd is not process 1
# there: the service is started by hand as its unit says. In namespaces of its own: ports are free, and all processes end.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || skip "the Debian packages: needs root"
  command -v debootstrap >/dev/null || skip "the Debian packages: debootstrap is not installed"
  [ -f "$OUT/mailrun_$VERSION-1_amd64.deb" ] || skip "the Debian packages: they were not built"
  shells=$(packaging/tests/debian-root.sh shells)
  [ -n "$shells" ] || skip "the Debian packages: debootstrap could not make a root (target/roots/*.log)"
  mkdir -p "$WORK/newer"
  packaging/debian.sh "$VERSION-2" "$WORK/newer" >/dev/null
  exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside "$(packaging/tests/debian-root.sh base)" "$shells"
fi
base=$2
shells=$3
ip link set lo up
root=$(mktemp -d -p target/roots)
clean() {
  kill -9 -1 2>/dev/null
  umount "$root/proc"
  rm -rf "$root"
}
trap clean EXIT

# Begins with a root as debootstrap made it, and the packages in it.
open_root() {
  umount "$root/proc" 2>/dev/null || true
  rm -rf "${root:?}"/*
  tar -xf "$1" -C "$root"
  mount -t proc proc "$root/proc"
  mkdir "$root/packages"
  cp "$OUT"/*.deb "$WORK"/newer/*.deb "$root/packages"
}

within() {
  chroot "$root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}

# Runs a command of apt or dpkg; what it says is shown if it fails.
packages() {
  within "$@" >"$WORK/dpkg.log" 2>&1 || fail "$*: $(cat "$WORK/dpkg.log")"
}

as_nobody() {
  chroot --userspec=nobody:nogroup "$root" env PATH=/usr/sbin:/usr/bin HOME=/tmp LC_ALL=C.UTF-8 sh -c "cd /tmp && $1"
}

# Every file, but those in which dpkg and its kin keep what they did, and every user and group.
traces() {
  (cd "$root" && find . -path ./proc -prune -o -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o \
    -path ./var/cache -prune -o -path ./var/lib/apt -prune -o -path ./tmp -prune -o -path ./dev -prune -o -path ./packages -prune -o \
    ! -name '*-' ! -name '.pwd.lock' ! -name 'ld.so.cache' -print | sort)
  sort "$root/etc/passwd" "$root/etc/group" "$root/etc/shadow" "$root/etc/gshadow"
}

# Runs the command of a unit as systemd would: its user, and no capabilities but those named. Words before the command may follow.
run_unit() {
  local command capabilities=-all$2
  command=$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/$1")
  shift 2
  within "$@" setpriv --reuid=mailrun --regid=mailrun --init-groups --no-new-privs --inh-caps="$capabilities" \
    --ambient-caps="$capabilities" --bounding-set="$capabilities" sh -c "umask 077; cd /; exec $command" >>"$WORK/service.log" 2>&1
}

# Runs the relay's service with its directories. Words before its command may be given.
run_service() {
  within install -d -m 0700 -o mailrun -g mailrun /var/lib/mailrun
  within install -d -m 0750 -o mailrun -g mailrun /run/mailrun
  run_unit mailrun-relay.service ,+net_bind_service "$@"
}

start_probe() {
  within install -d -m 0700 -o mailrun -g mailrun /var/lib/mailrun-probe
  run_unit mailrun-probe.service "" &
  shell=$!
  await "the probe's process" service_pid
  service=$(service_pid)
  await "the probe's metrics" listens 9725
}

probe_metric() {
  curl -sf http://127.0.0.1:9725/metrics | awk -v "name=^mailrun_probe_$1[{ ]" '$0 ~ name { print $NF }'
}

has_delivered() {
  [ "$(probe_metric delivered_total)" -ge "$1" ]
}

was_reloaded() {
  [ "$(probe_metric config_last_reload_timestamp_seconds)" != "$1" ] && [ "$(probe_metric config_last_reload_successful)" = 1 ]
}

# The service's process; the shells that started it are others.
service_pid() {
  pgrep -x -u "$(within id -u mailrun)" mailrun
}

start_service() {
  run_service &
  shell=$!
  await "the service's process" service_pid
  service=$(service_pid)
  await "the service to listen" listens 25
}

stop_service() {
  kill -TERM "$service"
  wait "$shell" || fail "the service did not stop well: $(tail -n 5 "$WORK/service.log")"
  rm -rf "$root/run/mailrun"
}

# Sends mail that the service answers with 250.
send() {
  as_nobody "mailrun source 127.0.0.1:25 --messages $1 --sessions 4" >"$WORK/source.log" 2>&1 || fail "$(cat "$WORK/source.log")"
  expect_line "PASS $1 accepted" "$WORK/source.log"
}

# Starts a next hop that ends after so many messages, and waits for them.
receive() {
  as_nobody "mailrun sink --listen 127.0.0.1:2526 --max-messages $1" >"$WORK/sink.log" 2>&1 &
  local sink=$!
  await "the next hop" listens 2526
  within mailrun queue flush --config /etc/mailrun/relay.toml >/dev/null
  for _ in $(seq 1200); do
    kill -0 "$sink" 2>/dev/null || break
    sleep 0.05
  done
  ! kill -0 "$sink" 2>/dev/null || fail "not all of $1 messages came: $(tail -n 20 "$WORK/service.log")"
  wait "$sink" || fail "$(cat "$WORK/sink.log")"
  await "the queue to be empty" queue_is_empty
}

queue_is_empty() {
  within mailrun queue list --config /etc/mailrun/relay.toml | grep -q 'queue is empty'
}

spool_sums() {
  (cd "$root/var/lib/mailrun" && find . -type f -exec sha256sum {} + | sort -k 2)
}

# Writes the version of the format into both places of each segment's header.
set_spool_version() {
  local file place
  for file in "$root"/var/lib/mailrun/spool/segment-*; do
    for place in 8 4104; do
      printf '%b' "\\x0$1\\x00\\x00\\x00" | dd of="$file" bs=1 seek="$place" conv=notrunc status=none
    done
  done
}

: >"$WORK/service.log"
open_root "$base"
traces >"$WORK/traces.before"
packages apt-get install -y "/packages/mailrun_$VERSION-1_amd64.deb"
ok "the package installs in a bare Debian, without a network"
[ "$(within mailrun --version)" = "mailrun $VERSION" ] || fail "mailrun --version"
[ "$(within stat -c '%U %a' /var/lib/mailrun)" = "mailrun 700" ] || fail "/var/lib/mailrun"
within getent group mailrun-awake | grep -q ':$' || fail "the group mailrun-awake is missing, or somebody is in it"
as_nobody "mailrun bench --duration 2s" >"$WORK/bench.log" 2>&1 || fail "$(cat "$WORK/bench.log")"
expect_line "^(PASS|INVALID|INCONCLUSIVE)" "$WORK/bench.log"
expect_line "none lost" "$WORK/bench.log"
ok "mailrun bench runs as nobody"

sed -i 's/^listen = .*/listen = ["127.0.0.1:2525", "127.0.0.1:25"]/' "$root/etc/mailrun/relay.toml"
cp "$root/etc/mailrun/relay.toml" "$WORK/relay.toml"
start_service
send 50
receive 50
kill -HUP "$service"
await "the reload" grep -q "was reloaded" "$WORK/service.log"
ok "the service starts as its unit says, takes mail at port 25, forwards it and reloads"
send 200
kill -KILL "$service"
wait "$shell" 2>/dev/null || true
rm -rf "$root/run/mailrun"
start_service
receive 200
ok "killed with 200 messages, it delivers them after its restart"

send 100
packages dpkg -i "/packages/mailrun_$VERSION-2_amd64.deb"
stop_service
cmp -s "$root/etc/mailrun/relay.toml" "$WORK/relay.toml" || fail "the upgrade changed the configuration"
start_service
receive 100
ok "an upgrade with mail in the spool loses nothing, and keeps the configuration"

send 50
stop_service
set_spool_version 2
spool_sums >"$WORK/spool.before"
packages dpkg -i "/packages/mailrun_$VERSION-1_amd64.deb"
status=0
run_service timeout 60 || status=$?
[ "$status" = 2 ] || fail "on a newer spool the service ended with $status: $(tail -n 5 "$WORK/service.log")"
expect_line "was written by a later version of mailrun" "$WORK/service.log"
spool_sums | cmp -s - "$WORK/spool.before" || fail "a refused spool was changed"
set_spool_version 1
rm -rf "$root/run/mailrun"
start_service
receive 50
stop_service
ok "a downgrade refuses a newer spool, changes nothing in it, and all mail is there for the newer version"

within mailrun probe --config /etc/mailrun/probe.toml --check >/dev/null || fail "the probe's configuration is wrong as installed"
# Not by a function, whose shell would get the signal below in place of the sink.
chroot "$root" /usr/bin/mailrun sink --listen 127.0.0.1:25 --http 127.0.0.1:8025 >"$WORK/sink.log" 2>&1 &
watched=$!
await "the watched server" listens 25
sed -i 's!^rate = .*!rate = "5/s"\nsink = "http://127.0.0.1:8025"!' "$root/etc/mailrun/probe.toml"
start_probe
await "mail of the probe" has_delivered 5
loaded=$(probe_metric config_last_reload_timestamp_seconds)
kill -HUP "$service"
await "the probe's reload" was_reloaded "$loaded"
kill -KILL "$service"
wait "$shell" 2>/dev/null || true
start_probe
has_delivered 5 || fail "killed, the probe forgot its account"
await "mail of the probe after its restart" has_delivered 10
kill -TERM "$service"
wait "$shell" || fail "the probe did not stop well: $(tail -n 5 "$WORK/service.log")"
kill -TERM "$watched"
wait "$watched" || fail "$(cat "$WORK/sink.log")"
ok "the probe starts as its unit says, delivers, reloads, and goes on with its account after a kill"

packages dpkg -i "/packages/mailrun-drop-in_$VERSION-1_amd64.deb"
as_nobody "smtp-sink -c 127.0.0.1:2527 10" >/dev/null 2>&1 &
await "smtp-sink" listens 2527
as_nobody "smtp-source -m 20 127.0.0.1:2527 && go-mades-bench -h" >"$WORK/drop-in.log" 2>&1 || [ $? = 2 ] || fail "$(cat "$WORK/drop-in.log")"
mkdir -p "$root/postfix/DEBIAN" "$root/postfix/usr/sbin"
printf 'Package: postfix\nVersion: 1\nArchitecture: all\nMaintainer: a <a@a.example>\nDescription: a name\n' >"$root/postfix/DEBIAN/control"
within dpkg-deb -b /postfix /packages/postfix.deb >/dev/null
rm -rf "$root/postfix"
if within dpkg -i /packages/postfix.deb >"$WORK/dpkg.log" 2>&1; then fail "Postfix does not clash"; fi
expect_line "conflict" "$WORK/dpkg.log"
ok "mailrun-drop-in has the older tools' names, and does not stand beside Postfix"

packages dpkg -r mailrun-drop-in mailrun
[ ! -e "$root/usr/bin/mailrun" ] || fail "removed, the program is there"
[ -d "$root/var/lib/mailrun/spool" ] || fail "removed, the spool is gone"
[ -d "$root/var/lib/mailrun-probe" ] || fail "removed, the probe's account is gone"
[ -f "$root/etc/mailrun/relay.toml" ] || fail "removed, the configuration is gone"
packages dpkg -P mailrun-drop-in mailrun
rm -rf "$root/packages" "$root/run/mailrun"
traces >"$WORK/traces.after"
diff "$WORK/traces.before" "$WORK/traces.after" >"$WORK/traces.diff" || fail "left behind: $(cat "$WORK/traces.diff")"
ok "removed, it leaves spool and configuration; purged, nothing"

open_root "$shells"
packages apt-get install -y "/packages/mailrun_$VERSION-1_amd64.deb" "/packages/mailrun-drop-in_$VERSION-1_amd64.deb"
for page in mailrun mailrun-relay mailrun-probe mailrun-queue-list; do
  within env MANPAGER=cat man "$page" >"$WORK/page" 2>"$WORK/page.log" || fail "man $page: $(cat "$WORK/page.log")"
  expect_line "EXIT STATUS" "$WORK/page"
done
ok "man mailrun"
# shellcheck disable=SC2016 # bash's in the root
completed=$(within bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader mailrun
  COMP_WORDS=(mailrun capac); COMP_CWORD=1; _mailrun mailrun capac mailrun; echo "${COMPREPLY[*]}"')
[ "$completed" = capacity ] || fail "bash completes capac as: $completed"
# shellcheck disable=SC2016 # zsh's
completed=$(within zsh -fc 'autoload -U compinit; compinit -u -D; autoload +X -U _mailrun; echo $_comps[mailrun]')
[ "$completed" = _mailrun ] || fail "zsh completes by: $completed"
completed=$(within fish -c 'complete -C "mailrun capac"' | cut -f 1)
[ "$completed" = capacity ] || fail "fish completes capac as: $completed"
ok "completions load in bash, zsh and fish"
