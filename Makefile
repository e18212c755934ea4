# What this project can do for a developer. CI runs `make test` (.ci/run), and `make test-slow` every night.
.PHONY: test clippy rustdoc oldest-rust test-slow test-repeat test-packages package package-targets check-tag release-draft push-image publish-wheels publish-crates bench-packages gallery book bench bench-cost bench-locust results fmt

# Everything a commit must pass: format, clippy, dependencies, and the tests, with real peers, which it installs where it
# can. At most 15 minutes on two cores.
test:
	@scripts/test.sh

# One stage of `make test` alone, and two checks beside it: the API documentation, and the oldest Rust that Cargo.toml declares.
clippy:
	@scripts/test.sh clippy
rustdoc:
	@scripts/test-slow.sh --part doc
oldest-rust:
	@version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) && rustup toolchain install "$$version" --profile minimal && \
	cargo "+$$version" check --workspace --all-targets --locked

# What takes longer: PART=power-cut for one part, PART=changed for the parts whose subject has changed (since SINCE=COMMIT).
# `scripts/test-slow.sh` has the list.
test-slow:
	@scripts/test-slow.sh $(PART) $(SINCE)

# The tests three times in a row, once beside two busy loops; goes on where it was stopped.
test-repeat:
	@scripts/test-repeat.sh

# Archives, Debian packages, the image and SHA256SUMS, in target/package. What this machine cannot build is said. Two builds
# of the profile `dist`, which take some minutes each (PACKAGE_PROFILE=release: the tests' builds). The tools for it go to target/tools.
package:
	@packaging/package.sh

# The packages where they will be: a clean Debian root, an empty root, the image in a container. Needs root.
test-packages: package
	@scripts/install-test-peers.sh packages
	@packaging/tests/all.sh

# What a release publishes beside its draft, which cannot be taken back: the image of both architectures (REGISTRY_USER and
# REGISTRY_PASSWORD), the wheels (TWINE_PASSWORD), the crates (CARGO_REGISTRY_TOKEN). DRY_RUN=1 checks wheels and crates only.
push-image: check-tag
	@printf %s "$$REGISTRY_PASSWORD" | skopeo login --username "$$REGISTRY_USER" --password-stdin ghcr.io
	@packaging/push-image.sh "ghcr.io/mailrun/mailrun:$${TAG#v}"
publish-wheels:
	@scripts/publish.sh wheels
publish-crates:
	@scripts/publish.sh crates

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

# The pictures of docs/gallery.md, made anew.
gallery:
	@scripts/install-test-peers.sh browser
	@scripts/test-browser.sh target/pages --gallery docs/gallery
	@MAILRUN_WRITE_PICTURES=1 cargo test --quiet -p mailrun-dashboard picture::
	@MAILRUN_WRITE_PICTURES=1 cargo test --quiet -p mailrun --test all grafana::a_prometheus -- --ignored

# The documentation as a book, in target/book. mdBook is built for it the first time.
book:
	@scripts/install-mdbook.sh
	@cargo build --quiet
	@python3 scripts/book.py target/debug/mailrun target/book-src
	@target/tools/bin/mdbook build target/book-src --dest-dir "$(CURDIR)/target/book"
	@cp -r target/book-src/src/. target/book
	@echo "the book is in target/book/index.html"

# Speed and memory against the raw limit and the older tools, in one run. Takes some minutes; the machine should be idle.
# `cargo bench` builds as the profile `dist` does.
bench:
	cargo bench --bench side_by_side
	cargo bench --bench memory
	cargo bench --bench mailboxes
	cargo bench --bench tls
	cargo bench -p mailrun-smtp --bench protocol
	cargo bench -p mailrun-measurement --bench recording
	cargo bench -p mailrun-measurement --bench ledger
	cargo bench -p mailrun-report --features sample --bench page
	cargo bench -p mailrun-spool --bench spool

# What a message costs in instructions, allocations, system calls and segments, against benches/cost.json: 3 % more is an
# error. No time is measured, so that the host may be busy. MAILRUN_BLESS=1 stores new figures.
bench-cost:
	@scripts/install-test-peers.sh cost
	cargo build --profile dist
	scripts/bench-cost.py

# docs/results.md: mailrun beside the programs that it supersedes. About three hours; goes on where it was stopped. The machine
# should be idle. `scripts/results.py --help` makes single tables. go-smtp-source and go-mades-bench are used if they are on
# the PATH, and Debian roots of other mail servers if `make test-slow PART=recipes` has made them.
results:
	@scripts/install-test-peers.sh
	cargo build --release
	scripts/results.py

# A worker under Locust beside the same load run alone, in pairs; it reaches 0.97 of it. Some six minutes.
bench-locust:
	@scripts/install-locust.sh newest
	cargo build --release
	scripts/bench-locust.py

fmt:
	cargo fmt --all
