# What the steps in the guests have in common; `.` it in the shared directory, which is read-only.
set -euo pipefail
provider='verbs;ofi_rxm'
export TRIHOP_PROVIDER=$provider

step() {
    echo
    echo "== $1 over $provider"
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
