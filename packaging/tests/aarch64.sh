#!/usr/bin/env bash
# The smoke test of the aarch64 binaries under QEMU's user mode: source and sink.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
command -v qemu-aarch64-static >/dev/null || skip "aarch64: qemu-aarch64-static is not installed"
tested=
for target in aarch64-unknown-linux-musl aarch64-unknown-linux-gnu; do
  binary=$(binary_of "$target")
  [ -x "$binary" ] || continue
  emulate=(qemu-aarch64-static)
  if [ "$target" = aarch64-unknown-linux-gnu ]; then
    [ -d /usr/aarch64-linux-gnu/lib ] || continue
    emulate+=(-L /usr/aarch64-linux-gnu)
  fi
  [ "$("${emulate[@]}" "$binary" --version)" = "mailrun $VERSION" ] || fail "$target --version"
  "${emulate[@]}" "$binary" sink --listen "unix:$PWD/$WORK/aarch64.socket" --max-messages 5 >"$WORK/aarch64.sink" 2>&1 &
  sink=$!
  await "the sink" test -S "$WORK/aarch64.socket"
  "${emulate[@]}" "$binary" source "unix:$PWD/$WORK/aarch64.socket" --messages 5 >"$WORK/aarch64.source" 2>&1 ||
    fail "$target: $(cat "$WORK/aarch64.source")"
  wait "$sink" || fail "$target: $(cat "$WORK/aarch64.sink")"
  tested="$tested $target"
  ok "$target runs under QEMU"
done
[ -n "$tested" ] || skip "aarch64: no binary was built that could run here (rustup target add aarch64-unknown-linux-musl)"
