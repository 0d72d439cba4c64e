#!/bin/bash
# Runs in both of two guests that a wire joins; see verbs-run.sh.
. ./verbs-steps.sh
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
cable=$(ip -o -4 addr show | awk -v own="$VM_ADDR/" 'index($4, own) == 1 { print $2 }')
[ -n "$cable" ] || fail "no interface has $VM_ADDR"

# ours NAME RANKS COMMAND...: ranks of this guest, of a job of as many in each, that finds itself by rank 0's address.
export port=7000
ours() {
    local each=$1 rank status=0 job=()
    shift
    port=$((port + 1))
    export TRIHOP_MASTER=$VM_ADDR_0:$port TRIHOP_SIZE=$((each * VM_GUESTS)) TRIHOP_SECRET_FILE=/run/secret
    for ((rank = VM_RANK * each; rank < (VM_RANK + 1) * each; rank++)); do
        TRIHOP_RANK=$rank "$@" &
        job+=("$!")
    done
    for rank in "${job[@]}"; do wait "$rank" || status=$?; done
    return "$status"
}

# mpich COMMAND...: the same by MPICH's mpiexec in guest 0. Nobody has ssh here: it says what to start on which host, and
# guest 1 starts that.
mpich() {
    local asked=$VM_RESULTS/mpich
    unset TRIHOP_MASTER TRIHOP_SIZE TRIHOP_SECRET_FILE
    if [ "$VM_RANK" = 0 ]; then
        rm -f "$asked"
        mpiexec.hydra -launcher manual -iface "$cable" -n 4 -ppn 2 -hosts "$VM_ADDR_0,$VM_ADDR_1" "$@" > >(
            while read -r line; do
                case $line in
                'HYDRA_LAUNCH: '*) echo "${line#HYDRA_LAUNCH: }" >>"$asked.new" ;;
                HYDRA_LAUNCH_END) mv "$asked.new" "$asked"; bash -c "$(sed -n 1p "$asked")" & ;;
                *) echo "$line" ;;
                esac
            done
        )
    else
        for _ in $(seq 600); do [ -s "$asked" ] && break; sleep 0.1; done
        bash -c "$(sed -n 2p "$asked")"
    fi
}

# pulled GUEST: that guest's cable is pulled while all exchange; both sides fail, and name a rank of the other side.
pulled() {
    local lost=$(((1 - VM_RANK) * 2))
    if [ "$VM_RANK" = "$1" ]; then
        (sleep 15; ip link set "$cable" down) &
    fi
    vm-barrier "pull.$1"
    fails_naming "rank [$lost$((lost + 1))]" 120 bash -c ours_exchange
    port=$((port + 1))
    wait
    vm-barrier "pulled.$1" 1200
    if [ "$VM_RANK" = "$1" ]; then
        ip link set "$cable" up
        # A management datagram that found no route has left the device's queue pair for those in an error of which the kernel
        # only mends half (rdma_rxe, Linux 6.1): it sends them, but drops those that come, and no connection is accepted any
        # more. A new device has a sound one.
        rdma link delete "$VM_DEV"
        rdma link add "$VM_DEV" type rxe netdev "$cable"
        until grep -q ACTIVE "/sys/class/infiniband/$VM_DEV/ports/1/state" && grep -qsi 'ffff:0a4d' "/sys/class/infiniband/$VM_DEV"/ports/1/gids/*; do
            sleep 0.1
        done
    fi
    vm-barrier "mended.$1"
}

ours_exchange() { ours 2 ./trihop exchange --count 100000000; }
export -f ours ours_exchange

(umask 077; echo 'joined by a wire, in a test only' >/run/secret)
step 'a start by an address' ours 2 ./trihop exchange --count 2000 --size 0-4K --exclude-self
vm-barrier started
step 'rendezvous' ours 1 ./trihop exchange --count 20 --size 1M
vm-barrier rendezvous
step "a start by MPICH's PMI" mpich ./trihop exchange --count 2000 --size 0-4K
vm-barrier mpich
for guest in 0 1; do
    step "the cable of guest $guest is pulled" pulled "$guest"
    step 'a job behind that' ends_within 90 ours 2 ./trihop exchange --count 500
    vm-barrier "again.$guest"
done
echo
echo "verbs: all steps in guest $VM_RANK of two passed over $provider"
