#!/bin/sh
# Holds what others wrote to deny.toml: licences, sources, crates that come twice, and known faults of crates (RustSec).
# What cannot be checked here is said in a line, and noted for the end of the tests.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/target/tools/pypi/bin:$PATH"

skip() {
    mkdir -p target
    echo "$1" >>target/skipped-peers.txt
    echo "SKIPPED $1" >&2
}

if ! command -v cargo-deny >/dev/null 2>&1; then
    skip "cargo deny: it is not installed; scripts/install-test-tools.sh does that"
    exit 0
fi
cargo deny --log-level error check --hide-inclusion-graph licenses bans sources

# The database is a git repository. What was fetched once is good enough where its host cannot be reached.
databases=${CARGO_HOME:-$HOME/.cargo}/advisory-dbs
if timeout 60 cargo deny --log-level off fetch db >/dev/null 2>&1; then
    cargo deny --log-level error check --hide-inclusion-graph advisories
elif ls -d "$databases"/advisory-db-* >/dev/null 2>&1; then
    cargo deny --offline --log-level error check --hide-inclusion-graph advisories
else
    skip "cargo deny advisories: the RustSec database cannot be fetched from here, and none is stored"
fi
