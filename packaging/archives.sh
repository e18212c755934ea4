#!/usr/bin/env bash
# Packs each binary with its licences, manual pages and completions: mailrun-VERSION-TARGET.tar.gz.
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
for directory in "$WORK"/binaries/*; do
  target=$(basename "$directory")
  name=mailrun-$VERSION-$target
  stage=$WORK/archives/$name
  rm -rf "$stage"
  mkdir -p "$stage"
  cp -R "$directory/mailrun" README.md CHANGELOG.md LICENSE LICENSE-APACHE LICENSE-MIT "$DATA/man1" "$DATA/completions" "$stage"
  mkdir -p "$stage/systemd"
  cp packaging/systemd/* "$stage/systemd"
  pack "$WORK/archives" "$name" | gzip -9n >"$OUT/$name.tar.gz"
done
