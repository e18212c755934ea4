#!/usr/bin/env bash
# The static program beside the dynamic one, in interleaved rounds: first as load source, then as relay with source and
# sink. The machine should be idle; some minutes. Made by `make package` before.
#
#   packaging/speed.sh [ROUNDS]     rounds of each [default: 10]
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
rounds=${1:-10}
dynamic=$PWD/$(binary_of x86_64-unknown-linux-gnu)
static=$PWD/$(binary_of x86_64-unknown-linux-gnu-static)
load='smtp-source -d -s {sessions} -m {messages} -l {size} {host}:{port}'
"$dynamic" compare --contestant "dynamic=$dynamic $load" --contestant "static=$static $load" --rounds "$((rounds * 2))"

runs=$WORK/speed
rm -rf "$runs"
mkdir -p "$runs/dynamic" "$runs/static"
for round in $(seq "$rounds"); do
  order="dynamic static"
  [ $((round % 2)) = 1 ] || order="static dynamic"
  for name in $order; do
    "${!name}" bench --reuse --sessions 50 --duration 6s --quiet --out "$runs/$name/$round" >/dev/null || true
  done
done
"$dynamic" compare "$runs"/static/* --against "$runs"/dynamic/*
