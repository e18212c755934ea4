#!/usr/bin/env bash
# Packs each crate as for crates.io, and builds it from what was packed: what a crate needs and has not packed is missing
# then. The packages stand on each other by version, as they would there. They are in target/crates/package.
set -eu
cd "$(dirname "$0")/.."
rm -rf target/crates
# Cargo unpacks the packages of a local registry once a version, and would build the sources of an earlier run.
forget_unpacked() { rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/mailrun-*; }
forget_unpacked
# What was built for the workspace serves here too (Cargo 1.91 and later; older ones build it again).
CARGO_BUILD_BUILD_DIR=$PWD/target cargo package --workspace --locked --allow-dirty --quiet --target-dir target/crates
# Cargo leaves what it unpacked in the place of other packages.
for crate in target/crates/package/*.crate; do rm -rf "target/package/$(basename "$crate" .crate)"; done
rm -rf target/package/tmp-crate target/package/tmp-registry
forget_unpacked
count=$(find target/crates/package -maxdepth 1 -name '*.crate' | wc -l)
members=$(grep -c '^  "crates/' Cargo.toml)
[ "$count" = "$((members + 1))" ] || { echo "$count packages of $((members + 1)) crates"; exit 1; }
echo "$count crates are packed and built from their packages"
