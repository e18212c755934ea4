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
export PROFILE VERSION OUT WORK DATA CARGO

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
