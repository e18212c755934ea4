#!/bin/sh
# Holds the tag of a release to the version in Cargo.toml: v0.1.0 is of version 0.1.0. The changelog must have that version.
#
#   scripts/check-tag.sh TAG [DIR]      DIR: the project [default: this one]
set -eu
[ $# -ge 1 ] || { echo "usage: $0 TAG [DIR]" >&2; exit 2; }
cd "${2:-$(dirname "$0")/..}"
version=$(sed -n '/^\[workspace\.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
if [ "$1" != "v$version" ]; then
    echo "the tag is $1, but the version in Cargo.toml is $version: tag v$version, or change the version" >&2
    exit 1
fi
if ! cut -d ' ' -f 1,2 CHANGELOG.md | grep -qxF "## $version"; then
    echo "CHANGELOG.md has no section ## $version: name it so" >&2
    exit 1
fi
echo "tag $1 is version $version"
