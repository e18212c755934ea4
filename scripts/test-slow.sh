#!/usr/bin/env bash
# What takes too long for `make test`. The workflow "slow" runs all of it every night.
#
#   scripts/test-slow.sh                   all parts; a part that fails does not keep the others from running
#   scripts/test-slow.sh PART…             these parts, for example: power-cut audit
#   scripts/test-slow.sh changed [COMMIT]  the parts whose subject has changed since that commit, by default since
#                                          origin/main, or the commit before the last one where there is no origin
#
# target/slow-suites.txt says when each part last passed, and on which commit. Random choices are new in each run;
# MAILRUN_SEED=N makes those of run N again. Tests belong to a part by their attribute: #[ignore = "slow: make test-slow
# PART=docs"].
set -uo pipefail
cd "$(dirname "$0")/.."

# Each part with its limit in seconds, and what it does.
parts="
release     900  the release profile compiles
doc         300  the API documentation builds, and its links lead somewhere
crates      900  each crate is packed as for crates.io, and built from its package
book        900  the documentation as a book
docs        900  the command lines and blocks of code of the documentation run as they are printed, and those of other tools are answered
brokers     900  MADES on ActiveMQ Artemis and RabbitMQ, which are killed too, and other AMQP clients
exim        900  what is concluded about a private Exim, by its own queue and log
locust      900  workers under real Locust masters of three versions
power-cut   600  300 power cuts (MAILRUN_CUTS) on a file system that forgets what was not synced
damage      300  a large spool with damage in random places
statistics  300  a thousand simulated comparisons (MAILRUN_COMPARISONS) for each promise of mailrun compare
audit       600  20 rounds of each fault for our relay (MAILRUN_ROUNDS), 5 for Postfix
planted    3000  servers that keep or break their word in one way each, and what an audit says of them
file-systems 300  the models of what a power cut leaves against real ext4, XFS and btrfs
recipes    2400  each server of a recipe apart from this host (those of Debian 13, and Haraka): audits; the services of Compose
mailboxes  1200  private Dovecots and a Cyrus, whose mailboxes are watched, changed by hand, and killed
browser     600  report.html in Chromium
dashboard   300  the dashboard in tmux
probe       600  a probe beside restarts of everything for MAILRUN_PROBE_SECONDS; Prometheus has data for each panel of the dashboard
packages   2700  archives, Debian packages and the image, installed and run where they will be
results    1200  each table of docs/results.md, made small
delay       900  a sink that delays replies by 100 us is measured to do so within 20, on processors that are kept awake
bench-cost 1500  instructions, allocations, system calls and segments of a message, against benches/cost.json
fuzz       1800  every fuzz target, for FUZZ_SECONDS each
"

# Runs the ignored tests whose attribute names that part.
ignored() {
    local part=$1 names
    names=$(grep -rh -A4 --include='*.rs' "make test-slow PART=$part\"\]" tests crates src | sed -n 's/^ *fn \([a-z_0-9]*\)().*/test(\/(^|::)\1$\/)/p' | sort -u | paste -sd'|')
    [ -n "$names" ] || { echo "no test belongs to PART=$part"; return 1; }
    cargo nextest run --profile slow --workspace --cargo-quiet --run-ignored only --success-output final -E "$names"
}

release() { cargo check --release --quiet; }
doc() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet; }
crates() { scripts/package-crates.sh; }
book() {
    scripts/install-mdbook.sh || { echo "mdbook: it cannot be installed, so no book is made" >>$skipped; return 0; }
    make --no-print-directory book
}
docs() { ignored docs && scripts/command-lines.sh; }
brokers() {
    scripts/install-test-peers.sh rabbitmq
    scripts/install-test-peers.sh amqp
    packaging/tests/debian-root.sh rabbitmq trixie
    ignored brokers
}
exim() {
    scripts/install-test-peers.sh exim
    packaging/tests/debian-root.sh exim trixie
    ignored exim
}
locust() {
    scripts/install-locust.sh
    scripts/install-test-peers.sh browser
    scripts/install-browser-modules.sh
    cargo nextest run --profile slow --workspace --cargo-quiet --run-ignored only -E 'test(/^locust_masters::/)' # a macro makes their names
}
power-cut() { MAILRUN_CUTS=${MAILRUN_CUTS:-300} ignored power-cut; }
damage() { ignored damage; }
statistics() {
    MAILRUN_COMPARISONS=${MAILRUN_COMPARISONS:-1000} cargo nextest run --profile slow --cargo-quiet -p mailrun-compare -E 'binary(simulation)'
}
audit() { ignored audit; }
planted() { ignored planted; }
file-systems() {
    scripts/install-test-peers.sh file-systems
    ignored file-systems
}
recipes() {
    scripts/install-test-peers.sh exim
    scripts/install-test-peers.sh haraka
    for server in chasquid courier exim nullmailer opensmtpd postfix sendmail; do
        packaging/tests/debian-root.sh $server trixie
    done
    ignored recipes
}
mailboxes() {
    scripts/install-test-peers.sh exim
    packaging/tests/debian-root.sh cyrus bookworm
    packaging/tests/debian-root.sh dovecot trixie
    ignored mailboxes
}
browser() { scripts/install-test-peers.sh browser && scripts/test-browser.sh target/pages; }
dashboard() { scripts/install-test-peers.sh dashboard && scripts/test-dashboard.sh; }
probe() { scripts/install-test-peers.sh grafana && ignored probe; }
packages() { PACKAGE_PROFILE=${PACKAGE_PROFILE:-release} make --no-print-directory test-packages; }
results() {
    cargo build --release --quiet && scripts/results.py --small --page target/results-small.md --out target/results-small
}
delay() {
    cargo build --release --quiet || return
    [ -w /dev/cpu_dma_latency ] || { echo "delay: /dev/cpu_dma_latency cannot be written" >>$skipped; return 0; }
    # A busy host only lengthens the delay, so one run of three is enough.
    for _ in 1 2 3; do
        rm -rf target/delay
        target/release/mailrun bench --relay none --sessions 1 --reuse --duration 3s --keep-awake on --out target/delay \
            --fault 'rcpt: delay 100us' --threshold 'rcpt.min >= 100us' --threshold 'rcpt.p50 < 120us' && return
    done
    return 1
}
bench-cost() { make --no-print-directory bench-cost; }
fuzz() { FUZZ_OPTIONS=-seed=$((MAILRUN_SEED + 1)) scripts/fuzz.sh "${FUZZ_SECONDS:-5}" ${FUZZ_TARGETS:-}; }

