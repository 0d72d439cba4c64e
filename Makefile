# Each target sees to what it needs through tools/install.sh, so that each alone works on a fresh machine with cargo.

.DEFAULT_GOAL := help
.PHONY: help run library install uninstall deb header test simulate mutants check deny book bench compare newer parquet slurm verbs wheel python-test
.NOTPARALLEL:

# rustup puts cargo there and leaves the rest to the next login.
export PATH := $(PATH):$(HOME)/.cargo/bin

target := $(or $(CARGO_TARGET_DIR),target)
trihop := $(target)/release/trihop

# One number for all versions whose programs can use each other's library.
soname := libtrihop.so.0
# Cargo profile of what is installed, and the folder that cargo puts it in.
PROFILE ?= release
built := $(target)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
PREFIX ?= /usr/local
# What is installed, for `make uninstall`.
MANIFEST ?= $(target)/installed
export QUICK PREFIX DESTDIR BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR DOCDIR

# What is built to be kept names no folder of the machine that built it. All release builds have it, so that they share.
# Added to build.rustflags of the user's own configuration. Where RUSTFLAGS or target.*.rustflags are set, cargo takes
# those alone, and folders are named.
cargo_home := $(or $(CARGO_HOME),$(HOME)/.cargo)
release := cargo --config 'build.rustflags=["--remap-path-prefix=$(CURDIR)=trihop","--remap-path-prefix=$(cargo_home)=cargo"]'
kept := $(if $(filter dev,$(PROFILE)),cargo,$(release))
# The command. With PROFILE=dev it is that which tests have built.
command := $(if $(filter dev,$(PROFILE)),--workspace --features trihop/header --features trihop/postcard --bin trihop,--package trihop-cli)

help: ## Shows this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

run: ## Partitions the places of the world by country, on 8 ranks over 2 simulated nodes
	@tools/install.sh build
	$(release) build --locked --release --package trihop-cli
	@sh data/fetch.sh
	$(trihop) run -n 8 --nodes 2 --no-prefix -- $(trihop) partition --by countrycode --out target/parts --force data/cities.csv

# nodelete: a program that closes a plugin must not take the code of running threads away.
library: ## Builds the C library, shared and static
	@tools/install.sh build
	$(kept) rustc --locked --profile $(PROFILE) --package trihop --lib --features capi --crate-type cdylib,staticlib -- \
	    -C linker=$(CURDIR)/packaging/link.sh -C linker-flavor=gcc \
	    -C link-arg=-Wl,-soname,$(soname) -C link-arg=-Wl,-z,nodelete
	@ln -sf libtrihop.so $(built)/$(soname)

install: library ## Installs library, headers, CLI, documents and completions below PREFIX (/usr/local), for packagers below DESTDIR
	$(kept) build --locked --profile $(PROFILE) $(command)
	packaging/install.sh $(built) $(MANIFEST)

uninstall: ## Removes what was installed last
	packaging/install.sh --undo $(MANIFEST)

deb: ## Builds a Debian package, target/deb/trihop_VERSION-1_ARCHITECTURE.deb
	@tools/install.sh deb
	packaging/deb.sh $(target)/deb

wheel: ## Builds the Python package, target/wheels/trihop-*.whl; maturin comes by pip, into target/python
	@tools/install.sh build python
	@tools/wheel.sh $(target)/wheels

python-test: ## Tests the Python package on jobs of 1, 2 and 4 ranks, in a virtual environment below target/python
	@tools/install.sh check python
	.ci/short_start .ci/python

header: ## Writes include/trihop.h anew from src/capi, and tables in docs/
	HEADER=write .ci/header

test: ## Runs all tests
	@tools/install.sh test
	.ci/short_start .ci/test
	.ci/short_start .ci/install

simulate: ## Runs 10,000 simulated jobs on random schedules with tiny queues, and as many with rounds, steps and fences of all streams; TRIHOP_SEED=<seed> replays one
	@tools/install.sh build
	TRIHOP_SCHEDULES=$(or $(TRIHOP_SCHEDULES),10000) cargo test --locked --package trihop-shuffle --test simulate -- --nocapture
	TRIHOP_SCHEDULES=$(or $(TRIHOP_SCHEDULES),10000) cargo test --locked --package trihop-shuffle --lib -- conformance::rounds::a_round conformance::steps::steps_end_when conformance::fences::a_fence_of_all_streams

mutants: ## Plants mistakes one at a time and says which test catches each; QUICK=1 for a handful
	@tools/install.sh mutants
	.ci/mutants

check: ## Checks formatting, the order of rooms, lints, documentation, and the lock-free structures with loom and shuttle
	@tools/install.sh check
	.ci/fmt
	.ci/rooms
	.ci/clippy
	.ci/doc
	.ci/loom

deny: ## Checks licences and known faults of the dependencies
	@tools/install.sh deny
	.ci/deny

book: ## Makes the documents one book, target/book/index.html
	@tools/install.sh book
	@tools/book.sh $(target)/book

bench: ## Measures: rings, fabric and whole jobs, then the micro-benchmarks
	@tools/install.sh bench
	$(release) build --locked --release --package trihop-cli
	$(trihop) bench ring
	$(trihop) bench p2p
	$(trihop) bench histo --ranks 2
	$(trihop) bench startup
	$(trihop) bench attach
	for seat in inline threaded minirank agent; do \
	    $(trihop) bench channel --seat $$seat || exit 1; \
	done
	for ranks in 4 8; do \
	    for route in three-hop direct; do \
	        $(trihop) bench histo --ranks $$ranks --nodes 2 --route $$route || exit 1; \
	    done; \
	    for name in ig agups cc around exchange skew round push; do \
	        $(trihop) bench $$name --ranks $$ranks --nodes 2 || exit 1; \
	    done; \
	done
	$(trihop) bench a2a --ranks 4 --nodes 2 --size 8 --size 128 --size 1024
	cargo bench --locked --package trihop-benches

compare: ## Measures ours and rivals alternately, writes target/compare/report.html; COMPARE='--quick' takes 8 minutes
	@tools/install.sh compare
	@$(MAKE) --no-print-directory PROFILE=release library
	$(release) build --locked --release --package trihop-cli
	$(release) build --locked --release --manifest-path benches/compare/Cargo.toml --target-dir $(target)
	venv=$$(tools/venv.sh compare duckdb polars) || venv=; \
	$(target)/release/trihop-compare --trihop $(trihop) --out $(target)/compare $${venv:+--python $$venv/bin/python} $(COMPARE)

newer: ## Runs tests on libfabric 2.5 and under MPICH 5 and Open MPI 5, which it fetches; QUICK=1 takes a minute
	@tools/install.sh test newer
	.ci/short_start tools/newer.sh

parquet: ## Tests what the cargo feature parquet adds, Parquet in and out of `trihop partition`, which compiles for minutes
	@tools/install.sh test
	.ci/parquet

slurm: ## Runs jobs under Slurm, as a cluster of this machine alone, which it installs
	@tools/install.sh slurm
	.ci/test --test slurm -- --nocapture

verbs: ## Runs tests, benches and faults over RDMA verbs, in one guest and in two with software RDMA
	@tools/install.sh verbs
	@sh data/fetch.sh
	$(MAKE) library
	$(release) build --locked --release --package trihop-cli
	tools/verbs-run.sh
