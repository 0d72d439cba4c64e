"""Rows of a table go to the rank that has their key, and are added up there by key:
`trihop run -n 4 --nodes 2 -- python shuffle_rows.py [ROWS]`.

Each rank makes rows of its own, as if it had read a part of a file. Afterwards all rows of a key
are on one rank, which groups them; the sums are compared with those of all rows.
"""

import sys

import numpy as np

import trihop

ROW = np.dtype([("key", np.int64), ("amount", np.float64), ("count", np.int32)])


def owner(keys: np.ndarray, ranks: int) -> np.ndarray:
    """The rank of each key: well mixed, so that keys in a row are on different ranks."""
    mixed = keys.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(ranks)).astype(np.uint32)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with trihop.Job() as job:
        random = np.random.default_rng(job.rank)
        rows = np.empty(count, ROW)
        rows["key"] = random.zipf(1.3, count) % 10_000
        rows["amount"] = random.integers(0, 1000, count)
        rows["count"] = 1

        stream = job.stream("rows", ROW)
        stream.push_block(owner(rows["key"], job.size), rows)
        stream.round()
        _, mine = stream.pull_all()

        keys, group = np.unique(mine["key"], return_inverse=True)
        amounts = np.bincount(group, mine["amount"], len(keys))
        counts = np.bincount(group, mine["count"], len(keys))

        if not (owner(keys, job.size) == job.rank).all():
            raise SystemExit("a key has come to a rank that is not its owner")
        before = job.allreduce([rows["amount"].sum(), count])
        after = job.allreduce([amounts.sum(), counts.sum()])
        if (before != after).any():
            raise SystemExit(f"sums differ: {before} before, {after} afterwards")
        groups = job.allreduce(len(keys))
        if job.rank == 0:
            print(f"{count * job.size} rows with {groups} keys on {job.size} ranks: sums agree")


if __name__ == "__main__":
    main()
