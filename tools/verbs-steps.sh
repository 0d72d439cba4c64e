# What the steps in the guests have in common; `.` it in the shared directory, which is read-only.
set -euo pipefail
provider='verbs;ofi_rxm'
export TRIHOP_PROVIDER=$provider

# step NAME COMMAND...: with STEPS, an extended regular expression, only those whose name it is found in.
step() {
    [[ $1 =~ ${STEPS:-.} ]] || return 0
    echo
    echo "== $1 over $provider, $SECONDS s after the start"
    shift
    "$@"
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# fails_naming TEXT SECONDS COMMAND...: it fails in that time, and says the text.
fails_naming() {
    local text=$1 seconds=$2 said=/tmp/said.$$ status=0
    shift 2
    timeout "$seconds" "$@" >"$said" 2>&1 || status=$?
    cat "$said"
    [ "$status" != 0 ] || fail "it passed: $*"
    [ "$status" != 124 ] || fail "it had not ended after $seconds s: $*"
    grep -q -- "$text" "$said" || fail "it does not say '$text': $*"
}

# ends_within SECONDS COMMAND...: where it stands still, what all ranks of this guest wait for.
ends_within() {
    local seconds=$1 job pid
    shift
    "$@" &
    job=$!
    for ((; seconds > 0; seconds--)); do
        kill -0 "$job" 2>/dev/null || break
        sleep 1
    done
    if [ "$seconds" = 0 ]; then
        for pid in $(pgrep -f '^./trihop exchange'); do
            echo "-- rank process $pid"
            timeout 10 ./trihop dump "$pid" || true
            cat "/proc/$pid/wchan" "/proc/$pid/stack" 2>/dev/null || true
        done
        echo "-- connections, neighbours, and what the device has counted"
        rdma resource show cm_id || true
        rdma resource show qp || true
        ip neigh
        grep . /sys/class/infiniband/*/ports/1/state /sys/class/infiniband/*/ports/1/gids/[0-3] || true
        grep . /sys/class/infiniband/*/ports/1/hw_counters/* || true
        fail "it had not ended in time: $*"
    fi
    wait "$job"
}
