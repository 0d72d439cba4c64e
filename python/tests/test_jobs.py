"""Whole jobs of 1, 2 and 4 ranks; programs check for themselves and say what is compared here."""


def test_a_histogram_is_that_of_numpy(program, shape):
    # Rank 0 makes the same updates as all ranks, and counts them by itself.
    said = program(
        """
import numpy as np
import trihop

PLACES = 1000
with trihop.Job() as job:
    updates = [np.random.default_rng(rank).integers(0, PLACES * job.size, 100_000)
               for rank in range(job.size)]
    stream = job.stream("updates", np.int64)
    mine = updates[job.rank]
    stream.push_block(mine // PLACES, mine)
    stream.fence()
    table = np.zeros(PLACES, np.int64)
    for source, items in stream.pull():
        expected = updates[source][updates[source] // PLACES == job.rank]
        assert (items == expected).all(), "not in the order of their source"
        table += np.bincount(items - PLACES * job.rank, minlength=PLACES)
    tables = np.concatenate([np.frombuffer(t, np.int64) for t in job.allgather(table)])
    expected = np.bincount(np.concatenate(updates), minlength=PLACES * job.size)
    assert (tables == expected).all()
    print("agrees")
""",
        shape,
    )
    assert said.split() == ["agrees"] * shape[0]


def test_a_round_is_pulled_alone(program, shape):
    program(
        """
import numpy as np
import trihop

with trihop.Job() as job:
    stream = job.stream("steps", np.uint32)
    everyone = np.arange(job.size)
    random = np.random.default_rng(job.rank)
    for step in range(300):
        if job.rank != step % job.size:     # who is late has less
            stream.push_block(everyone, np.full(job.size, step, np.uint32))
        if step % 3 == 0:
            stream.start_round()
            while not stream.test():
                pass
        elif step % 3 == 1:
            stream.start_round()
            stream.wait()
        else:
            stream.round()
        got = stream.pull()
        sources = [source for source, _ in got]
        assert sources == [rank for rank in everyone if rank != step % job.size], (step, got)
        assert all(items.tolist() == [step] for _, items in got), (step, got)
""",
        shape,
    )


def test_who_pulls_nothing_holds_back_and_loses_nothing(program, shape):
    program(
        """
import numpy as np
import trihop

HELD = 1 << 16
with trihop.Job() as job:
    stream = job.stream("numbers", np.uint64, held_bytes=HELD, memory_bytes=1 << 20)
    numbers = np.arange(400_000, dtype=np.uint64)
    refused = total = 0

    def take():
        global total
        for _, items in stream.pull():
            # `held_bytes`, and what one delivery queue holds at most.
            assert items.nbytes <= HELD + (1 << 20), items.nbytes
            total += int(items.sum())

    def retried(call):
        global refused
        while True:
            try:
                return call()
            except trihop.WouldBlock as full:
                assert "held_bytes" in str(full), full
                refused += 1
                take()

    for step in range(3):
        sent = 0
        while sent < len(numbers):
            try:
                stream.push_block(numbers[sent:] % np.uint64(job.size), numbers[sent:])
                sent = len(numbers)
            except trihop.WouldBlock as full:
                assert 0 <= full.taken < len(numbers) - sent
                sent += full.taken
                refused += 1
                take()
        retried([stream.round, stream.fence, stream.round][step])
        take()
    assert refused > 3, refused
    assert job.allreduce(total) == 3 * int(numbers.sum()) * job.size
    assert job.allreduce(int(sum(len(items) for _, items in stream.pull()))) == 0
    stream.close()
    try:
        stream.pull()
    except trihop.Closed:
        print("closed")
""",
        shape,
    )


def test_ends_that_come_again_do_nothing(program, shape):
    program(
        """
import trihop

with trihop.Job() as job:
    stream = job.stream("items", "u8")
    shuffle = job.shuffle("records")
    channels = job.channels("channels")
    for _ in range(2):
        stream.close()
        shuffle.close()
        channels.close()
    try:
        stream.round()
    except trihop.Closed:
        job.shutdown()
job.shutdown()
print("ended")
""",
        shape,
    )


def test_records_of_any_length_come_in_order(program, shape):
    program(
        """
import numpy as np
import trihop

def record(source, target, number):
    length = [0, 1, 7, 100, 5_000, 200_000][number % 6]
    return bytes([source, target, number]) * (length // 3)

with trihop.Job() as job:
    shuffle = job.shuffle("records")
    for end in (shuffle.fence, shuffle.round):
        for number in range(60):
            for target in range(job.size):
                data = record(job.rank, target, number)
                data = [data, bytearray(data), memoryview(data), np.frombuffer(data, "u1")][number % 4]
                shuffle.send(target, data, kind=number)
        end()
        job.barrier()
        heard = shuffle.pull()
        for source in range(job.size):
            of = [(kind, data) for origin, kind, data in heard if origin == source]
            assert of == [(n, record(source, job.rank, n)) for n in range(60)]
        job.barrier()
    counters = shuffle.stats()
    assert sum(counters.values()) > 0, counters
    shuffle.close()
""",
        shape,
    )


