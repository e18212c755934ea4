#!/usr/bin/env bash
# The gate: what every commit must pass. `make test` and CI run it.
#
#   scripts/test.sh               all stages
#   scripts/test.sh tests timed   these stages
#
# It stops after the first stage that fails; a stage reports each of its failures. Property tests, power cuts and kills
# make new random choices in each run; MAILRUN_SEED=N makes those of run N again.
set -uo pipefail
cd "$(dirname "$0")/.."

# Each stage with its budget in seconds, on two cores in a fresh clone. A stage that takes longer is a warning.
stages="
peers        120
format         5
clippy       130
dependencies  20
build        290
tests        450
timed        120
doctests      20
"

peers() { scripts/install-test-tools.sh && scripts/install-test-peers.sh; }
format() { cargo fmt --all --check; }
clippy() { cargo clippy --workspace --all-targets --quiet --keep-going -- -D warnings; }
dependencies() { scripts/check-dependencies.sh; }
build() { cargo nextest run --workspace --no-run --cargo-quiet; }
tests() { cargo nextest run --workspace --cargo-quiet -E 'not group(timed)'; }
timed() { cargo nextest run --workspace --cargo-quiet -E 'group(timed)'; }
doctests() { cargo test --workspace --doc --quiet --no-fail-fast; }

export PATH="$PWD/target/peers:$PWD/target/tools/pypi/bin:$PATH"
: "${MAILRUN_SEED:=$(($(date +%N | sed 's/^0*//') % 1000000))}"
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$MAILRUN_SEED} MAILRUN_CUT_SEED=${MAILRUN_CUT_SEED:-$MAILRUN_SEED}
echo "seed: $MAILRUN_SEED (MAILRUN_SEED=$MAILRUN_SEED make test makes the same random choices)"

# Tests note what they could not test, and the last lines say it.
skipped=target/skipped-peers.txt
mkdir -p target
rm -f $skipped target/nextest/default/junit.xml

# Tests of the last run that passed only when they were tried again.
retried_tests() {
    grep -sB1 '<flakyFailure' target/nextest/default/junit.xml | sed -n 's/.*<testcase name="\([^"]*\)".*/\1 /p' | tr -d '\n'
}

rows=
retried=
warnings=
free=$(df -Pk target | awk 'NR == 2 { print int($4 / 1048576) }')
[ "$free" -ge 8 ] || warnings="WARNING: $free GB were free on this disk; a build from scratch takes up to 8 GB"$'\n'
status=0
while read -r stage budget; do
    [ -n "$stage" ] || continue
    case " ${*:-$stage} " in *" $stage "*) ;; *) continue ;; esac
    echo "== $stage"
    began=$SECONDS
    "$stage" </dev/null || status=$?
    took=$((SECONDS - began))
    outcome=ok
    [ $status = 0 ] || outcome=FAILED
    rows+=$(printf '%-12s %5d s of %4d  %s' "$stage" "$took" "$budget" "$outcome")$'\n'
    case $stage in tests | timed) retried+=$(retried_tests) ;; esac
    [ "$took" -le "$budget" ] || warnings+="WARNING: $stage took $took s; its budget is $budget s"$'\n'
    [ $status = 0 ] || break
done <<<"$stages"

echo "== stages"
printf '%s' "$rows"
printf '%-12s %5d s\n' together "$SECONDS"
printf '%s' "$warnings"
[ -z "$retried" ] || echo "RETRIED: $retried"
if [ -s $skipped ]; then echo "SKIPPED: $(sort -u $skipped | paste -sd';' | sed 's/;/; /g')"; else echo "nothing was skipped"; fi
[ $status = 0 ] && echo "make test: passed" || echo "make test: FAILED in $stage"
exit $status
