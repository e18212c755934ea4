#!/usr/bin/env bash
# Makes the Debian packages mailrun and mailrun-drop-in for amd64 and arm64 by cargo-deb, from binaries that are built already.
# What goes into them is in Cargo.toml, [package.metadata.deb].
#
#   packaging/debian.sh [VERSION [DIR]]     of another version, elsewhere, for tests
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
version=${1:-$VERSION-1}
out=${2:-$OUT}
if ! command -v cargo-deb >/dev/null; then
  say_missing "the Debian packages: no cargo-deb (scripts/install-package-tools.sh)"
  exit 0
fi
links=$WORK/drop-in
rm -rf "$links"
mkdir -p "$links/bin" "$links/sbin"
ln -s ../bin/mailrun "$links/sbin/smtp-source"
ln -s ../bin/mailrun "$links/sbin/smtp-sink"
ln -s mailrun "$links/bin/go-smtp-source"
ln -s mailrun "$links/bin/go-mades-bench"
for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
  binary=$(binary_of $target)
  if [ ! -x "$binary" ]; then
    say_missing "the Debian packages for $target: no binary"
    continue
  fi
  newest=$(readelf --version-info --wide "$binary" | grep -o 'GLIBC_[0-9][0-9.]*' | sort -uV | tail -n 1)
  if [ "$(printf '%s\n' "$newest" GLIBC_2.28 | sort -V | tail -n 1)" != GLIBC_2.28 ]; then
    say_missing "the Debian packages for $target: the binary needs $newest, and they promise 2.28"
    continue
  fi
  mkdir -p "$WORK/debian"
  cp "$binary" "$WORK/debian/mailrun"
  for variant in "" --variant=drop-in; do
    # shellcheck disable=SC2086 # no word where there is no variant
    cargo-deb deb --quiet --no-build --no-strip --profile dist --target $target --deb-version "$version" $variant --output "$out/"
  done
done
