#!/bin/sh
# wheel.sh FOLDER: builds the Python package, one wheel for every CPython from 3.9 on, into FOLDER, and names it. PROFILE is
# cargo's profile. maturin is in a virtual environment of its own, see venv.sh.
set -eu
cd "$(dirname "$0")/.."
out=$1
profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
venv=$(tools/venv.sh maturin 'maturin>=1.9.4,<2')
case $out in /*) ;; *) out=$PWD/$out ;; esac
case $target in /*) ;; *) target=$PWD/$target ;; esac
rm -f "$out"/trihop-*.whl
set -- --config "build.rustflags=[\"--remap-path-prefix=$PWD=trihop\",\"--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo\"]"
# What is thrown away may name folders: so it shares what tests have built.
[ "$profile" != dev ] || set --
"$venv/bin/maturin" build --quiet --locked --profile "$profile" --manifest-path python/Cargo.toml --target-dir "$target" \
    --out "$out" "$@" >&2
ls "$out"/trihop-*.whl
