#!/usr/bin/env bash
# Makes everything that is published, in target/package: archives, Debian packages, the image, and SHA256SUMS. What this
# machine cannot build is said in a line each.
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
rm -rf "$OUT" "$WORK"
mkdir -p "$OUT" "$WORK"
scripts/install-package-tools.sh
packaging/binaries.sh
packaging/data.sh
packaging/archives.sh
packaging/debian.sh
packaging/image.sh
packaging/wheel.sh
(cd "$OUT" && sha256sum -- * >SHA256SUMS)
ls -l "$OUT"