def test_collectives_agree_with_numpy(program, shape):
    program(
        """
import numpy as np
import trihop

with trihop.Job() as job:
    ranks = np.arange(job.size)
    assert (job.nodes, job.local_size) == (2, 2) if job.size == 4 else job.nodes == 1
    assert job.rank in job.ranks_of(job.node) and job.node_of(job.rank) == job.node
    assert job.ranks_of(job.node)[job.local_rank] == job.rank
    assert job.launcher == "local" and (job.provider is None) == (job.nodes == 1)
    values = np.arange(6).reshape(2, 3) * (job.rank + 1)
    total = job.allreduce(values)
    assert total.shape == (2, 3) and (total == np.arange(6).reshape(2, 3) * (ranks + 1).sum()).all()
    assert job.allreduce(float(job.rank), "max") == job.size - 1
    assert job.allreduce(np.float32(0.5)) == 0.5 * job.size
    assert job.allreduce(np.uint8(1 << job.rank), "or") == (1 << job.size) - 1
    assert job.allreduce([-job.rank, 5], op="min").tolist() == [1 - job.size, 5]
    assert job.exscan(job.rank + 1) == (ranks[:job.rank] + 1).sum()
    assert job.allgather(b"x" * job.rank) == [b"x" * rank for rank in range(job.size)]
    assert job.broadcast(f"from {job.rank}".encode(), root=job.size - 1) == b"from %d" % (job.size - 1)
    job.barrier()
    assert "rank" in job.dump()
""",
        shape,
    )


def test_channels_carry_messages_between_ranks(program, shape):
    program(
        """
import trihop

with trihop.Job() as job:
    channels = job.channels("work")
    mine = channels.create(messages=4, bytes=4096)
    names = [name.decode() for name in job.allgather(mine.descriptor.encode())]
    assert all(len(name) <= 64 for name in names)
    after = channels.attach(names[(job.rank + 1) % job.size])
    assert after.owner == (job.rank + 1) % job.size
    for number, when in enumerate(["immediately", "buffered", "deposited"]):
        after.send(b"%d from %d" % (number, job.rank), kind=number, when=when, timeout=60.0)
    before = (job.rank - 1) % job.size
    assert mine.poll("in", timeout=60.0) >= 1
    assert mine.peek(timeout=60.0) == (before, 0, b"0 from %d" % before)
    for number in range(2):
        assert mine.get(timeout=60.0) == (before, number, b"%d from %d" % (number, before))
    source, kind, data = mine.pop(timeout=60.0)
    assert (source, kind, data) == (before, 2, b"")
    assert mine.poll("size") == 0 and mine.poll("capacity") == 4
    assert after.failures() == (0, None)
    job.barrier()
    for call in (mine.get, mine.peek, mine.pop):
        try:
            call(timeout=0)
            raise SystemExit("got what is not there")
        except trihop.WouldBlock:
            pass
        try:
            call(timeout=0.02)
            raise SystemExit("got what is not there")
        except trihop.Timeout:
            pass
    job.barrier()
    for _ in range(4):
        after.send(b"full")
    job.barrier()
    assert mine.poll("full") == 4
    try:
        after.send(b"one too many", timeout=0.05)
        raise SystemExit("sent what has no room")
    except trihop.Timeout:
        pass
    job.barrier()
    mine.close()
    assert mine.poll("closed") == 4
    for _ in range(4):
        assert mine.get() == (before, 0, b"full")
    for call in (mine.get, lambda: mine.send(b"late")):
        try:
            call()
            raise SystemExit("used what is closed")
        except trihop.Closed:
            pass
    try:
        channels.attach(names[0][:-1] + ("0" if names[0][-1] != "0" else "1"))
        raise SystemExit("attached to what is no channel")
    except trihop.NoChannel as mistake:
        assert "check digits" in str(mistake)
    channels.close()
""",
        shape,
    )


def test_other_threads_run_while_a_call_waits(program):
    # Rank 1 makes each call only once the main thread of rank 0 has told it to, while another
    # thread of rank 0 is in that call: with Python's lock held, that never comes.
    program(
        """
import threading
import numpy as np
import trihop

with trihop.Job() as job:
    stream = job.stream("items", np.uint64)
    records = job.shuffle("records")
    channels = job.channels("orders")
    orders = channels.create() if job.rank == 1 else None
    order = channels.attach(job.broadcast(orders.descriptor.encode() if orders else b"", 1).decode())
    answers = channels.create() if job.rank == 0 else None
    answer = channels.attach(job.broadcast(answers.descriptor.encode() if answers else b"").decode())
    calls = [
        job.barrier, lambda: job.allreduce(1), lambda: job.exscan(1), lambda: job.allgather(b"x"),
        lambda: job.broadcast(b"x", 1), stream.fence, stream.round, stream.barrier,
        records.fence, records.round, records.barrier,
        lambda: job.stream("more", np.uint8), lambda: job.channels("others"),
        lambda: answers.get() if answers else answer.send(b"done", when="received"),
        lambda: answers.poll("in") if answers else answer.send(b"done"),
        stream.close, records.close,
    ]
    for number, call in enumerate(calls):
        if job.rank == 1:
            assert orders.get() == (0, number, b"go")
            call()
            continue
        begun = threading.Event()
        thread = threading.Thread(target=lambda: (begun.set(), call()))
        thread.start()
        begun.wait()
        order.send(b"go", kind=number)
        thread.join()
""",
        (2, 1),
    )


