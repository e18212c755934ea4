# What this project can do for a developer; CI runs `make test`, then `make test-slow` (.ci/run).
# `make package` makes what is published, `make test-packages` installs and runs it.
.PHONY: check check-release package test-packages package-targets check-tag release-draft bench-packages test test-slow test-fast test-brokers test-locust test-browser test-dashboard gallery book test-book test-crates power-cut crash bench bench-cost bench-locust fuzz-smoke dependencies peers fmt

# Peers that are built here and not installed.
export PATH := $(CURDIR)/target/peers:$(PATH)

# Most tests wait for a clock or a peer most of the time: three run on a processor.
export RUST_TEST_THREADS ?= $(shell echo $$(( 3 * $$(nproc) )))

# What could not be tested is noted while tests run, and said in one line at their end, however they end.
SKIPPED := target/skipped-peers.txt
forget_skipped = @mkdir -p target && rm -f $(SKIPPED)
say_skipped = if [ -s $(SKIPPED) ]; then echo "SKIPPED: $$(sort -u $(SKIPPED) | tr '\n' ';')"; else echo "nothing was skipped"; fi
lint = cargo fmt --all --check && cargo clippy --workspace --all-targets -- -D warnings && \
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet && $(MAKE) --no-print-directory dependencies

# Everything a commit must pass that needs no other software. The fuzz targets are compiled with it: `tests/seeds`
# includes them and replays their seeds.
check:
	$(forget_skipped)
	@{ $(lint) && cargo test --workspace; }; status=$$?; $(say_skipped); exit $$status

# The whole suite, against real peers; installs them where it can. Below 20 minutes on two cores.
test: peers
	$(forget_skipped)
	@{ $(lint) && cargo test --workspace; }; status=$$?; $(say_skipped); exit $$status

# What takes longer: each crate from its package, the book, the packages in a clean Debian, 300 power cuts, fifty kills, report.html in a browser, the dashboard in tmux, every fuzz target built and run for some seconds; the same choices each
# time (`make power-cut` and `make fuzz-smoke` make new ones). Some half an hour on two cores. Each goes on if another fails.
test-slow: peers
	$(forget_skipped)
	@failed=; for one in check-release test-crates test-book test-brokers test-locust power-cut crash test-browser test-dashboard test-packages bench-cost fuzz-smoke; do \
		PACKAGE_PROFILE=release MAILRUN_CUTS=300 MAILRUN_CUT_SEED=4242 FUZZ_OPTIONS=-seed=1 $(MAKE) --no-print-directory $$one || failed="$$failed $$one"; done; \
		$(say_skipped); if [ -n "$$failed" ]; then echo "FAILED:$$failed"; exit 1; fi

# The profile that users build compiles: tests are built by another.
check-release:
	cargo check --release

# Archives, Debian packages, the image and SHA256SUMS, in target/package. What this machine cannot build is said. Two builds
# of the profile `dist`, which take some minutes each (PACKAGE_PROFILE=release: the tests' builds). The tools for it go to target/tools.
package:
	@packaging/package.sh

# The packages where they will be: a clean Debian root, an empty root, the image in a container. Needs root.
test-packages: package
	@scripts/install-test-peers.sh packages
	@packaging/tests/all.sh

# The speed of the static program beside the dynamic one. The machine should be idle.
bench-packages:
	@packaging/speed.sh

# The targets beside this machine's own that packages are made for, where rustup can install them.
package-targets:
	rustup target add aarch64-unknown-linux-gnu aarch64-unknown-linux-musl x86_64-unknown-linux-musl

# A release's tag is its version: TAG=v0.1.0 in the environment. Then a draft of the release on GitHub, with the packages.
check-tag:
	@scripts/check-tag.sh "$$TAG"
