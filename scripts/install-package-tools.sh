#!/usr/bin/env bash
# Installs what `make package` needs, below target/tools: cargo-deb from crates.io, cargo-zigbuild, zig and maturin from
# PyPI, of the versions here. What cannot be installed is said, and what it would have made is left out.
set -eu
cd "$(dirname "$0")/.."
CARGO_DEB=3.8.0
CARGO_ZIGBUILD=0.23.4
ZIG=0.15.2
MATURIN=1.16.0
tools=target/tools
mkdir -p "$tools"
if [ ! -x "$tools/bin/cargo-deb" ]; then
  # It packs a few files: it need not be optimised.
  CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off timeout 1200 "${CARGO:-cargo}" install --quiet --locked --root "$tools" \
    --no-default-features --features lzma --version "$CARGO_DEB" cargo-deb >"$tools/cargo-deb.log" 2>&1 ||
    echo "cargo-deb $CARGO_DEB: not installed: $(grep '^error' "$tools/cargo-deb.log" | head -n 1)"
fi
if [ ! -x "$tools/python/bin/maturin" ]; then
  if ! { python3 -m venv "$tools/python" && timeout 600 "$tools/python/bin/pip" install --quiet \
    "cargo-zigbuild==$CARGO_ZIGBUILD" "ziglang==$ZIG" "maturin==$MATURIN"; } >"$tools/zig.log" 2>&1; then
    rm -rf "$tools/python"
    echo "cargo-zigbuild $CARGO_ZIGBUILD, zig $ZIG, maturin $MATURIN: not installed: $(tail -n 1 "$tools/zig.log")"
  fi
fi
