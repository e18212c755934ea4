#!/usr/bin/env bash
# The wheel in an empty virtual environment, without a network: it runs the bench, and leaves nothing when it is removed.
cd "$(dirname "$0")/../.."
# shellcheck source=packaging/tests/lib.sh
. packaging/tests/lib.sh
wheel=$(find "$OUT" -name "mailrun-$VERSION-*$(uname -m).whl" | head -n 1)
[ -n "$wheel" ] || skip "the wheel: it was not built"
environment=$(mktemp -d -p "$WORK")
trap 'rm -rf "$environment"' EXIT
python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
program=$PWD/$environment/bin/mailrun
[ "$("$program" --version)" = "mailrun $VERSION" ] || fail "the wheel has another version"
(cd "$environment" && timeout 60 "$program" bench --messages 500 --quiet --out results) >"$WORK/wheel.out" 2>&1 ||
  fail "the bench of the wheel: $(tail -n 5 "$WORK/wheel.out")"
expect_line '^PASS ' "$WORK/wheel.out"
"$environment/bin/pip" uninstall --quiet --yes --disable-pip-version-check mailrun
[ ! -e "$program" ] || fail "the program is there after it was removed"
ok "$(basename "$wheel") runs the bench"
DRY_RUN=1 scripts/publish.sh wheels >"$WORK/twine.out" 2>&1 || fail "$(cat "$WORK/twine.out")"
ok "PyPI would take the wheels, says twine"
