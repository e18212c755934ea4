#!/usr/bin/env bash
# Makes the container image FROM scratch for each architecture, without a daemon or a builder: an OCI layout in a tar file,
# which `podman load`, `skopeo copy oci-archive:…` and, by its manifest.json, `docker load` of any age read.
# packaging/push-image.sh makes one image of them, in a registry.
#
#   /usr/bin/mailrun    the static program, and the entry point; with --worker first it is `mailrun locust worker`
#   /data               the working directory, a volume: spool, results
# It runs as user 65532, also with a read-only root. The health check asks the relay that the image starts by default.
cd "$(dirname "$0")/.."
# shellcheck source=packaging/common.sh
. packaging/common.sh

digest_of() {
  sha256sum "$1" | cut -d ' ' -f 1
}

# Moves a file among the blobs; prints its digest.
add_blob() {
  local digest
  digest=$(digest_of "$1")
  mv "$1" "$blobs/$digest"
  echo "$digest"
}

# Makes the image of an architecture, as Docker names it, from the binary of a target.
make_image() {
  local architecture=$1 target=$2
  if [ ! -x "$(binary_of "$target")" ]; then
    say_missing "the image for $architecture: no binary of $target"
    return
  fi
  stage=$WORK/image/$architecture
  root=$stage/root
  blobs=$stage/layout/blobs/sha256
  rm -rf "$stage"
  mkdir -p "$root/usr/bin" "$root/etc/mailrun" "$root/data" "$root/tmp" "$root/proc" "$root/dev" "$root/sys" "$blobs"
  cp "$(binary_of "$target")" "$root/usr/bin/mailrun"
  cp packaging/image/relay.toml "$root/etc/mailrun/relay.toml"
  printf 'root:x:0:0:root:/:/sbin/nologin\nmailrun:x:65532:65532:mailrun:/data:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n' >"$root/etc/passwd"
  printf 'root:x:0:\nmailrun:x:65532:\nnogroup:x:65534:\n' >"$root/etc/group"
  # Names that a runtime gives in /etc/hosts come before those of name servers.
  printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
  chmod 1777 "$root/tmp"
  chmod 755 "$root" "$root/data"

  # The owner of /data differs from that of all else: it is packed after them.
  layer=$stage/layer.tar
  pack "$root" --exclude=./data . >"$layer"
  tar --append --file="$layer" --owner=65532 --group=65532 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --directory "$root" ./data

  created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
  content=$(digest_of "$layer")
  gzip -9n "$layer"
  layer_digest=$(add_blob "$layer.gz")
  layer_size=$(stat -c %s "$blobs/$layer_digest")

  cat >"$stage/config.json" <<JSON
{"architecture":"$architecture","os":"linux","created":"$created",
"config":{"User":"65532:65532","WorkingDir":"/data","Env":["PATH=/usr/bin"],
"Entrypoint":["/usr/bin/mailrun"],"Cmd":["relay","--config","/etc/mailrun/relay.toml"],
"Volumes":{"/data":{}},"ExposedPorts":{"2525/tcp":{}},"StopSignal":"SIGTERM",
"Healthcheck":{"Test":["CMD","/usr/bin/mailrun","health"],"Interval":10000000000,"Timeout":5000000000,"StartPeriod":60000000000,"Retries":3},
"Labels":{"org.opencontainers.image.title":"mailrun","org.opencontainers.image.version":"$VERSION",
"org.opencontainers.image.licenses":"MIT OR Apache-2.0","org.opencontainers.image.source":"https://github.com/mailrun/mailrun"}},
"rootfs":{"type":"layers","diff_ids":["sha256:$content"]},
"history":[{"created":"$created","created_by":"packaging/image.sh"}]}
JSON
  config_digest=$(add_blob "$stage/config.json")
  config_size=$(stat -c %s "$blobs/$config_digest")

  cat >"$stage/image.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:$config_digest","size":$config_size},
"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:$layer_digest","size":$layer_size}]}
JSON
  manifest_digest=$(add_blob "$stage/image.json")
  manifest_size=$(stat -c %s "$blobs/$manifest_digest")

  cat >"$stage/layout/index.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[
{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:$manifest_digest","size":$manifest_size,
"platform":{"architecture":"$architecture","os":"linux"},
"annotations":{"org.opencontainers.image.ref.name":"$VERSION","io.containerd.image.name":"mailrun:$VERSION"}}]}
JSON
  cat >"$stage/layout/manifest.json" <<JSON
[{"Config":"blobs/sha256/$config_digest","RepoTags":["mailrun:$VERSION"],"Layers":["blobs/sha256/$layer_digest"]}]
JSON
  echo '{"imageLayoutVersion":"1.0.0"}' >"$stage/layout/oci-layout"
  pack "$stage/layout" oci-layout index.json manifest.json blobs >"$OUT/mailrun-$VERSION-image-$architecture.tar"
}

make_image amd64 x86_64-unknown-linux-gnu-static
make_image arm64 aarch64-unknown-linux-musl
