# Every target works for root and for an ordinary user, from any directory, and twice in a row.

PGQ_SETUP_PYTHON ?= python3
PGQ_VERSIONS     ?= 14 15 16 17 18
PGQ_TESTED       ?= 18
PGQ_TESTED_SQL   ?= 14
PGQ_TEST_OPTIONS ?=
PGQ_EXPLORE      ?=
PGQ_CHAOS        ?=
PGQ_CHAOS_OPTIONS ?=
PGQ_SHARD_JOBS   ?= 50000
PGQ_FRESH        ?= bookworm trixie
PGQ_FRESH_USER   ?= ordinary root
PGQ_FRESH_RUN    ?= make test demo
PGQ_PYTHON       := .venv/bin/python
PGQ_BENCH_PYTHON := .venv-bench/bin/python
PGQ_CHECKED      := python/src tests/python tests/explore tests/history tests/chaos tests/clients \
    tests/ha tests/site tools demo docker examples benchmarks $(wildcard extension/*.py)
PGQ_VERSION      := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" extension/pgq.control)
PGQ_SQL          := extension/sql/pgq--$(PGQ_VERSION).sql
PGQ_WHEEL        := .venv/pgq.installed
PGQ_WHEEL_INPUT  := $(wildcard python/*.toml python/*.md) \
    $(shell find python/src \( -name __pycache__ -o -name '*.egg-info' \) -prune -o -print)
PGQ_PLAYGROUND   := docs/playground/built/pgq.tar.gz
PGQ_RELEASED     := $(shell sed 's/.* //' extension/sql/released.sha256)
PGQ_SQL_TESTS    ?= tests/sql
PG_CONFIG        ?= pg_config

# Python compiles a module once, not in each of the programs that tests start.
unexport PYTHONDONTWRITEBYTECODE

# pgspot's parser of PL/pgSQL gives up on variables of the project's own row types. Those bodies
# are parsed by plpgsql_check. Internal functions inherit search_path (PS005); pgspot still makes sure
# that each SECURITY DEFINER function pins it, tests/sql/11_catalog.sql that all others do which
# something outside calls. pgspot does not know "begin atomic": such bodies, bound by the script, which
# pins search_path, are shown to it as strings.
PGQ_PGSPOT       := --no-plpgsql --ignore PS005

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# What a target needs is made in the order in which it is named.
.NOTPARALLEL:
.PHONY: all help setup dev-setup demo-setup requirements build demo demo-shards test test-fresh test-matrix \
    test-installs test-clients test-docker test-site shards explore history chaos ha mutants model lint \
    format docs playground reference bench freeze install uninstall installcheck dist deb clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo-setup: ## fetch what the demo needs
	@$(PGQ_SETUP_PYTHON) tools/bootstrap.py demo

dev-setup: ## fetch what tests and documentation need
	@$(PGQ_SETUP_PYTHON) tools/bootstrap.py dev

setup: ## fetch everything that tests and checks need
	@$(PGQ_SETUP_PYTHON) tools/bootstrap.py lint

requirements: demo-setup ## write requirements/*.txt, with hashes, after a change of an *.in
	$(PGQ_PYTHON) tools/requirements.py

build: demo-setup $(PGQ_SQL) $(PGQ_WHEEL) ## build the extension script and the Python wheel

all: $(PGQ_SQL) ## build the extension script only, as the client of PGXN does

$(PGQ_SQL): extension/pgq.control $(wildcard extension/*.py extension/sql/released.sha256 \
    extension/sql/install.order extension/sql/src/*/*.sql extension/sql/updates/*.sql \
    extension/proxy/*.sql)
	$(PGQ_SETUP_PYTHON) extension/build.py

$(PGQ_WHEEL): $(PGQ_SQL) $(PGQ_WHEEL_INPUT)
	rm -rf .cache/wheel python/build
	$(PGQ_PYTHON) -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir .cache/wheel ./python
	$(PGQ_PYTHON) -m pip install -qq --no-deps --no-index --force-reinstall .cache/wheel/*.whl
	touch $@

demo: $(if $(SERVE),dev-setup) build ## show pgq at work, on a private PostgreSQL; SERVE=1 in a browser, too
	$(PGQ_PYTHON) tools/pgserver.py -- $(PGQ_PYTHON) demo $(if $(SERVE),--serve)

demo-shards: dev-setup build ## show three databases that share jobs, of which one is killed
	PYTHONPATH=tools $(PGQ_PYTHON) -m demo.shards

test: dev-setup build ## run all tests on PostgreSQL 18, those in SQL also on 14
	$(PGQ_PYTHON) tools/run_tests.py $(PGQ_TEST_OPTIONS) $(PGQ_TESTED:%=--version %) \
	    $(PGQ_TESTED_SQL:%=--sql %)

mutants: dev-setup build ## remove one guard at a time and run the pgTAP tests, for hours, or MUTANTS="--sample 9"
	$(PGQ_PYTHON) tools/run_mutants.py $(MUTANTS)

model: dev-setup ## check the models of models/ with SPIN
	$(PGQ_PYTHON) tools/check_models.py

test-fresh: ## run tests and demo on minimal Debian systems, PGQ_FRESH="bookworm trixie"; as root
	$(PGQ_SETUP_PYTHON) tools/fresh.py $(PGQ_FRESH:%=--release %) $(PGQ_FRESH_USER:%=--user %) \
	    -- $(PGQ_FRESH_RUN)

test-matrix: dev-setup build ## run all tests on 14 to 18, or on PGQ_VERSIONS="14 15"
	$(PGQ_PYTHON) tools/run_tests.py $(PGQ_VERSIONS:%=--version %)

test-clients: dev-setup build ## run a program in each of nine languages, also behind PgBouncer
	@$(PGQ_SETUP_PYTHON) tools/bootstrap.py clients
	$(PGQ_PYTHON) tools/run_tests.py --version 18 --only clients

test-installs: dev-setup build ## run all tests on upgraded installations, and on those by script
	$(PGQ_PYTHON) tools/run_tests.py --version 18 --install upgraded
	$(PGQ_PYTHON) tools/run_tests.py --version 18 --install script

explore: dev-setup build ## try all interleavings of every pair of calls, PGQ_EXPLORE="--pairs --part 1/9"
	PYTHONPATH=tools $(PGQ_PYTHON) -m tests.explore $(PGQ_EXPLORE)

chaos: dev-setup build ## kill, stall and starve pgq under load, PGQ_CHAOS="worker_kill failover"
	PYTHONPATH=tools $(PGQ_PYTHON) -m tests.chaos $(PGQ_CHAOS_OPTIONS) $(PGQ_CHAOS)

ha: dev-setup build ## kill, cut off and switch over the leader of a Patroni cluster under load
	PGQ_DEMO_JOBS=$(PGQ_SHARD_JOBS) $(PGQ_PYTHON) -m pytest tests/ha

shards: dev-setup build ## test several databases with a front, PGQ_SHARD_JOBS=50000
	PGQ_SHARD_JOBS=$(PGQ_SHARD_JOBS) $(PGQ_PYTHON) tools/run_tests.py --version 18 --only python \
	    -- tests/python/test_shards.py

history: dev-setup build ## judge a long random load and the sizes of the tables, HISTORY="--seed 7"
	PYTHONPATH=tools $(PGQ_PYTHON) -m tests.history $(HISTORY)

playground: dev-setup $(PGQ_PLAYGROUND) ## fetch and build what docs/playground.md loads

$(PGQ_PLAYGROUND): $(PGQ_SQL) tools/playground.py docs/playground/package-lock.json
	$(PGQ_PYTHON) tools/playground.py

test-site: playground build ## try the dashboard, and the playground of the documentation, in Chromium
	$(PGQ_PYTHON) -m pytest tests/site

lint: setup build ## check style, types, functions and security
	$(PGQ_PYTHON) -m ruff format --check $(PGQ_CHECKED)
	$(PGQ_PYTHON) -m ruff check $(PGQ_CHECKED)
	printf '%s\n' mypy pyright 'pyright --verifytypes pgq --ignoreexternal' \
	    'pyright --verifytypes pytest_pgq --ignoreexternal' \
	    | PATH="$$PWD/.venv/bin:$$PATH" xargs -L 1 -P 2 $(PGQ_PYTHON) -m
	$(PGQ_PYTHON) extension/build.py --check
	$(PGQ_PYTHON) tools/check_style.py extension/sql/src/*/*.sql \
	    $(wildcard extension/sql/updates/*.sql)
	$(PGQ_PYTHON) tools/check_plpgsql.py
	sed 's/^begin atomic$$/set search_path = pg_catalog, pg_temp as $$$$/; s/^end;$$/$$$$;/' \
	    $(PGQ_SQL) > .cache/pgspot.sql
	$(PGQ_PYTHON) -m pgspot $(PGQ_PGSPOT) .cache/pgspot.sql
	.venv/bin/zizmor --offline --quiet .github
	$(PGQ_PYTHON) tools/docs_reference.py --check
	$(PGQ_PYTHON) tools/check_words.py

format: setup ## format the Python files
	$(PGQ_PYTHON) -m ruff format $(PGQ_CHECKED)
	$(PGQ_PYTHON) -m ruff check --fix $(PGQ_CHECKED)

docs: dev-setup build $(PGQ_PLAYGROUND) ## make the site of the documentation in .cache/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(PGQ_PYTHON) -m mkdocs build --strict

reference: dev-setup build ## write docs/reference/sql.md from the catalog
	$(PGQ_PYTHON) tools/docs_reference.py

bench: build ## compare pgq with others, QUICK=1 in minutes, or BENCH="--only loop"
	@$(PGQ_SETUP_PYTHON) tools/bootstrap.py bench
	PYTHONPATH=tools $(PGQ_BENCH_PYTHON) -m benchmarks $(if $(QUICK),--quick) $(BENCH)

freeze: $(PGQ_SQL) ## release the version in pgq.control and begin the next one, NEXT=0.3.0
	$(PGQ_SETUP_PYTHON) extension/build.py --freeze "$(NEXT)"

install: $(PGQ_SQL) ## install the extension into the server of PG_CONFIG
	$(MAKE) -C extension install PG_CONFIG="$(PG_CONFIG)"

uninstall: $(PGQ_SQL) ## remove the extension from the server of PG_CONFIG
	$(MAKE) -C extension uninstall PG_CONFIG="$(PG_CONFIG)"

# In a new database, as the superuser whom the variables of libpq name.
installcheck: ## run the pgTAP tests on the running server of PG_CONFIG, which has pgq and pgTAP
	PATH="$$($(PG_CONFIG) --bindir):$$PATH" PGDATABASE=contrib_regression sh -euc ' \
	    dropdb --if-exists contrib_regression; \
	    createdb --template template0 --encoding UTF8 --locale C contrib_regression; \
	    psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 \
	        --command "create extension pgtap" --command "create extension pgq"; \
	    pg_prove --recurse --ext .sql $(PGQ_SQL_TESTS)'

dist: demo-setup ## build what is released, from the last commit, into dist/
	$(PGQ_PYTHON) tools/make_dist.py

# Built outside of the project: PGXS cannot cope with a blank in a path.
deb: export PG_SUPPORTED_VERSIONS ?= installed
deb: ## build Debian packages of the last commit into dist/, one for each server's version
	mkdir -p dist
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && mkdir "$$scratch/pgq" \
	    && git -c safe.directory="$$PWD" archive --output "$$scratch/pgq.tar" HEAD \
	    && tar -x -f "$$scratch/pgq.tar" -C "$$scratch/pgq" \
	    && sed -e 's/@VERSION@/$(PGQ_VERSION)/' \
	        -e "s/@DATE@/$$(git -c safe.directory="$$PWD" log -1 --format=%cD)/" \
	        debian/changelog.in > "$$scratch/pgq/debian/changelog" \
	    && (cd "$$scratch/pgq" && pg_buildext updatecontrol && dpkg-buildpackage -b -us -uc) \
	    && cp "$$scratch"/*.deb dist

test-docker: ## run the pgTAP tests in the official image, PG_MAJOR=18; needs only Docker
	docker compose --project-name pgq-test run --rm pgtap-runner; \
	status=$$?; docker compose --project-name pgq-test --profile test down --volumes; exit $$status

clean: ## remove all that the other targets made
	rm -rf .venv .venv-bench .cache dist docs/playground/built python/build python/src/*.egg-info
	rm -rf $(filter-out $(PGQ_RELEASED:%=extension/sql/%),$(wildcard extension/sql/pgq--*.sql))
	rm -rf python/src/pgq/_scripts
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
