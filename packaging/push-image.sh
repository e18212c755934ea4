#!/usr/bin/env bash
# Pushes the images of both architectures as one image to a registry, by skopeo.
#
#   packaging/push-image.sh ghcr.io/mailrun/mailrun:0.1.0 [OPTION OF skopeo copy…]
#
# Who is logged in there is in the file of `docker login`. All architectures must be in target/package, or nothing is pushed.
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh
name=$1
shift
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
entries=()
for architecture in amd64 arm64; do
  image=$OUT/mailrun-$VERSION-image-$architecture.tar
  [ -f "$image" ] || { echo "there is no $image: make package" >&2; exit 2; }
  # The blobs of both are kept, and the files that are replaced below.
  tar -xf "$image" -C "$layout"
  entries+=("$(python3 -c '
import json, sys
entry, = json.load(open(sys.argv[1]))["manifests"]
assert entry["platform"]["architecture"] == sys.argv[2], entry
del entry["annotations"]
print(json.dumps(entry))' "$layout/index.json" "$architecture")")
done
rm "$layout/manifest.json"
# An index within the index is one image of several architectures.
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s,%s]}' "${entries[@]}" >"$layout/both"
digest=$(sha256sum "$layout/both" | cut -d ' ' -f 1)
size=$(stat -c %s "$layout/both")
mv "$layout/both" "$layout/blobs/sha256/$digest"
cat >"$layout/index.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[
{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:$digest","size":$size}]}
JSON
skopeo copy --all "$@" "oci:$layout" "docker://$name"
