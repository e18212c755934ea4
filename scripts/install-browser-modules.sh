#!/bin/sh
# Installs from npm what tests/browser needs to drive Chromium, once.
set -eu
cd "$(dirname "$0")/../tests/browser"
[ -d node_modules ] || timeout 300 npm ci --silent --no-fund --no-audit --ignore-scripts
