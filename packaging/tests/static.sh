#!/usr/bin/env bash
# The static binary in an empty root: names of hosts come from /etc/hosts and from the name server in /etc/resolv.conf, and
# `-u USER` from /etc/passwd, without any library, whatever /etc/nsswitch.conf says.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || skip "the static binary in an empty root: needs root"
  [ -x "$(binary_of x86_64-unknown-linux-gnu-static)" ] || skip "the static binary: it was not built"
  exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside
fi
ip link set lo up
root=$(mktemp -d -p "$WORK")
trap 'rm -rf "$root"' EXIT
cp "$(binary_of x86_64-unknown-linux-gnu-static)" "$root/mailrun"

[ "$(chroot "$root" /mailrun --version)" = "mailrun $VERSION" ] || fail "it does not run in an empty root"
chroot "$root" /mailrun sink --listen 127.0.0.1:2525 --max-messages 10 >"$WORK/empty.sink" 2>&1 &
sink=$!
await "the sink in the empty root" listens 2525
chroot "$root" /mailrun source 127.0.0.1:2525 --messages 10 >"$WORK/empty.source" 2>&1 || fail "$(cat "$WORK/empty.source")"
wait "$sink" || fail "the sink: $(cat "$WORK/empty.sink")"
ok "source and sink run in a root where only the program is"

# The clock is read for every message. A program that does not find the kernel's page for it makes a system call each time.
if command -v strace >/dev/null; then
  "$root/mailrun" sink --listen 127.0.0.1:2527 >"$WORK/clock.sink" 2>&1 &
  sink=$!
  await "the sink beside strace" listens 2527
  strace -f -e trace=clock_gettime -o "$WORK/clock.calls" "$root/mailrun" source 127.0.0.1:2527 --messages 200 --reuse >"$WORK/clock.source" 2>&1 ||
    fail "$(cat "$WORK/clock.source")"
  kill "$sink"
  wait "$sink" || true
  calls=$(grep -c clock_gettime "$WORK/clock.calls" || true)
  [ "$calls" -lt 200 ] || fail "it made $calls system calls to read the clock for 200 messages"
  ok "it reads the clock without a system call"
else
  echo "not tested: how the static binary reads the clock; strace is not here"
fi

# A name server that knows one name: it answers every question with 127.0.0.1, or with nothing for IPv6.
cat >"$WORK/name_server.py" <<'PYTHON'
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
while True:
    question, client = server.recvfrom(512)
    end = question.index(0, 12) + 5
    is_a = question[end - 4:end - 2] == b"\x00\x01"
    known = question[12:end - 4] == b"\x02mx\x05known\x07example\x00"
    header = question[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\x00\x01" + (b"\x00\x01" if is_a and known else b"\x00\x00") + bytes(4)
    answer = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x7f\x00\x00\x01" if is_a and known else b""
    server.sendto(header + question[12:end] + answer, client)
PYTHON
python3 "$WORK/name_server.py" &
mkdir "$root/etc"
printf 'root:x:0:0::/:/\npost:x:4242:4343::/:/\n' >"$root/etc/passwd"
printf 'root:x:0:\npost:x:4343:\nmail:x:4444:post\n' >"$root/etc/group"
printf '127.0.0.1 mx.file.example\n' >"$root/etc/hosts"
printf 'nameserver 127.0.0.1\n' >"$root/etc/resolv.conf"
# Sources of this host's glibc would be loaded by it, and crash another: the program knows its own only.
printf 'passwd: other\ngroup: other\ninitgroups: other\nhosts: other\n' >"$root/etc/nsswitch.conf"
await "the name server" grep -q ' 0100007F:0035 ' /proc/self/net/udp

for host in mx.file.example mx.known.example; do
  chroot "$root" /mailrun smtp-sink -u post "$host:2526" 10 >"$WORK/static.sink" 2>&1 &
  sink=$!
  await "smtp-sink at $host" listens 2526
  ids=$(sed -nE 's/^(Uid|Gid|Groups):\s*([0-9]+).*/\2/p' "/proc/$sink/status" | tr '\n' ' ')
  [ "$ids" = "4242 4343 4343 " ] || fail "-u post became $ids"
  grep -Eq '^Groups:.*4444' "/proc/$sink/status" || fail "-u post has not its second group"
  chroot "$root" /mailrun source "$host:2526" --messages 10 >"$WORK/static.source" 2>&1 || fail "$(cat "$WORK/static.source")"
  kill "$sink"
  wait "$sink" || true
  ok "the name $host and -u post in the empty root"
done
if chroot "$root" /mailrun source no.such.example:2526 --messages 1 >"$WORK/static.source" 2>&1; then
  fail "an unknown name was found"
fi
expect_line 'unknown host "no.such.example"' "$WORK/static.source"
ok "an unknown name is said to be unknown"
