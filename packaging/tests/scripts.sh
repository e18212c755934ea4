#!/usr/bin/env bash
# The packaging scripts, by shellcheck.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
command -v shellcheck >/dev/null || skip "shellcheck is not installed"
shellcheck -x packaging/*.sh packaging/tests/*.sh packaging/debian/p* scripts/install-package-tools.sh scripts/check-tag.sh scripts/publish.sh
ok "shellcheck finds nothing"
