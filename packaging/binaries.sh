#!/usr/bin/env bash
# Builds the program for each Rust target whose standard library is installed, stripped, into target/packaging/binaries.
#
#   x86_64-unknown-linux-gnu           runs on glibc 2.28 and newer; where zig is missing, on this machine's and newer
#   x86_64-unknown-linux-gnu-static    runs on any Linux: glibc is in it
#   aarch64-unknown-linux-gnu          as the first; needs zig
#   *-unknown-linux-musl               musl is in it; needs zig
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
libraries=$(rustc --print sysroot)/lib/rustlib

# Keeps the binary of a build under the name of its package.
keep() {
  mkdir -p "$WORK/binaries/$1"
  cp "$2" "$WORK/binaries/$1/mailrun"
  echo "built: $1, $(stat -c %s "$2") bytes"
}

with_zig() {
  local target=$1 suffix=$2
  RUSTFLAGS=$RUST_FLAGS "$CARGO" zigbuild "${BUILD[@]}" --target "$target$suffix" --target-dir target/zig
  keep "$target" "target/zig/$target/$PROFILE/mailrun"
}

for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
  case $target in *-gnu) suffix=.$GLIBC ;; *) suffix= ;; esac
  if [ ! -d "$libraries/$target/lib" ]; then
    say_missing "$target: its standard library is not installed (rustup target add $target)"
  elif has_zig; then
    with_zig "$target" "$suffix"
  elif [ "$target" = "$(rustc -vV | sed -n 's/^host: //p')" ]; then
    say_missing "$target for glibc $GLIBC: no zig; built for this machine's glibc instead"
    RUSTFLAGS=$RUST_FLAGS "$CARGO" build "${BUILD[@]}" --target "$target" --target-dir target/native
    keep "$target" "target/native/$target/$PROFILE/mailrun"
  else
    say_missing "$target: no zig (scripts/install-package-tools.sh)"
  fi
done

target=x86_64-unknown-linux-gnu
if [ "$(rustc -vV | sed -n 's/^host: //p')" != "$target" ]; then
  say_missing "$target-static: this machine is another kind"
elif ! cc -O2 -c packaging/static/name_service.c -o "$WORK/name_service.o"; then
  say_missing "$target-static: no C compiler with glibc's headers"
else
  RUSTFLAGS="$RUST_FLAGS -C target-feature=+crt-static -C link-arg=$PWD/$WORK/name_service.o" \
    "$CARGO" build "${BUILD[@]}" --target "$target" --target-dir target/static
  keep "$target-static" "target/static/$target/$PROFILE/mailrun"
fi
