# What one does with this repository. `make` alone prints the list.

.DEFAULT_GOAL := help
.PHONY: help demo test lint doc

# never in the tree: other cryptography than aws-lc-rs
FORBIDDEN := ring openssl openssl-sys native-tls rsa
# in the tree once: two versions would not share keys, connections or layers
SINGLE := rustls aws-lc-rs hyper tower-http

help: ## print this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## a cancelled concert: 2000 refunds over real HTTP on a throw-away database, books checked
	cargo run --release --quiet -- demo

test: ## all tests, beside a MariaDB that is started for them
	tests/with-mariadb cargo test --workspace

lint: ## format, clippy, documentation of private items, and which packages are in the tree
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items --workspace
	@packages=$$(cargo tree --workspace --prefix none --format '{p}') || exit 1; \
	versions() { printf '%s\n' "$$packages" | awk -v name="$$1" '$$1 == name { print $$2 }' | sort -u; }; \
	faults=0; \
	for name in $(FORBIDDEN); do \
		for version in $$(versions $$name); do \
			echo "$$name must not be in the tree; it comes by:"; \
			cargo tree --workspace -i "$$name@$${version#v}"; \
			faults=1; \
		done; \
	done; \
	for name in $(SINGLE); do \
		count=$$(versions $$name | wc -l); \
		if [ "$$count" -ne 1 ]; then \
			echo "$$name must be in the tree once, and is there $$count times:"; \
			for version in $$(versions $$name); do cargo tree --workspace -i "$$name@$${version#v}"; done; \
			faults=1; \
		fi; \
	done; \
	exit $$faults

doc: ## the documentation, private items too, in target/doc
	cargo doc --no-deps --document-private-items --workspace