release-draft: check-tag
	@gh release create "$$TAG" --draft --verify-tag --title "$$TAG" --notes-file CHANGELOG.md target/package/*

# The suite without the brokers of MADES (Artemis takes a Java runtime, 67 MB and a minute).
test-fast: peers
	$(forget_skipped)
	@MAILRUN_WITHOUT_BROKERS=1 cargo test --workspace; status=$$?; $(say_skipped); exit $$status

# MADES on brokers alone: Artemis, killed in mid-run too, and RabbitMQ, which is installed for it where it can be.
test-brokers:
	@scripts/install-test-peers.sh rabbitmq
	@scripts/install-test-peers.sh amqp
	cargo test --workspace --test all -- --include-ignored mades_brokers:: amqp_peers::

# Workers under real Locust masters of three versions, which are installed from PyPI for it where they can be, and the web
# page of the newest in Chromium. Some three minutes on two cores.
test-locust:
	@scripts/install-locust.sh
	@scripts/install-test-peers.sh browser
	@scripts/install-browser-modules.sh || true
	cargo test --workspace --test all -- --include-ignored locust_masters::

# report.html of each kind of run in Chromium: three widths, light and dark, with scripts and without.
PAGES := target/pages
test-browser:
	@scripts/install-test-peers.sh browser
	@scripts/test-browser.sh $(PAGES)

# The dashboard on terminals of two sizes, in tmux; the screens are in tests/dashboard.
test-dashboard:
	@scripts/install-test-peers.sh dashboard
	@scripts/test-dashboard.sh

# The pictures of docs/gallery.md, made anew.
gallery:
	@scripts/install-test-peers.sh browser
	@scripts/test-browser.sh $(PAGES) --gallery docs/gallery
	@MAILRUN_WRITE_PICTURES=1 cargo test --quiet -p mailrun-dashboard picture::

# The documentation as a book, in target/book. mdBook is built for it the first time.
book:
	@scripts/install-mdbook.sh
	@cargo build --quiet
	@python3 scripts/book.py target/debug/mailrun target/book-src
	@target/tools/bin/mdbook build target/book-src --dest-dir "$(CURDIR)/target/book"
	@cp -r target/book-src/src/. target/book
	@echo "the book is in target/book/index.html"

test-book:
	@if scripts/install-mdbook.sh; then $(MAKE) --no-print-directory book; else \
		mkdir -p target && echo "mdbook: it cannot be installed, so no book is made" >> $(SKIPPED); fi

# Each crate packed as for crates.io, and built from its package.
test-crates:
	@scripts/package-crates.sh

peers:
	@scripts/install-test-peers.sh

# Licences, sources, duplicates and known faults of the crates that this one stands on (deny.toml).
dependencies:
	@scripts/check-dependencies.sh

# The relay on a file system that forgets what was not synced: the power is cut 1,000 times, the disk fails in every way,
# and whatever was answered 250 arrives; prints the account. As root with /dev/fuse. MAILRUN_CUTS says how often,
# MAILRUN_CUT_SEED brings the same choices back, MAILRUN_CUT_LIFE one spool of them.
power-cut:
	cargo test --workspace --test power_cut -- --ignored --exact --nocapture a_thousand_power_cuts_lose_nothing

# The relay killed with SIGKILL 50 times under load: whatever was answered 250 arrives. What it had written stays in the
# page cache, so that this says nothing of syncs: `make power-cut` does. MAILRUN_CRASH_SEED and MAILRUN_CRASH_KILLS choose
# other moments, and how many.
crash:
	cargo test --workspace --test all -- --ignored --exact --nocapture crash::fifty_kills_lose_nothing

# Speed and memory against the raw limit and the older tools, in one run. Takes some minutes; the machine should be idle.
# `cargo bench` builds as the profile `dist` does.
bench:
	cargo bench --bench side_by_side
	cargo bench --bench memory
	cargo bench --bench tls
	cargo bench -p mailrun-smtp --bench protocol
	cargo bench -p mailrun-journey --bench recording
	cargo bench -p mailrun-journey --bench ledger
	cargo bench -p mailrun-report --features sample --bench page
	cargo bench -p mailrun-spool --bench spool

# What a message costs in instructions, allocations, system calls and segments, against benches/cost.json: 3 % more is an
# error. No time is measured, so that the host may be busy. MAILRUN_BLESS=1 stores new figures.
bench-cost:
	@scripts/install-test-peers.sh cost
	cargo build --release
	scripts/bench-cost.py

# A worker under Locust beside the same load run alone, in pairs; it reaches 0.97 of it. Some six minutes.
bench-locust:
	@scripts/install-locust.sh newest
	cargo build --release
	scripts/bench-locust.py

# Every fuzz target, built and run for some seconds on any compiler.
FUZZ_SECONDS ?= 3
fuzz-smoke:
	scripts/fuzz.sh $(FUZZ_SECONDS)

fmt:
	cargo fmt --all
