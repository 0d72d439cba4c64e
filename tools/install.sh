#!/bin/sh
# install.sh GROUP...: sees to it that what the groups need is there, or says in one sentence what is missing.
#
#   build   Rust, a C compiler, libfabric with its headers, libclang (it reads those headers)
#   check   rustfmt and clippy
#   test    the launchers that tests start ranks with, `ip` for network namespaces, and what C programs are built and checked
#           with against the installed library
#   mutants python3 with tomllib, and what build needs
#   bench   fi_pingpong, which benchmarks are compared with
#   compare MPICH, Open MPI and UCX to build and run rivals with
#   deny    cargo-deny
#   book    mdBook
#   deb     dpkg-deb and dpkg-shlibdeps, lintian to check the package with, and mmdebstrap to try it in a chroot
#   python  Python with venv and pip, by which the Python package is built and tested
#   slurm   Slurm's daemons and commands, as a cluster of one machine
#   newer   pip, which fetches a newer libfabric and newer launchers
#   verbs   what tools/verbs-vm.sh builds its guest with
#
# Debian packages are installed only where something is missing and only as root. Asks nothing, so that it runs in CI.
set -eu
cd "$(dirname "$0")/.."

missing='' # what is not there, for people
packages='' # the Debian packages that have it

fail() {
    echo "tools/install.sh: $*" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

exists() { # FILE...: a pattern that matched nothing names no file
    for file in "$@"; do
        [ ! -e "$file" ] || return 0
    done
    return 1
}

needs() { # WHAT PACKAGE...
    case ", $missing," in *", $1,"*) return 0 ;; esac
    missing="$missing${missing:+, }$1"
    shift
    packages="$packages${packages:+ }$*"
}

c_compiler_links() {
    has cc && echo 'int main(void) { return 0; }' | cc -include stdio.h -x c -o /dev/null - 2>/dev/null
}

libfabric_is_there() {
    has pkg-config && pkg-config --exists 'libfabric >= 1.17'
}

# The library alone is not enough: without its own headers (stddef.h) it reads nobody else's.
libclang_is_there() {
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    exists /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so* /usr/lib64/libclang*.so* /usr/lib64/llvm*/lib/libclang*.so* &&
        exists /usr/lib/llvm-*/lib/clang/*/include/stddef.h /usr/lib/clang/*/include/stddef.h /usr/lib64/clang/*/include/stddef.h
}

rust_is_there() {
    needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    remedy="install Rust $needed or newer, for instance with rustup (rustup.rs), and run this again"
    has cargo || fail "cargo is missing; $remedy"
    found=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$needed" "$found" | sort -V | head -n 1)" = "$needed" ] ||
        fail "cargo is $found but Rust $needed is needed; $remedy"
}

rust_component() { # SUBCOMMAND COMPONENT
    cargo "$1" --version >/dev/null 2>&1 && return 0
    has rustup || fail "cargo $1 is missing; install the $2 package of the system that cargo came with"
    rustup component add "$2" >&2
}

group_build() {
    rust_is_there
    c_compiler_links || needs 'a C compiler' gcc libc6-dev
    has pkg-config || needs pkg-config pkg-config
    libfabric_is_there || needs 'libfabric 1.17 or newer with its headers' libfabric-dev
    libclang_is_there || needs libclang libclang-dev
}

group_check() {
    group_build
    rust_component fmt rustfmt
    rust_component clippy clippy
}

group_test() {
    group_build
    # Elsewhere these have other names; tests that find no launcher say so and are skipped.
    has apt-get || return 0
    has mpiexec.mpich || needs 'mpiexec of MPICH' mpich
    has mpirun.openmpi || needs 'mpirun of Open MPI' openmpi-bin
    has ip || needs ip iproute2
    has c++ || needs 'a C++ compiler' g++
    has cmake || needs cmake cmake
    has valgrind || needs valgrind valgrind
    has mpicc.mpich || needs 'mpicc of MPICH' libmpich-dev
    has mpicc.openmpi || needs 'mpicc of Open MPI' libopenmpi-dev
}

group_mutants() {
    group_build
    python3 -c 'import tomllib' 2>/dev/null || needs 'python3 3.11 or newer' python3
}

group_bench() {
    group_build
    has fi_pingpong || needs fi_pingpong libfabric-bin
}

group_compare() {
    group_bench
    # Elsewhere these have other names; a rival that is not there is a row that says so.
    has apt-get || return 0
    has mpicc.mpich || needs 'mpicc of MPICH' mpich libmpich-dev
    has mpicc.openmpi || needs 'mpicc of Open MPI' openmpi-bin libopenmpi-dev
    has ucx_perftest || needs ucx_perftest ucx-utils
}

group_deny() {
    rust_is_there
    has cargo-deny || cargo install --locked cargo-deny
}

group_book() {
    rust_is_there
    has mdbook || cargo install --locked mdbook
    has python3 || needs python3 python3
}

group_deb() {
    group_build
    has apt-get || fail "a Debian package can only be built where there is apt-get"
    has dpkg-shlibdeps || needs dpkg-shlibdeps dpkg-dev
    has lintian || needs lintian lintian
    # It takes root to try the package in a chroot.
    [ "$(id -u)" != 0 ] || has mmdebstrap || needs mmdebstrap mmdebstrap
}

group_slurm() {
    group_build
    # Elsewhere these have other names; the test says so and is skipped.
    has apt-get || return 0
    PATH=$PATH:/usr/sbin:/sbin
    has slurmctld || needs slurmctld slurmctld
    has slurmd || needs slurmd slurmd
    has srun || needs srun slurm-client
}

group_python() {
    # Elsewhere it is a part of Python's own package; who needs it says that it is missing.
    has apt-get || return 0
    ${PYTHON:-python3} -c 'import ensurepip' 2>/dev/null || needs 'python3 with venv' python3-venv
}

group_newer() {
    python3 -m pip --version >/dev/null 2>&1 || needs 'pip of python3' python3-pip
}

group_verbs() {
    group_build
    has apt-get || fail "the guest is made of Debian packages, so it can only be built where there is apt-get"
    PATH=$PATH:/usr/sbin:/sbin
    has mke2fs || needs mke2fs e2fsprogs
    has awk || needs awk gawk
    has flock || needs flock util-linux
}

install_packages() {
    [ -n "$packages" ] || return 0
    has apt-get || fail "missing: $missing. Install libfabric-devel, clang-devel, pkgconf and gcc on RHEL, or libfabric-devel," \
        "clang-devel, pkg-config and gcc on SLES, and run this again"
    [ "$(id -u)" = 0 ] || fail "missing: $missing. Run \`apt-get update && apt-get install $packages\` as root, then this again"
    echo "tools/install.sh: installing $packages" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    # shellcheck disable=SC2086 # a list of names
    apt-get install -y -qq --no-install-recommends $packages >&2
}

[ $# -gt 0 ] || fail "which of build, check, test, mutants, bench, book, compare, deb, deny, newer, python, slurm, verbs?"
for group in "$@"; do
    case $group in
    build | check | test | mutants | bench | book | compare | deb | deny | newer | python | slurm | verbs) "group_$group" ;;
    *) fail "$group is none of build, check, test, mutants, bench, book, compare, deb, deny, newer, python, slurm, verbs" ;;
    esac
done
install_packages
