#!/usr/bin/env bash
# Lets the program that was just built write its manual pages and completions, into target/packaging/data.
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
rm -rf "$DATA"
mkdir -p "$DATA/completions"
# The first that runs on this machine.
for binary in "$WORK"/binaries/*/mailrun; do
  "$binary" --version >/dev/null 2>&1 && break
done
"$binary" man "$DATA/man1"
for pair in bash:mailrun.bash zsh:_mailrun fish:mailrun.fish elvish:mailrun.elv powershell:_mailrun.ps1; do
  "$binary" completions "${pair%%:*}" >"$DATA/completions/${pair#*:}"
done
