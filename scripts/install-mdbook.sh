#!/usr/bin/env bash
# Installs mdBook from crates.io into target/tools, for `make book`: some minutes, once. Without its server and its watcher,
# which halve the build. Where it cannot be installed, one line says so and the status is 1.
set -eu
cd "$(dirname "$0")/.."
version=0.5.4
place=target/tools
[ "$("$place/bin/mdbook" --version 2>/dev/null)" = "mdbook v$version" ] && exit 0
# Its code is small work: a build without optimisation takes half the time.
if cargo install mdbook --version "=$version" --locked --quiet --debug --force --no-default-features --features search \
    --root "$place"; then
  echo "installed: mdbook $version in $place/bin"
else
  echo "mdbook $version: not installed (crates.io is needed); no book is made"
  exit 1
fi
