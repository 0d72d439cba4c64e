#!/bin/sh
# venv.sh NAME PACKAGE...: a virtual environment of Python below the target folder, with packages that pip fetches where it
# has not yet; says where it is. PYTHON is the interpreter. Ends with status 3 where one of them cannot be had, and says which.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
name=$1
shift
venv=${CARGO_TARGET_DIR:-target}/python/$name
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
lacks() {
    echo "tools/venv.sh: $*" >&2
    exit 3
}
found=$("$python" -c 'import sys; print(sys.version, sys.version_info >= (3, 9))' 2>/dev/null) || lacks "there is no $python"
case $found in *True) ;; *) lacks "$python is older than 3.9" ;; esac
if [ "$(cat "$venv/has" 2>/dev/null)" != "$found $*" ]; then
    "$python" -m venv --clear "$venv" >&2 || lacks "$python has no venv (Debian: python3-venv)"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || lacks "pip cannot fetch $*"
    echo "$found $*" >"$venv/has"
fi
echo "$venv"
