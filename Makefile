# Two commands for a fresh machine: `make run` and `make test`.

CARGO ?= cargo
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
# SQL is checked against .sqlx, not against whatever database the environment
# names.
export SQLX_OFFLINE = true
unexport DATABASE_URL

.PHONY: help run test test-one-by-one replay bench check fmt clippy doc sqlx sqlx-check openapi postgres faketime

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

postgres: ## Install Postgres from the distribution if none is found
	@scripts/install-postgres

faketime: ## Install libfaketime, which one test needs, where that is possible
	@scripts/install-faketime

run: postgres ## Start the service on its own Postgres, with keys and curl lines to try
	$(CARGO) build --release --locked
	$(RELEASE)/spend-ledger serve --policy policy.example.yaml --quickstart

test: postgres faketime ## Run all tests
	$(CARGO) test --locked --workspace

# TESTS= runs the whole suite like that.
TESTS = amounts attempts calls closing identity settling stopping worked_cases races::room refusals
test-one-by-one: postgres ## Run the tests of verbs with grouping off (TESTS= for all)
	SPEND_LEDGER_GROUPING=off $(CARGO) test --locked --test suite -- $(TESTS)

replay: postgres ## Replay the sample trace against a service of its own
	$(CARGO) build --release --locked
	scripts/replay-sample $(RELEASE)/spend-ledger

bench: postgres ## Measure the service on a Postgres of its own (half an hour; BENCH=--quick for a minute)
	$(CARGO) build --release --locked
	$(RELEASE)/spend-ledger bench $(BENCH)

check: fmt clippy doc sqlx-check ## Everything that CI checks besides the tests

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

sqlx: ## Write .sqlx anew after a change of a statement or a migration
	scripts/sqlx-prepare

sqlx-check:
	scripts/sqlx-prepare --check

openapi: ## Write openapi.yaml anew after a change of the API
	$(CARGO) run --quiet -- openapi > openapi.yaml.new
	mv openapi.yaml.new openapi.yaml
