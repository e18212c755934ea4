#!/usr/bin/env bash
# The image, unpacked as its manifest says and run with a read-only root as user 65532, by crun, runc or bwrap: the default
# command and its health check, other commands, and what the digests say.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
image=$OUT/mailrun-$VERSION-image-amd64.tar
if [ "${1:-}" != inside ]; then
  [ -f "$image" ] || skip "the image: it was not built"
  [ "$(id -u)" = 0 ] || skip "the image: needs root"
  exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside
fi
ip link set lo up
place=$(realpath "$(mktemp -d -p "$WORK")")
chmod 755 "$place"
trap 'rm -rf "$place"' EXIT

# Checks every digest on the way from the index to the files, and prints the layer's blob, and the configuration as words.
cat >"$place/unpack.py" <<'PYTHON'
import gzip, hashlib, json, os, sys, tarfile
layout, root = sys.argv[1], sys.argv[2]
def blob(of):
    data = open(f"{layout}/blobs/" + of["digest"].replace(":", "/"), "rb").read()
    assert of["digest"] == "sha256:" + hashlib.sha256(data).hexdigest() and of["size"] == len(data), of
    return data
assert json.load(open(f"{layout}/oci-layout"))["imageLayoutVersion"] == "1.0.0"
manifest = json.loads(blob(json.load(open(f"{layout}/index.json"))["manifests"][0]))
config = json.loads(blob(manifest["config"]))
docker = json.load(open(f"{layout}/manifest.json"))[0]
assert "sha256:" + os.path.basename(docker["Config"]) == manifest["config"]["digest"]
for layer, content in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
    data = gzip.decompress(blob(layer))
    assert content == "sha256:" + hashlib.sha256(data).hexdigest()
    open(f"{root}.tar", "wb").write(data)
    tarfile.open(f"{root}.tar").extractall(root, numeric_owner=True)
settings = config["config"]
assert settings["User"] == "65532:65532" and settings["Entrypoint"] == ["/usr/bin/mailrun"], settings
json.dump({"command": settings["Cmd"], "health": settings["Healthcheck"]["Test"][1:]}, open(f"{root}.json", "w"))
PYTHON
mkdir "$place/layout" "$place/root"
tar -xf "$image" -C "$place/layout"
python3 "$place/unpack.py" "$place/layout" "$place/root" || fail "the image's digests do not hold"
ok "every digest of the image holds"
[ "$(stat -c '%u:%g' "$place/root/data")" = 65532:65532 ] || fail "/data is not the user's"

# Writes a bundle: a read-only root, an own /tmp, /data as the only place to write, this network, no capability.
cat >"$place/bundle.py" <<'PYTHON'
import json, sys
root, data, out, words = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
mount = lambda to, kind, source, options: {"destination": to, "type": kind, "source": source, "options": options}
json.dump({"ociVersion": "1.0.2", "hostname": "mailrun",
  "root": {"path": root, "readonly": True},
  "process": {"terminal": False, "user": {"uid": 65532, "gid": 65532}, "args": words, "env": ["PATH=/usr/bin"],
    "cwd": "/data", "noNewPrivileges": True, "capabilities": {}},
  "mounts": [mount("/proc", "proc", "proc", []), mount("/tmp", "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777"]),
    mount("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755"]), mount("/data", "bind", data, ["bind", "rw"])],
  "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]}}, open(f"{out}/config.json", "w"))
PYTHON
mkdir "$place/data"
chown 65532:65532 "$place/data"
count=0
# Runs words in a container of the image.
contain() {
  count=$((count + 1))
  if [ "$runtime" = bwrap ]; then
    setpriv --reuid=65532 --regid=65532 --clear-groups bwrap --unshare-pid --unshare-ipc --unshare-uts --ro-bind "$place/root" / --proc /proc \
      --dev /dev --tmpfs /tmp --bind "$place/data" /data --chdir /data --die-with-parent "$@"
  else
    mkdir "$place/bundle-$count"
    python3 "$place/bundle.py" "$place/root" "$place/data" "$place/bundle-$count" "$@"
    "$runtime" --root "$place/state" run --bundle "$place/bundle-$count" "mailrun-$$-$count"
  fi
}

json_words() {
  python3 -c 'import json, sys; print("\n".join(json.load(open(sys.argv[1]))[sys.argv[2]]))' "$place/root.json" "$1"
}
mapfile -t command < <(json_words command)
mapfile -t health < <(json_words health)

# The first runtime that works here: crun and runc need cgroups that they know.
works=
tried=
for runtime in crun runc bwrap; do
  command -v "$runtime" >/dev/null || continue
  said=$(contain /usr/bin/mailrun --version 2>&1) || true
  [ "$said" != "mailrun $VERSION" ] || { works=yes && break; }
  tried="$tried $runtime: $said;"
done
if [ -z "$works" ]; then
  [ -n "$tried" ] || skip "the image: none of crun, runc and bwrap is installed"
  fail "the image does not run:$tried"
fi
ok "the image runs by $runtime, read-only, as user 65532"
if contain "${health[@]}" >"$place/health.log" 2>&1; then fail "healthy without a relay"; fi
contain /usr/bin/mailrun "${command[@]}" >"$place/relay.log" 2>&1 &
await "the image's relay" listens 2525
await "the relay to be healthy" contain "${health[@]}"
contain /usr/bin/mailrun source 127.0.0.1:2525 --messages 20 >"$place/source.log" 2>&1 || fail "$(cat "$place/source.log")"
contain /usr/bin/mailrun sink --listen 127.0.0.1:2526 --max-messages 20 >"$place/sink.log" 2>&1 || fail "$(cat "$place/sink.log")"
ok "its default command is a relay that is healthy, takes mail and forwards it"
contain /usr/bin/mailrun bench --duration 1s >"$place/bench.log" 2>&1 || fail "$(cat "$place/bench.log")"
expect_line "none lost" "$place/bench.log"
ok "mailrun bench runs in it"
contain /usr/bin/mailrun --worker --help >"$place/worker.log" 2>&1 || fail "--worker: $(cat "$place/worker.log")"
expect_line "Usage: mailrun locust worker" "$place/worker.log"
ok "--worker is mailrun locust worker"
