"""Random updates of a table that is spread over all ranks:
`trihop run -n 4 --nodes 2 -- python histogram.py [UPDATES]`.
"""

import sys
import time

import numpy as np

import trihop

PLACES = 100_000  # of the table, on each rank
BLOCK = 1 << 20  # updates that are made at once


def main() -> None:
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
    with trihop.Job() as job:
        table = np.zeros(PLACES, np.int64)
        stream = job.stream("updates", np.uint32)
        random = np.random.default_rng(job.rank)
        job.barrier()
        began = time.perf_counter()
        for first in range(0, updates, BLOCK):
            places = random.integers(0, PLACES * job.size, min(BLOCK, updates - first))
            ranks, local = np.divmod(places, PLACES)
            stream.push_block(ranks, local.astype(np.uint32))
            add(table, stream)
        stream.round()
        add(table, stream)
        seconds = job.allreduce(time.perf_counter() - began, "max")
        total = job.allreduce(int(table.sum()))
        if total != updates * job.size:
            raise SystemExit(f"{total} updates have arrived, of {updates * job.size}")
        if job.rank == 0:
            print(f"{total} updates on {job.size} ranks: {total / seconds / 1e6:.1f} M/s")


def add(table: np.ndarray, stream: trihop.Stream) -> None:
    """Adds what has arrived, whoever has sent it."""
    for _, places in stream.pull():
        table += np.bincount(places, minlength=len(table))


if __name__ == "__main__":
    main()
