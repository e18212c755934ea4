#!/usr/bin/env bash
# Runs every test of the packages that `make package` made; each goes on if another fails. Some minutes.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
failed=
for one in scripts binary static debian image push wheel aarch64; do
  echo "== $one"
  "packaging/tests/$one.sh" || failed="$failed $one"
done
[ -z "$failed" ] || fail "of the packages:$failed"
