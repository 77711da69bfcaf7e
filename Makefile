# The developer interface. Each target builds .venv if it is missing or pyproject.toml has changed.

VENV  := .venv
READY := $(VENV)/.ready
BIN   := $(VENV)/bin
NODE  := $(VENV)/node_modules
DOCS  := .venv-docs

# Python/PySpark: the oldest and newest of both, 4.2 because it changed streaming sources, and the lower bounds of
# pyproject.toml.
MATRIX := 3.11/4.0 3.11/4.1 3.11/4.2 3.12/4.3 3.13/4.3 3.11/4.0/oldest

# If it is set, as in some images, each of the tests' hundreds of processes compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast test-long test-bodies test-production soak soak-speed simulate simulate-mutations kills lint coverage mutants docs notebooks tables test-matrix matrix-rows bench clean java browser

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# The tests that `make test-long` runs on the oldest Spark: the guarantee, and the registration in a session.
ON_OLDEST := tests/spark/test_read.py $(addprefix tests/spark/test_registration.py::,test_both_names_are_registered \
  test_name_of_another_source_is_told)

demo: java $(READY)  ## 336,776 flights into Pub/Sub and out again, proven complete
	@$(BIN)/pubsub-spark demo

test: lint java $(NODE)  ## linter, type checker, import contracts, tests
	$(BIN)/python -m tests.spark.classes
	$(BIN)/pytest -n 3 --dist worksteal

test-long: java browser $(READY) $(NODE)  ## what takes long: clusters, kills, docs, the page; the oldest Spark
	$(BIN)/python -m tests.spark.classes
	$(BIN)/pytest -n 3 --dist worksteal -m "long and not production"
	.ci/matrix -t '$(ON_OLDEST)' any/4.0

test-fast: $(READY)  ## the tests without Spark, for the inner loop
	$(BIN)/pytest -q -n 2 --dist worksteal tests/unit tests/rpc

test-bodies: $(READY) $(NODE)  ## every case of protobuf's conformance suite, of Avro schemas, JSON texts, random messages
	$(BIN)/python -m tests.bodies
	$(BIN)/python docs/tables.py

test-production: java $(READY) $(NODE)  ## pinned runtimes; TLS, tokens, proxies, object stores and links as in production
	$(BIN)/pytest -q -m "" tests/production
	$(BIN)/pytest -q -m production --ignore tests/production

soak: java $(READY)  ## an hour of a query through faults chosen by SOAK_SEED, or SOAK_SECONDS of it
	$(BIN)/python -m tests.faults.soak --seconds $(or $(SOAK_SECONDS),3600) --seed $(or $(SOAK_SEED),1)

soak-speed: java $(READY)  ## half an hour of a steady 50,000 messages/s, or SOAK_SECONDS of it: is everything flat?
	$(BIN)/python benchmarks/soak_speed.py --seconds $(or $(SOAK_SECONDS),1800) --seed $(or $(SOAK_SEED),1)

simulate: $(READY)  ## HISTORIES (10,000) random histories of crashes and outages from SEED (1) on, on all cores
	$(BIN)/python -m tests.simulation --histories $(or $(HISTORIES),10000) --seed $(or $(SEED),1) --jobs $(shell nproc)

simulate-mutations: $(READY)  ## faults put into the code, each of which the simulator must catch
	$(BIN)/python -m tests.simulation.mutations --jobs $(shell nproc)

kills: $(READY)  ## kill -9 of the emulator with a data directory, under load, KILLS times (200)
	EMULATOR_KILLS=$(or $(KILLS),200) $(BIN)/pytest -q -s -m "" tests/faults/test_emulator_kills.py

lint: $(READY)  ## linters of code, language and workflows, type checker, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python docs/language.py
	$(BIN)/zizmor --offline --quiet .github

coverage: $(READY)  ## branch coverage of read/ and write/ by the tests without Spark, subprocesses included, with a floor
	rm -f build/.coverage*
	$(BIN)/coverage run -m pytest -q -m "not production" tests/unit/read tests/unit/write \
	  $(wildcard tests/rpc/test_session*.py) tests/rpc/test_promise.py tests/rpc/test_write_again.py tests/rpc/test_failures.py
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

mutants: $(READY)  ## mutation testing of the pure parts by mutmut: fewer than one in ten survives
	rm -rf mutants
	$(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut export-cicd-stats
	$(BIN)/python -c 'import json; s = json.load(open("mutants/mutmut-cicd-stats.json")); print(s); exit(s["survived"] + s["no_tests"] >= s["total"] / 10)'

docs: $(DOCS)/.ready  ## the site of docs/, into build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

notebooks: java $(READY)  ## the .ipynb of notebooks/, run anew from the .py
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python docs/notebooks.py

tables: $(READY)  ## the tables and examples of README and docs/, from the code
	$(BIN)/python docs/tables.py

test-matrix: java $(READY)  ## the Spark scenarios under every Python and PySpark of MATRIX, and the tables of what works where
	rm -rf build/matrix
	.ci/matrix -o build/matrix $(MATRIX)
	$(BIN)/python docs/compatibility.py build/matrix
	$(BIN)/python docs/tables.py

matrix-rows:  # the rows as JSON, for the workflow that runs each by itself
	@printf '"%s"\n' $(MATRIX) | paste -sd, | sed 's/.*/[&]/'

bench: java $(READY)  ## how fast it is on this machine, in ratios taken in one run
	$(BIN)/python benchmarks/codec.py
	$(BIN)/python benchmarks/codec_protobuf.py
	$(BIN)/python benchmarks/codec_stream.py
	$(BIN)/python benchmarks/transform_stream.py
	$(BIN)/python benchmarks/emulator.py
	$(BIN)/python benchmarks/scheduled.py
	for what in throughput keys payloads memory; do $(BIN)/python benchmarks/write.py $$what || exit; done
	for what in throughput client latency memory linear; do $(BIN)/python benchmarks/read.py $$what || exit; done

clean:  ## everything that can be made again
	rm -rf $(VENV) $(DOCS) .venv-matrix build dist mutants demo-output spark-warehouse .mypy_cache .pytest_cache .ruff_cache .hypothesis soak-output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml .ci/environment
	@.ci/environment python $(VENV)
	@touch $@

$(DOCS)/.ready: pyproject.toml .ci/environment
	@.ci/environment docs $(DOCS)
	@touch $@

$(NODE): $(READY)
	@.ci/environment node $(VENV)

java browser:
	@.ci/environment $@
