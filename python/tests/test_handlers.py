"""Handlers of streams and shuffles, on jobs of 1, 2 and 4 ranks."""


def test_a_handler_gets_what_a_pull_would(program, shape):
    program(
        """
import numpy as np
import trihop

EACH = 50_000
with trihop.Job() as job:
    got = {rank: [] for rank in range(job.size)}

    def keep(source, items):
        assert items.dtype == kind and len(items) > 0 and items.flags.writeable
        got[source].append(items)           # it stays as long as the program wants it

    kind = np.dtype([("key", "u4"), ("value", "f8")])
    stream = job.stream("rows", kind, handler=keep)
    for step in range(4):
        rows = np.zeros(EACH, kind)
        rows["key"] = np.arange(EACH)
        rows["value"] = job.rank + step / 8
        stream.push_block(np.arange(EACH) % job.size, rows)
        if step == 0:
            stream.fence()
        elif step == 1:
            stream.round()
        elif step == 2:
            stream.start_round()
            stream.wait()
        else:
            stream.start_round()
            while not stream.test():
                pass
        # A round says that what was sent has been handled here.
        for source, blocks in got.items():
            rows = np.concatenate(blocks)
            rows = rows[rows["value"] == source + step / 8]
            assert (rows["key"] == np.arange(job.rank, EACH, job.size)).all(), (step, source)
    try:
        stream.pull()
        raise SystemExit("pulled what a handler has")
    except trihop.Misuse as mistake:
        assert "`rows` has a handler" in str(mistake)
    try:
        job.stream("others", "u1", handler=7)
        raise SystemExit("7 was called")
    except TypeError as mistake:
        assert "7, which cannot be called" in str(mistake)
    stream.close()
""",
        shape,
    )


def test_records_are_answered_inside_a_handler_and_a_fence_covers_it(program, shape):
    program(
        """
import trihop

ROUNDS, CHAINS = 30, 20
with trihop.Job() as job:
    ended, bad = [], []

    def pass_on(source, kind, data):
        if kind == 1:                      # hops that are left
            ended.append((source, data))
            return
        try:
            letters.fence()
        except trihop.Misuse as mistake:
            bad.append(str(mistake))
        letters.send((job.rank + 1) % job.size, data + b".", kind - 1)

    letters = job.shuffle("letters", handler=pass_on)
    job.barrier()           # handlers of all ranks know it by its name
    for chain in range(CHAINS):
        letters.send((job.rank + 1) % job.size, str(chain).encode() * (chain * 97), ROUNDS)
    letters.fence()
    assert job.allreduce(len(ended)) == CHAINS * job.size
    assert all(data.endswith(b"." * (ROUNDS - 1)) for _, data in ended)
    # Each came here in the order in which it was sent, by the same ranks.
    lengths = [len(data) for _, data in ended]
    assert lengths == sorted(lengths), lengths
    assert bad and all("handler" in text for text in bad), bad[:1]
""",
        shape,
    )


def test_what_a_handler_raises_ends_the_job_and_is_told(program):
    said = program(
        """
import os
import sys
import trihop

job = trihop.Job()
def fail(source, kind, data):
    raise KeyError("by the test")
bad = job.shuffle("bad", handler=fail if job.rank == 1 else print)
if job.rank == 0:
    bad.send(1, b"x")
try:
    while True:
        job.barrier()
except trihop.Error as failed:
    if job.rank == 1:
        assert "`bad`" in str(failed) and "by the test" in str(failed), failed
        assert isinstance(failed.__cause__, KeyError), failed.__cause__
        print("raised")
sys.stdout.flush()
os._exit(0)
""",
        (2, 1),
    )
    assert said.split() == ["raised"]


def test_a_job_with_handlers_that_is_not_shut_down_ends(program, shape):
    program(
        """
import trihop

job = trihop.Job()
seen = []
news = job.shuffle("news", handler=lambda source, kind, data: seen.append(data))
for rank in range(job.size):
    news.send(rank, b"news")
news.fence()
assert len(seen) == job.size
job.barrier()
""",
        shape,
    )
