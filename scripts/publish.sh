#!/usr/bin/env bash
# Publishes what `make package` made, on registries from which nothing can be taken back. The workflow "release" runs it.
#
#   scripts/publish.sh wheels    to PyPI, by twine: TWINE_PASSWORD is a token
#   scripts/publish.sh crates    to crates.io, each after those it needs: CARGO_REGISTRY_TOKEN
#
# With DRY_RUN=1 it checks what can be checked without sending anything.
set -eu
cd "$(dirname "$0")/.."
TWINE=6.2.0
# A release is packed and tested by root, so this user may not write to target.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
case ${1:-} in
wheels)
    python3 -m venv "$place"
    "$place/bin/pip" install --quiet --disable-pip-version-check "twine==$TWINE"
    "$place/bin/twine" check --strict target/package/*.whl
    [ -n "${DRY_RUN:-}" ] || TWINE_USERNAME=__token__ "$place/bin/twine" upload --non-interactive --skip-existing target/package/*.whl
    ;;
crates)
    # cargo finds the order itself, builds each crate from its package before it sends the first, and waits until each can be had.
    cargo publish --workspace --locked --target-dir "$place" ${DRY_RUN:+--dry-run --allow-dirty}
    ;;
*)
    echo "usage: $0 wheels|crates" >&2
    exit 2
    ;;
esac
