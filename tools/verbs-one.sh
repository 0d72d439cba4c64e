#!/bin/bash
# Runs in one guest; see verbs-run.sh.
. ./verbs-steps.sh

# A test that finds no device skips itself and passes: here that is a failure.
never_skipped() {
    local log=/tmp/tests.log
    TRIHOP_TEST_PROVIDERS=$provider "$@" --nocapture |& tee "$log"
    ! grep -q '^skipped' "$log"
}

in_job() {
    ./trihop run -n 4 --nodes 2 --no-prefix --timeout 240 -- "$@"
}

bench() {
    ./trihop bench "$@" --provider "$provider" --reps 3
}

# Pools of a small job lie on the hugepages that are free, and inboxes that fill an eighth of one, as those of four ranks on
# a node do; all are given back.
hugepages() {
    local log=/tmp/pages before after pools inboxes
    before=$(awk '$1 == "HugePages_Free:" { print $2 }' /proc/meminfo)
    TRIHOP_LOG=memory=debug TRIHOP_LOG_FILE=$log \
        ./trihop run -n 8 --nodes 2 --no-prefix --timeout 240 -- ./trihop exchange --count 1000 >/dev/null 2>&1
    grep -h 'pool registered' "$log".* >/tmp/pools
    pools=$(wc -l </tmp/pools)
    [ "$pools" -ge 8 ] || fail "$pools pools of 8 ranks were registered"
    ! grep -v 'Huge' /tmp/pools || fail 'a pool is not on hugepages'
    inboxes=$(grep -h 'shared segment' "$log".* | grep -c 'Huge' || true)
    [ "$inboxes" -ge 8 ] || fail "$inboxes inboxes of 8 ranks are on hugepages"
    after=$(awk '$1 == "HugePages_Free:" { print $2 }' /proc/meminfo)
    [ "$after" = "$before" ] || fail "$before hugepages were free before the job, and $after behind it"
    echo "$pools pools and $inboxes segments on hugepages, $after free again"
}

# A rank is killed while all exchange; the others name it, and the job ends.
killed() {
    ./trihop run -n 4 --nodes 2 --no-prefix --timeout 120 -- ./trihop exchange --count 100000000 >/tmp/killed 2>&1 &
    local job=$! rank
    for _ in $(seq 100); do
        rank=$(pgrep -f '^./trihop exchange' | tail -n 1)
        [ "$(pgrep -cf '^./trihop exchange')" = 4 ] && break
        sleep 0.2
    done
    sleep 10
    kill -KILL "$rank"
    ! wait "$job" || fail 'a job of which a rank was killed passed'
    cat /tmp/killed
    grep -q 'rank [0-3] was ended by SIGKILL' /tmp/killed || fail 'nobody says that a rank was killed'
    [ "$(pgrep -cf '^./trihop exchange')" = 0 ] || fail 'ranks are left'
}

step 'fabric tests' never_skipped ./fabric-tests --test-threads=1
step 'exchange of small messages' in_job ./trihop exchange --count 5000 --size 0-4K --exclude-self
step 'exchange by rendezvous' in_job ./trihop exchange --count 20 --size 1M
step 'partition' in_job ./trihop partition --by countrycode --out /tmp/parts cities.csv
step 'a C client, on threads and inline' in_job ./labels 2000
step 'a C client, inline' in_job ./labels 2000 inline
step 'registered hugepages' hugepages
step 'point to point' bench p2p --size 8 --size 4096 --size 65536 --count 50
step 'point to point, long' bench p2p --size 1048576 --count 4
step 'the direct route' bench a2a --ranks 4 --nodes 2 --route direct --size 128 --count 2000
for rails in 1 2; do
    step "rails: $rails" bench a2a --ranks 4 --nodes 2 --route three-hop:$rails --size 128 --count 2000
done
step 'a mesh' bench a2a --ranks 4 --nodes 2 --route mesh:2x2 --size 128 --count 2000
step 'seat: threaded' bench cc --ranks 4 --nodes 2 --seat threaded --count 1024
for seat in minirank agent; do
    step "seat: $seat" bench histo --ranks 4 --nodes 2 --seat "$seat" --count 20000
done
step 'handlers that send' bench cc --ranks 4 --nodes 2 --count 1024
step 'a rank that is killed' killed
step 'conformance suite of the engine' never_skipped ./conformance conformance::the_same_schedules_hold_over_libfabric
echo
echo "verbs: all steps in one guest passed over $provider"
