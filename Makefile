# What this project can do for a developer; `make test` is what CI runs.
.PHONY: check test bench fuzz-smoke peers fmt

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

peers:
	@scripts/install-test-peers.sh

# Speed and memory against the raw limit and the older tools, in one run. Takes some minutes; the machine should be idle.
bench:
	cargo bench --bench side_by_side
	cargo bench --bench memory
	cargo bench -p mailrun-journey --bench ledger

fmt:
	cargo fmt --all
