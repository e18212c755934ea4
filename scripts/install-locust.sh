#!/usr/bin/env bash
# Installs versions of Locust from PyPI for the tests of `mailrun locust worker`, each in a directory of its own below target:
# the newest, the one that most tests were written with, and Debian's. Where one cannot be installed, one line says so,
# and the tests that need it say that they were skipped.
#
#   scripts/install-locust.sh                   newest, 2.43.3 and 2.12.1
#   scripts/install-locust.sh 2.46.3 newest     these
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- newest 2.43.3 2.12.1
for version in "$@"; do
  place=target/locust-$version
  [ -x "$place/bin/locust" ] && continue
  what=locust==$version
  [ "$version" = newest ] && what=locust
  if python3 -m venv "$place" >/dev/null 2>&1 && timeout 300 "$place/bin/pip" install -q "$what" >/dev/null 2>&1 &&
    "$place/bin/locust" --version >/dev/null 2>&1; then
    echo "Locust $version is in $place: $("$place/bin/pip" list 2>/dev/null | awk '$1 == "locust" {print $2}')"
  else
    rm -rf "$place"
    echo "SKIPPED: Locust $version: python3 -m venv and PyPI are needed, and a Python that this version takes"
  fi
done
