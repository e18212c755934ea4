# shellcheck shell=bash
# Functions that the tests of packages share; sourced by them, in the top directory of the project.
# shellcheck source=packaging/common.sh
. packaging/common.sh
PATH=$PATH:/usr/sbin:/sbin

ok() {
  echo "ok: $1"
}

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# Notes what cannot be tested here, and ends the test.
skip() {
  echo "SKIPPED $1"
  echo "packages: $1" >>target/skipped-peers.txt
  exit 0
}

# Waits for a condition, a command; fails with its words after a minute.
await() {
  local what=$1
  shift
  for _ in $(seq 1200); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.05
  done
  fail "waited a minute for $what"
}

# Says whether anything of this network listens at a port.
listens() {
  grep -q "$(printf ':%04X' "$1") [0-9A-F]*:0000 0A" /proc/self/net/tcp /proc/self/net/tcp6
}

# Fails unless a file has a line that matches.
expect_line() {
  grep -Eq -- "$1" "$2" || fail "no line $1 in: $(tail -n 20 "$2")"
}
