# shellcheck shell=bash
# Names and functions that the packaging scripts share; sourced by them, in the top directory of the project.
set -euo pipefail
VERSION=$(sed -n '/^\[workspace\.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$VERSION" ] || { echo "no version in Cargo.toml" >&2; exit 1; }
# Everything to be published, and nothing else.
OUT=target/package
# Binaries before they are packed, and files that the binary writes itself.
WORK=target/packaging
DATA=$WORK/data
# Programs that scripts/install-package-tools.sh installs.
PATH=$PWD/target/tools/python/bin:$PWD/target/tools/bin:$PATH
export PATH
# Files in packages have the time of the commit, so that the same commit makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
CARGO=${CARGO:-cargo}
# What is published is built by `dist`; tests of the packages may use `release`, which is built in a third of the time.
PROFILE=${PACKAGE_PROFILE:-dist}
# The oldest glibc on which the dynamic program runs.
GLIBC=2.28
# shellcheck disable=SC2089 # cargo takes the quotes apart
# Without it, a program that is linked statically opens /dev/random, which an empty root has not.
RUST_FLAGS='--cfg getrandom_backend="linux_getrandom"'
# Messages of panics name files of crates, and not of the machine that built it.
RUST_FLAGS="$RUST_FLAGS --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=crates --remap-path-prefix=$PWD=mailrun"
export PROFILE VERSION OUT WORK DATA CARGO GLIBC
# shellcheck disable=SC2034 # the scripts that build use it
BUILD=(--profile "$PROFILE" --config "profile.$PROFILE.strip='symbols'" --config "profile.$PROFILE.debug=false")

has_zig() {
  command -v cargo-zigbuild >/dev/null && python3 -c 'import ziglang' 2>/dev/null
}

# What cannot be built here, in one line.
say_missing() {
  echo "not built: $1"
  mkdir -p target
  echo "package: $1" >>target/skipped-peers.txt
}

binary_of() {
  echo "$WORK/binaries/$1/mailrun"
}

# Packs a directory with sorted names, root as the owner and one time.
pack() {
  tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --directory "$1" "${@:2}"
}
