# What this project can do for a developer; `make test` is what CI runs.
.PHONY: check test test-slow test-fast test-brokers power-cut crash bench fuzz-smoke peers fmt

# Peers that are built here and not installed.
export PATH := $(CURDIR)/target/peers:$(PATH)

# Everything a commit must pass that needs no other software.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace

# The whole suite, against real peers; installs them where it can.
test: peers
	@mkdir -p target && rm -f target/skipped-peers.txt
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace
	@if [ -s target/skipped-peers.txt ]; then echo "SKIPPED: $$(sort -u target/skipped-peers.txt | tr '\n' ';')"; else echo "nothing was skipped"; fi

# The same without the brokers of MADES (Artemis takes a Java runtime, 67 MB and a minute).
test-fast: peers
	@mkdir -p target && rm -f target/skipped-peers.txt
	MAILRUN_WITHOUT_BROKERS=1 cargo test --workspace
	@if [ -s target/skipped-peers.txt ]; then echo "SKIPPED: $$(sort -u target/skipped-peers.txt | tr '\n' ';')"; else echo "nothing was skipped"; fi

# MADES on brokers alone: Artemis, killed in mid-run too, and RabbitMQ, which is installed for it where it can be.
test-brokers:
	@scripts/install-test-peers.sh rabbitmq
	cargo test --test all -- --include-ignored mades_brokers::

peers:
	@scripts/install-test-peers.sh

# The relay on a file system that forgets what was not synced: the power is cut 1,000 times, the disk fails in every way,
# and whatever was answered 250 arrives; prints the account. As root with /dev/fuse. MAILRUN_CUTS says how often,
# MAILRUN_CUT_SEED brings the same choices back, MAILRUN_CUT_LIFE one spool of them.
power-cut:
	cargo test --test power_cut -- --ignored --exact --nocapture a_thousand_power_cuts_lose_nothing

# The relay killed with SIGKILL 50 times under load: whatever was answered 250 arrives. What it had written stays in the
# page cache, so that this says nothing of syncs: `make power-cut` does. MAILRUN_CRASH_SEED and MAILRUN_CRASH_KILLS choose
# other moments, and how many.
crash:
	cargo test --test all -- --ignored --exact --nocapture crash::fifty_kills_lose_nothing

# Speed and memory against the raw limit and the older tools, in one run. Takes some minutes; the machine should be idle.
bench:
	cargo bench --bench side_by_side
	cargo bench --bench memory
	cargo bench --bench tls
	cargo bench -p mailrun-journey --bench ledger
	cargo bench -p mailrun-spool --bench spool

# Each fuzz target for some seconds; needs a nightly compiler, or a stable one's consent.
FUZZ_SECONDS ?= 10
FUZZ_TARGETS := $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))
# libFuzzer's hooks are unstable compiler flags: the nightly compiler has them, a stable one lends them on request.
NIGHTLY := $(if $(shell rustup toolchain list 2>/dev/null | grep ^nightly),+nightly)

fuzz-smoke:
	command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
	$(if $(NIGHTLY),,RUSTC_BOOTSTRAP=1) cargo $(NIGHTLY) fuzz build
	set -e; for target in $(FUZZ_TARGETS); do \
		mkdir -p fuzz/corpus/$$target; \
		$(if $(NIGHTLY),,RUSTC_BOOTSTRAP=1) cargo $(NIGHTLY) fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -dict=fuzz/smtp.dict -verbosity=0 -print_final_stats=1; \
	done

fmt:
	cargo fmt --all
