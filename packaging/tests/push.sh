#!/usr/bin/env bash
# The image of both architectures, pushed as a release pushes it, to a registry in a Debian of its own.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || skip "the push of the image: needs root"
  for architecture in amd64 arm64; do
    [ -f "$OUT/mailrun-$VERSION-image-$architecture.tar" ] || skip "the push of the image: none for $architecture was built"
  done
  registry=$(packaging/tests/debian-root.sh registry trixie)
  [ -n "$registry" ] || skip "the push of the image: debootstrap could not make a root (target/roots/*.log)"
  exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside "$registry"
fi
ip link set lo up
place=$(realpath "$(mktemp -d -p "$WORK")")
root=$place/root
trap 'rm -rf "$place"' EXIT
mkdir "$root" "$place/bin"
tar -xf "$2" -C "$root"
# skopeo of the root, with the libraries of the root, and outside it, where the images are.
cat >"$place/bin/skopeo" <<SKOPEO
#!/bin/sh
exec "$root"/usr/lib*/ld-linux-*.so.* --library-path "$(find "$root/usr/lib" -maxdepth 1 -name '*-linux-gnu')" "$root/usr/bin/skopeo" --insecure-policy "\$@"
SKOPEO
chmod +x "$place/bin/skopeo"
PATH=$place/bin:$PATH
cat >"$root/registry.yml" <<YAML
version: 0.1
storage: { filesystem: { rootdirectory: /var/lib/docker-registry } }
http: { addr: "127.0.0.1:5000" }
YAML
chroot "$root" docker-registry serve /registry.yml >"$place/registry.log" 2>&1 &
await "the registry" listens 5000
name=localhost:5000/mailrun/mailrun:$VERSION
packaging/push-image.sh "$name" --dest-tls-verify=false >"$place/push.log" 2>&1 || fail "$(cat "$place/push.log")"
skopeo inspect --raw --tls-verify=false "docker://$name" >"$place/index.json"
for architecture in amd64 arm64; do
  tar -xOf "$OUT/mailrun-$VERSION-image-$architecture.tar" index.json >"$place/own.json"
  python3 -c '
import json, sys
index, own = (json.load(open(path))["manifests"] for path in sys.argv[1:3])
pushed = {entry["platform"]["architecture"]: entry["digest"] for entry in index}
assert len(pushed) == 2 and pushed[sys.argv[3]] == own[0]["digest"], (pushed, own)' \
    "$place/index.json" "$place/own.json" "$architecture" || fail "$architecture: $(cat "$place/index.json")"
done
ok "one image of both architectures is in the registry, with the digests of the files"