def test_a_signal_is_heard_in_a_round_that_waits(program):
    # Rank 1 ends the round only once rank 0 has heard the signal and said so.
    program(
        """
import os
import signal
import threading
import trihop

with trihop.Job() as job:
    stream = job.stream("items", "u8")
    channels = job.channels("news")
    news = channels.create() if job.rank == 1 else None
    news = channels.attach(job.broadcast(news.descriptor.encode() if news else b"", 1).decode())
    stream.push_block([0, 1], [job.rank, job.rank])
    if job.rank == 0:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            stream.round()
            raise SystemExit("the round has ended without rank 1")
        except KeyboardInterrupt:
            news.send(b"heard")
    else:
        news.get()
    stream.round()
    assert [items.tolist() for _, items in stream.pull()] == [[0], [1]]
""",
        (2, 1),
    )


def test_the_end_of_a_rank_is_told_to_others(program):
    said = program(
        """
import os
import signal
import time
import numpy as np
import trihop

signal.signal(signal.SIGTERM, signal.SIG_IGN)     # the launcher's, for who is left
job = trihop.Job()
stream = job.stream("items", np.uint64)
stream.push_block(job.rank, [job.rank])
stream.round()
if job.rank == 1:
    os._exit(3)
for call in (stream.fence, job.barrier, lambda: stream.push_block(1, [1] * 1000)):
    try:
        call()
        raise SystemExit("went on without rank 1")
    except trihop.PeerGone as gone:
        assert gone.rank == 1, gone
assert [items.tolist() for _, items in stream.pull()] == [[0]], "what was here is here"
print("told", flush=True)
""",
        (2, 1),
        status=3,
    )
    assert said == "told\n"


def test_an_exception_that_leaves_a_job_ends_it(program):
    program(
        """
import trihop

with trihop.Job() as job:
    if job.rank == 1:
        raise SystemExit(7)
    job.barrier()
""",
        (2, 1),
        status=7,
    )


def test_ranks_that_do_not_agree_are_told(program):
    program(
        """
import numpy as np
import trihop

job = trihop.Job()
try:
    job.stream("items", np.uint64 if job.rank else np.uint32)
    raise SystemExit("opened a stream of two types")
except trihop.Misuse as mistake:
    assert "items" in str(mistake)
""",
        (2, 1),
    )


def test_a_job_that_is_not_shut_down_ends(program, shape):
    program(
        """
import numpy as np
import trihop

job = trihop.Job()
stream = job.stream("items", np.uint64)
stream.push_block(0, [1, 2, 3])
try:
    stream.fence()
    print(sum(len(items) for _, items in stream.pull()))
except trihop.PeerGone:
    # Another rank was faster, and its process has ended.
    assert job.size > 1
""",
        shape,
    )


def test_options_come_from_arguments_and_the_environment(program):
    program(
        """
import numpy as np
import trihop

for given, why in [({"nonsense": 1}, "nonsense"), ({"linger_us": -1}, "linger_us"),
                   ({"route": "by air"}, "route")]:
    try:
        trihop.Job(**given)
        raise SystemExit("took an option that there is not")
    except trihop.Config as mistake:
        assert why in str(mistake), mistake
with trihop.Job(linger_us=50, counters_page=False) as job:
    streams = job.stream("usual", "f8"), job.stream("own", "f8", route="direct", memory_bytes=1 << 20)
    # Half of it is for deliveries.
    assert "0 of 1048576 bytes" in job.dump() and "0 of 524288 bytes" in job.dump()
    for mistake, given in [(trihop.Misuse, {"provider": "tcp"}), (trihop.Config, {"memory": 3}),
                           (TypeError, {"route": None}), (ValueError, {"held_bytes": 0})]:
        try:
            job.stream("y", "f8", **given)
            raise SystemExit(f"took {given}")
        except mistake:
            pass
""",
        TRIHOP_MEMORY_BYTES="2097152",
    )
    program(
        """
import trihop
try:
    trihop.Job()
    raise SystemExit("took it")
except trihop.Config as mistake:
    assert "TRIHOP_LINGER_US" in str(mistake)
""",
        TRIHOP_LINGER_US="soon",
    )
