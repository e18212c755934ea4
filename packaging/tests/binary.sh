#!/usr/bin/env bash
# The dynamic binary runs on glibc 2.28 and is small, and every archive is whole.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
# No published binary is as long as that: the drop-ins start once a run, and images are pulled by every worker.
LIMIT=17825792

(cd "$OUT" && sha256sum --quiet --check SHA256SUMS) || fail "SHA256SUMS does not hold"
[ "$(find "$OUT" -type f ! -name SHA256SUMS | wc -l)" = "$(wc -l <"$OUT/SHA256SUMS")" ] || fail "a file has no checksum"
ok "every file has its checksum"

for archive in "$OUT"/*.tar.gz; do
  name=$(basename "$archive" .tar.gz)
  tar -tzf "$archive" >"$WORK/contents"
  for file in mailrun README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE man1/mailrun.1 man1/mailrun-bench.1 \
    completions/_mailrun completions/mailrun.bash completions/mailrun.fish systemd/mailrun-relay.service; do
    grep -qx "$name/$file" "$WORK/contents" || fail "$archive has no $file"
  done
done
ok "the archives have licences, manual pages and completions"

# What cargo-binstall fetches is one of them. Prints that key of Cargo.toml for this machine.
binstall() {
  sed -n "s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml |
    sed "s/{ name }/mailrun/; s/{ bin }/mailrun/; s/{ version }/$VERSION/g; s/{ target }/x86_64-unknown-linux-gnu/"
}
archive=$OUT/$(basename "$(binstall pkg-url)")
[ -e "$archive" ] || fail "cargo-binstall would ask for $archive"
tar -tzf "$archive" "$(binstall bin-dir)" >/dev/null || fail "cargo-binstall would ask for $(binstall bin-dir) in $archive"
ok "cargo-binstall finds the archive"

dynamic=$(binary_of x86_64-unknown-linux-gnu)
[ "$("$dynamic" --version)" = "mailrun $VERSION" ] || fail "it is not version $VERSION"
size=$(stat -c %s "$dynamic")
if [ "$PROFILE" = dist ]; then
  [ "$size" -lt "$LIMIT" ] || fail "the dynamic binary has $size bytes, and $LIMIT are the limit"
  ok "the dynamic binary has $size bytes"
else
  echo "not tested: the size of the binary, which was built by the profile $PROFILE"
fi
file_sections=$(objdump -h "$dynamic")
case $file_sections in *.debug_* | *.symtab*) fail "the dynamic binary is not stripped" ;; esac

if [ -d target/zig/x86_64-unknown-linux-gnu ]; then
  newest=$(objdump -T "$dynamic" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  [ "$(printf '%s\n' "$newest" GLIBC_2.28 | sort -V | tail -n 1)" = GLIBC_2.28 ] || fail "it needs $newest"
  ok "no symbol is newer than $newest"
else
  skip "glibc 2.28: zig could not be installed, and the binary is for this machine's glibc"
fi