# The fuzz targets that read code of that crate.
targets_of() {
    grep -lE "\bmailrun_${1//-/_}::|crates/$1/" fuzz/fuzz_targets/*.rs | sed 's/.*\///; s/\.rs$//'
}

# The parts whose subject is among the changed files, one per line.
changed_parts() {
    local files=$1
    has() { grep -qE "$1" <<<"$files"; }
    has '^crates/(spool|relay)/' && printf '%s\n' power-cut damage audit
    has '^crates/(crashfs|bench/src/audit)/' && echo planted
    has '^crates/crashfs/' && echo file-systems
    has '^crates/compare/' && echo statistics
    has '^crates/(mades.*|amqp|bench/src/mades_compare)/' && echo brokers
    has '^crates/report/|^tests/browser/' && echo browser
    has '^crates/dashboard/|^tests/dashboard/' && echo dashboard
    has '^deploy/grafana/|^crates/load/src/probe/' && echo probe
    has '^packaging/|^Cargo.lock$' && echo packages
    has '^crates/(relay|load|smtp)/|^Cargo.toml$' && echo bench-cost
    has '^crates/(eventloop|load)/' && echo delay
    has '^crates/(measurement|load)/' && echo exim
    has '^crates/(mailbox|load/src/sink/mailboxes)/|^crates/bench/recipes/(cyrus|dovecot)' && echo mailboxes
    has '^crates/locust/' && echo locust
    has '^crates/bench/recipes/|^deploy/compose/|^packaging/tests/debian-root.sh$' && echo recipes
    has '^(docs/|README.md)' && printf '%s\n' docs book
    [ -z "$(changed_targets "$files")" ] || echo fuzz
}
# The fuzz targets of the crates that have changed.
changed_targets() {
    local crate
    for crate in $(sed -n 's/^crates\/\([a-z-]*\)\/src\/.*/\1/p' <<<"$1" | sort -u); do targets_of "$crate"; done | sort -u
}

export PATH="$PWD/target/peers:$PWD/target/tools/pypi/bin:$PATH"
skipped=target/skipped-peers.txt
mkdir -p target

# One part, as a process of its own under its limit.
if [ "${1:-}" = --part ]; then "$2"; exit; fi

names=$(awk 'NF { print $1 }' <<<"$parts")
wanted=${*:-$names}
if [ "${1:-}" = changed ]; then
    since=${2:-$(git rev-parse --quiet --verify origin/main || git rev-parse HEAD~1)}
    files=$(git diff --name-only "$since" && git ls-files --others --exclude-standard) || exit 2
    wanted=$(changed_parts "$files")
    export FUZZ_TARGETS FUZZ_SECONDS=${FUZZ_SECONDS:-30}
    FUZZ_TARGETS=$(changed_targets "$files" | paste -sd' ')
    echo "changed since $(git rev-parse --short "$since"): ${wanted:-no subject of a slow part}" | paste -sd' '
    [ -n "$wanted" ] || exit 0
fi
for part in $wanted; do
    grep -qx -- "$part" <<<"$names" || { echo "there is no part $part; the parts are: ${names//$'\n'/ }" >&2; exit 2; }
done

: "${MAILRUN_SEED:=$(($(date +%N | sed 's/^0*//') % 1000000))}"
export MAILRUN_SEED PROPTEST_RNG_SEED=$MAILRUN_SEED MAILRUN_CUT_SEED=$MAILRUN_SEED
echo "seed: $MAILRUN_SEED"
rm -f $skipped
scripts/install-test-tools.sh || exit 2
scripts/install-test-peers.sh
record=target/slow-suites.txt
commit=$(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo "+changes")
failed=
for part in $wanted; do
    limit=$(awk -v part="$part" '$1 == part { print $2 }' <<<"$parts")
    echo "== $part"
    began=$SECONDS
    if timeout --kill-after=30 "$limit" "$0" --part "$part" </dev/null; then
        line=$(printf '%-10s passed %s on %s, %d s, seed %d' "$part" "$(date -u +%FT%TZ)" "$commit" $((SECONDS - began)) "$MAILRUN_SEED")
        { grep -v "^$part " $record 2>/dev/null; echo "$line"; } >$record.new; mv $record.new $record
        echo "$line"
    else
        status=$?
        [ $status != 124 ] || echo "$part was stopped after its limit of $limit s"
        echo "$part: FAILED"
        failed+=" $part"
    fi
done
if [ -s $skipped ]; then echo "SKIPPED: $(sort -u $skipped | paste -sd';' | sed 's/;/; /g')"; fi
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
echo "all passed: $(paste -sd' ' <<<"$wanted")"
