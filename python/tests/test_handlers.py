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


def test_rounds_are_tested_and_waited_for_as_without_a_handler(program, shape):
    program(
        """
import threading
import trihop

with trihop.Job() as job:
    handled = job.stream("handled", "i8", handler=lambda source, items: None)
    for stream in (handled, job.stream("pulled", "i8")):
        stream.wait()
        assert stream.test()                    # nothing was started
        stream.start_round()
        while not stream.test():
            pass
        assert stream.test()
        stream.wait()
        stream.start_round()
        both = [threading.Thread(target=stream.wait) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert stream.test()
        stream.start_round()
        try:
            stream.start_round()
            raise SystemExit("two at a time")
        except trihop.Misuse:
            pass
        stream.round()                          # it is the one that was started
        assert stream.test()
        stream.round()
""",
        shape,
    )


def test_a_round_that_a_handler_cannot_start_leaves_the_stream_as_it_was(program, shape):
    program(
        """
import numpy as np
import trihop

with trihop.Job() as job:
    refused = []

    def handle(source, items):
        for call in (plain.start_round, plain.round):
            try:
                call()
            except trihop.Misuse as mistake:
                refused.append(str(mistake))

    plain = job.stream("plain", "i8")
    handled = job.stream("handled", "i8", handler=handle)
    job.barrier()
    handled.push_block(job.rank, [1])
    handled.fence()
    assert len(refused) == 2 and all("handler" in text for text in refused), refused
    plain.push_block(np.arange(job.size), np.full(job.size, job.rank))
    plain.round()
    assert [source for source, _ in plain.pull()] == list(range(job.size))
""",
        shape,
    )


def test_handlers_run_on_no_thread_of_pythons(program, shape):
    program(
        """
import os
import signal
import threading
import time
import trihop

def is_in_handler(frame):
    while frame is not None and frame.f_code is not run.__code__:
        frame = frame.f_back
    return frame is not None

def run(source, *more):
    handled.append(threading.get_ident())
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(5):
        time.sleep(0.001)           # what a signal is heard in

handled, heard = [], []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(is_in_handler(frame)))
with trihop.Job() as job:
    stream = job.stream("items", "i8", handler=run)
    shuffle = job.shuffle("records", handler=run)

    def round_apart():
        stream.start_round()
        stream.wait()

    def ended(call, of):
        for _ in range(5):
            before = len(handled)
            if of is stream:
                stream.push_block(job.rank, [1])
            else:
                shuffle.send(job.rank, b"x")
            call()
            assert len(handled) > before

    for call in (stream.fence, stream.round, round_apart):
        ended(call, stream)
    for call in (shuffle.fence, shuffle.round):
        ended(call, shuffle)
    stream.push_block(job.rank, [1])
    shuffle.send(job.rank, b"x")
    stream.close()
    shuffle.close()
    assert threading.get_ident() not in handled
    assert heard and not any(heard)
""",
        shape,
    )


def test_what_a_handler_of_signals_raises_is_no_handlers(program, shape):
    program(
        """
import os
import signal
import time
import trihop

handled = []

def handle(source, items):
    if not handled:
        os.kill(os.getpid(), signal.SIGALRM)
    for _ in range(5):
        time.sleep(0.001)
    handled.extend(items)

signal.signal(signal.SIGALRM, signal.default_int_handler)
with trihop.Job() as job:
    stream = job.stream("items", "i8", handler=handle)
    for call in (stream.fence, stream.round):
        handled.clear()
        try:
            stream.push_block(job.rank, [1, 2])
            call()
            time.sleep(60)
            raise SystemExit("no signal has come")
        except KeyboardInterrupt:
            pass
        stream.fence()              # the job goes on
        assert handled == [1, 2]
        job.barrier()
""",
        shape,
    )


def test_a_wait_for_a_round_with_a_handler_hears_signals_and_goes_on(program):
    program(
        """
import signal
import trihop

signal.signal(signal.SIGALRM, signal.default_int_handler)
with trihop.Job() as job:
    stream = job.stream("items", "i8", handler=lambda source, items: None)
    if job.rank == 0:
        stream.start_round()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            stream.wait()
            raise SystemExit("the other has not begun")
        except KeyboardInterrupt:
            pass
        assert not stream.test()        # it is still under way
    job.barrier()
    stream.round()
    assert stream.test()
""",
        (2, 1),
    )
