#!/bin/sh
# Builds every fuzz target and runs each for some seconds from its seeds; an input that breaks one ends it with an error.
#
#   scripts/fuzz.sh                     10 seconds each
#   scripts/fuzz.sh SECONDS [TARGET…]
#
# The compiler is the one that builds the rest: what libFuzzer needs of it, a counter at each edge, takes no nightly one.
# There is no sanitizer: no target has unsafe code of ours, and what it looks for are its own assertions and panics.
# `cargo fuzz` has one, for longer runs.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
[ $# -eq 0 ] || shift
all=$(cd fuzz/fuzz_targets && ls -- *.rs | sed 's/\.rs$//')
targets=${*:-$all}
host=$(rustc -vV | sed -n 's/^host: //p')
profile=smoke

RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo build --manifest-path fuzz/Cargo.toml --profile $profile --target "$host" --bins

# One target: its last words, if it fails, and how often it ran.
run='
target=$1
mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
log=fuzz/artifacts/$target.log
if timeout $((SECONDS_EACH + 120)) "fuzz/target/$HOST/$PROFILE/$target" "fuzz/corpus/$target" "fuzz/seeds/$target" \
    -max_total_time="$SECONDS_EACH" ${FUZZ_OPTIONS:-} -timeout=30 -rss_limit_mb=2048 -dict=fuzz/smtp.dict -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$target/" >"$log" 2>&1; then
    echo "fuzz $target: ok, $(sed -n "s/^stat::number_of_executed_units: *//p" "$log") inputs"
else
    tail -n 40 "$log"
    echo "fuzz $target: FAILED"
    exit 1
fi'
export SECONDS_EACH="$seconds" HOST="$host" PROFILE=$profile
count=$(echo $targets | wc -w)
if printf '%s\n' $targets | xargs -P "$(nproc)" -I '{}' sh -c "$run" fuzz '{}'; then
    echo "test result: ok. $count fuzz targets ran $seconds s each; 0 failed"
else
    echo "test result: FAILED. Of $count fuzz targets some failed; what broke them is in fuzz/artifacts"
    exit 1
fi
