#!/usr/bin/env bash
# verbs-run.sh [--one | --two] [OPTION OF verbs-vm.sh]...: trihop over verbs;ofi_rxm, in one guest and in two.
#
# They run in guests whose kernel has RDMA in software (verbs-vm.sh), so this proves function and says nothing about speed.
# One guest: fabric tests, conformance suite, a job on each route and seat, a C client, point to point, registered
# hugepages, a rank that is killed. Two guests, joined by a wire: a start over sockets, by addresses of our own and by
# MPICH's PMI, and a cable that is pulled on either side. --one and --two run that half alone.
# `--env STEPS=REGEX` runs only the steps whose names it is found in: `--two --env "STEPS=pulled|behind"`.
# `make verbs` has built the command and the library for release. Exit status: 0 when all passed, 124 out of time, 125 when there is no guest.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never

halves='one two'
case ${1-} in
--one | --two) halves=${1#--}; shift ;;
esac
target=${CARGO_TARGET_DIR:-target}
data=data/cities.csv
[ -f "$data" ] || { echo "verbs-run.sh: $data is missing; run data/fetch.sh first" >&2; exit 125; }

# What Cargo built, which it names on standard error in a line that it repeats however often it is asked.
built() {
    cargo "$@" --locked --no-run 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$/\1/p'
}

cargo test --locked --package trihop-transport --test fabric --no-run
fabric=$(built test --package trihop-transport --test fabric)
conformance=$(built test --package trihop-shuffle --lib)
for program in "$fabric" "$conformance"; do
    [ -x "$program" ] || { echo "verbs-run.sh: cargo does not say where it put a test" >&2; exit 125; }
done

for file in trihop libtrihop.so; do
    [ -f "$target/release/$file" ] || { echo "verbs-run.sh: no $target/release/$file; start it by make verbs" >&2; exit 125; }
done

# The guests see nothing of the host but this directory.
stage=$(mktemp -d "$target/verbs.XXXXXX")
trap 'rm -rf "$stage"' EXIT
cp "$target/release/trihop" tools/verbs-one.sh tools/verbs-two.sh tools/verbs-steps.sh "$stage/"
cp "$fabric" "$stage/fabric-tests"
cp "$conformance" "$stage/conformance"
cp "$data" "$stage/cities.csv"
cp "$target/release/libtrihop.so" "$stage/libtrihop.so.0"
"${CC:-cc}" -std=c99 -O2 -Iinclude examples/c/labels.c "$stage/libtrihop.so.0" '-Wl,-rpath,$ORIGIN' -o "$stage/labels"

for half in $halves; do
    case $half in
    one) guests=1 options=(--mem 6144 --hugepages 64 --timeout 1800) ;;
    two) guests=2 options=(--mem 2048 --hugepages 32 --timeout 900) ;;
    esac
    tools/verbs-vm.sh --guests "$guests" --share "$stage" --package mpich "${options[@]}" "$@" -- "./verbs-$half.sh"
done
