# PyroMQ. `make` alone lists what there is. Everything is built into .venv; pip and Maven keep their usual caches.

BIN := .venv/bin
READY := .venv/.ready
KERNEL := $(wildcard src/pyromq/*/*.pyx src/pyromq/*/*.pxd)
SPARK_BENCHMARKS := $(sort $(wildcard benchmarks/spark_*.py))
BENCHMARKS := $(filter-out benchmarks/common.py benchmarks/client_soak.py $(SPARK_BENCHMARKS),$(sort $(wildcard benchmarks/*.py)))
# Crash states of each setting.
CRASH_STATES ?= 100000
# How often each process of a Spark application, and the broker, is killed; faults of a pair.
ROUNDS ?= 20

.DEFAULT_GOAL := help
.PHONY: help setup run test check interop crash bench bench-broker bench-client bench-replication bench-spark soak chaos-pair kills-spark soak-spark docs clean

help: ## List these targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: $(READY) ## Build everything into .venv; quick when nothing has changed

$(READY): pyproject.toml setup.py scripts/setup.sh $(KERNEL)
	@scripts/setup.sh

run: setup ## Run a name server and a broker until Ctrl-C, with their data in ./pyromq-data
	@exec $(BIN)/pyromq up

test: setup ## Run everything: lint, types, the whole suite, and the reference implementations
	@$(BIN)/python scripts/run_tests.py

check: setup ## Lint, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

interop: setup ## Only the tests against Apache RocketMQ (Java and Maven), with the reasons of skipped ones
	@$(BIN)/pytest tests/interop -rs

crash: setup ## A long soak of power cuts, some 20 minutes; more with CRASH_STATES=1000000
	@PYROMQ_CRASH_STATES=$(CRASH_STATES) $(BIN)/pytest tests/crash

bench: setup ## Measure the hot paths, one file each
	@set -e; for file in $(BENCHMARKS); do echo "--- $$file"; $(BIN)/python $$file; done

bench-broker: setup ## Measure the broker beside Apache RocketMQ (Java, Maven, cc); BENCH="--only pulls --rounds 1"
	@PYTHONPATH=benchmarks:tests $(BIN)/python -m broker_vs_rocketmq $(BENCH)

bench-client: setup ## Measure the client beside Kafka's, NATS', Redis' and RocketMQ's; BENCH="--peers nats --rounds 1"
	@PYTHONPATH=benchmarks:tests $(BIN)/python -m client_vs_peers $(BENCH)

bench-replication: setup ## Measure what copies cost, beside Apache RocketMQ's pair (Java, Maven, cc); BENCH="--rounds 1"
	@PYTHONPATH=benchmarks:tests $(BIN)/python -m replication_vs_rocketmq $(BENCH)

bench-spark: setup ## Measure the pipeline on Spark (Java), one file each
	@set -e; for file in $(SPARK_BENCHMARKS); do echo "--- $$file"; $(BIN)/python $$file; done

soak: setup ## Send and consume for 30 minutes: nothing lost, memory flat; SOAK="--minutes 5 --rate 2000"
	@$(BIN)/python benchmarks/client_soak.py $(SOAK)

chaos-pair: setup ## A pair on machines that fail in every way (root, Linux), 5 s a round; ROUNDS=100 for a long run
	@PYROMQ_CHAOS_ROUNDS=$(ROUNDS) $(BIN)/pytest tests/chaos/test_pair_in_namespaces.py -k many -s

kills-spark: setup ## Some kills in the middle of Spark's batches, with a local master and on a cluster (Java), minutes
	@$(BIN)/pytest tests/spark -m slow -s

soak-spark: setup ## kill -9 of driver, JVM, executor, worker and broker mid-batch, some hours (Java); quicker with ROUNDS=2
	@PYROMQ_SPARK_ROUNDS=$(ROUNDS) $(BIN)/pytest tests/spark/kills -s

docs: setup ## Write the generated parts of docs/ again
	@$(BIN)/python scripts/gen_docs.py
	@$(BIN)/python scripts/gen_sync.py

clean: ## Remove everything that was built; data in ./pyromq-data stays
	@rm -rf .venv build dist src/*.egg-info src/pyromq/*/_*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
