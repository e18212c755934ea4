#!/usr/bin/env bash
# Packs the program for glibc 2.28 as a Python wheel for each architecture, which needs no Python module:
# mailrun-VERSION-py3-none-….whl. maturin has cargo build it again, which finds it in target/zig.
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
if ! command -v maturin >/dev/null; then
  say_missing "the wheel: maturin could not be installed"
  exit 0
fi
if has_zig; then
  for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
    [ -x "$(binary_of $target)" ] || { say_missing "the wheel for $target: no binary"; continue; }
    CARGO_TARGET_DIR=target/zig RUSTFLAGS=$RUST_FLAGS maturin build "${BUILD[@]}" --out "$OUT" --zig --target $target \
      --compatibility "manylinux_${GLIBC/./_}"
  done
else
  say_missing "the wheel for glibc $GLIBC: no zig; it is for this machine's glibc instead"
  CARGO_TARGET_DIR=target/native RUSTFLAGS=$RUST_FLAGS maturin build "${BUILD[@]}" --out "$OUT"
fi
