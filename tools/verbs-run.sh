#!/usr/bin/env bash
# verbs-run.sh [OPTION OF verbs-vm.sh]...: the transport's fabric tests, the engine's conformance suite, `trihop exchange` and `trihop partition` over verbs;ofi_rxm.
#
# They run in a guest whose kernel has RDMA in software (verbs-vm.sh), so this proves function and says nothing about speed.
# Exit status: 0 when all passed, 124 out of time, 125 when there is no guest.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never

target=${CARGO_TARGET_DIR:-target}
data=data/cities.csv
[ -f "$data" ] || { echo "verbs-run.sh: $data is missing; run data/fetch.sh first" >&2; exit 125; }

cargo build --locked --release --package trihop-cli
cargo test --locked --package trihop-transport --test fabric --no-run
# Cargo names the test program on standard error, in a line that it repeats however often it is asked.
fabric=$(cargo test --locked --package trihop-transport --test fabric --no-run 2>&1 |
    sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
[ -x "$fabric" ] || { echo "verbs-run.sh: cargo does not say where it put the fabric tests" >&2; exit 125; }

conformance=$(cargo test --locked --package trihop-shuffle --lib --no-run 2>&1 |
    sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
[ -x "$conformance" ] || { echo "verbs-run.sh: cargo does not say where it put the conformance suite" >&2; exit 125; }

# The guest sees nothing of the host but this directory.
stage=$(mktemp -d "$target/verbs.XXXXXX")
trap 'rm -rf "$stage"' EXIT
cp "$target/release/trihop" "$stage/trihop"
cp "$fabric" "$stage/fabric-tests"
cp "$conformance" "$stage/conformance"
cp "$data" "$stage/cities.csv"
cat >"$stage/steps" <<'STEPS'
#!/bin/bash
# Runs in the guest, in the shared directory, which is read-only.
set -euo pipefail
provider='verbs;ofi_rxm'

step() {
    echo
    echo "== $1 over $provider"
    shift
    "$@"
}

# A test that finds no device skips itself and passes: here that is a failure.
fabric_tests() {
    TRIHOP_TEST_PROVIDERS=$provider ./fabric-tests --test-threads=1 --nocapture | tee /tmp/fabric-tests.log
    ! grep -q '^skipped' /tmp/fabric-tests.log
}

conformance() {
    TRIHOP_TEST_PROVIDERS=$provider ./conformance conformance::the_same_schedules_hold_over_libfabric --nocapture |&
        tee /tmp/conformance.log
    ! grep -q '^skipped' /tmp/conformance.log
}

in_job() {
    TRIHOP_PROVIDER=$provider ./trihop run -n 4 --nodes 2 --no-prefix --timeout 240 -- ./trihop "$@"
}

step 'fabric tests' fabric_tests
step 'exchange of small messages' in_job exchange --count 5000 --size 0-4K --exclude-self
step 'exchange by rendezvous' in_job exchange --count 20 --size 1M
step 'partition' in_job partition --by countrycode --out /tmp/parts cities.csv
step 'conformance suite of the engine' conformance
echo
echo "verbs: all steps passed over $provider"
STEPS
chmod 755 "$stage/steps"

tools/verbs-vm.sh --share "$stage" --mem 6144 --hugepages 64 --timeout 900 "$@" -- ./steps
