#!/usr/bin/env bash
# Shows that the tests do not fail by chance: the stages `tests` and `timed` three times on one commit, the second time
# beside two busy loops. target/test-repeat.txt keeps each run that passed, so that the script goes on where it was stopped.
set -uo pipefail
cd "$(dirname "$0")/.."
record=target/test-repeat.txt
commit=$(git rev-parse --short HEAD)
git diff --quiet HEAD || { echo "there are changes that are not committed; the runs belong to a commit" >&2; exit 2; }
scripts/test.sh peers build || exit
for run in 1-alone 2-busy 3-alone; do
    if grep -qs "^$commit $run " $record; then echo "$run passed before"; continue; fi
    loops=()
    if [ $run = 2-busy ]; then
        for _ in 1 2; do timeout 3600 sh -c 'while :; do :; done' & loops+=($!); done
    fi
    log=target/test-repeat-$run.log
    began=$SECONDS
    timeout 3600 scripts/test.sh tests timed 2>&1 | tee "$log" | grep -E 'FAIL|FLAKY|Summary|^make test'
    status=${PIPESTATUS[0]}
    [ ${#loops[@]} = 0 ] || kill "${loops[@]}"
    [ "$status" = 0 ] || { echo "$run failed: $log"; exit 1; }
    echo "$commit $run passed in $((SECONDS - began)) s, retried: $(grep -c '^ *FLAKY' "$log")" | tee -a $record
done
