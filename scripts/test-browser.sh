#!/bin/sh
# Writes the pages of sample runs, and of runs that failed (tests/browser/runs), and opens them in Chromium (tests/browser/check.mjs); `make test-slow PART=browser`, `make gallery`.
# Where Chromium, node or the npm registry is missing it says so in one line, and notes it as skipped.
#
#   scripts/test-browser.sh target/pages                           checks them
#   scripts/test-browser.sh target/pages --gallery docs/gallery    takes the pictures
set -eu
skip() {
    echo "SKIPPED: report.html in a browser: $1"
    mkdir -p target
    echo "report.html in a browser" >>target/skipped-peers.txt
    exit 0
}
pages=$1
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || true)}
[ -n "$browser" ] || skip "no chromium"
command -v node >/dev/null 2>&1 || skip "no node"
scripts/install-browser-modules.sh || skip "npm ci failed in tests/browser"
rm -rf "$pages"
cargo run --quiet -p mailrun-report --features sample --example sample_pages -- "$pages" tests/browser/runs/*.json
CHROMIUM=$browser exec node tests/browser/check.mjs "$@"
