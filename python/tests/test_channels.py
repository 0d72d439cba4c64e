"""Channels: limits, counters, bounds, messages that come into buffers and arrays, and other jobs."""

from conftest import RAISED

SHARED = RAISED + """
import numpy as np

def shared(job, channels, **limits):
    mine = channels.create(**limits) if job.rank == 0 else None
    return channels.attach(job.broadcast(mine.descriptor.encode() if mine else b"").decode())
"""


def test_limits_are_known_at_each_port_and_make_another_one(program, shape):
    program(
        SHARED
        + """
with trihop.Job() as job:
    channels = job.channels("work")
    port = shared(job, channels, messages=3, window_bytes=1000)
    usual = {"messages": 3, "bytes": 1 << 20, "ports": 1024, "window_messages": 64, "window_bytes": 1000}
    assert port.limits == usual and port.owner == 0
    mine = channels.create(**port.limits)
    assert mine.limits == usual and mine.owner == job.rank
    assert channels.semaphore(ports=7).limits["ports"] == 7
    assert channels.barrier(2, window_messages=9).limits["window_messages"] == 9
    job.barrier()
    channels.close()
""",
        shape,
    )


def test_a_bound_of_what_is_handed_out_costs_a_record_each(program, shape):
    program(
        SHARED
        + """
with trihop.Job() as job:
    for bound, records in [(None, 20), (1, 40), (1 << 20, 40)]:
        channels = job.channels("work", getmsg_bytes=bound)
        port = shared(job, channels)
        if job.rank == 0:
            for number in range(20):
                port.send(b"news", number)
        job.barrier()
        if job.rank == job.size - 1:
            before = channels.stats()["sent"]
            assert [port.get()[1] for _ in range(20)] == list(range(20))
            sent = channels.stats()["sent"] - before
            assert sent == (records if job.size > 1 else 0), (bound, sent)
        job.barrier()
        channels.close()
    raised(TypeError, lambda: job.channels("work", getmsg_bytes="few"))
    raised(OverflowError, lambda: job.channels("work", getmsg_bytes=-1))
""",
        shape,
    )


def test_messages_come_into_whatever_may_be_written(program, shape):
    program(
        SHARED
        + """
import array
import ctypes
import mmap

def rooms():
    yield bytearray(24)
    yield memoryview(bytearray(30))[6:]
    yield np.zeros(24, np.uint8)
    yield np.zeros(3)
    yield np.zeros((1, 3), "i8")
    yield np.zeros(1, "i8,f8,i8")
    yield np.zeros((4, 3))[2]
    yield np.zeros(3).view(np.ma.MaskedArray).data
    yield array.array("d", [0, 0, 0])
    yield (ctypes.c_double * 3)()
    yield memoryview(mmap.mmap(-1, 24))

with trihop.Job() as job:
    port = shared(job, job.channels("work"))
    for turn, room in enumerate(rooms()):
        data = np.arange(turn, turn + 3, dtype="f8").tobytes()
        if job.rank == 0:
            port.send(data[:-1], turn)
            port.send(data, turn)
            port.send(data + b"x", turn)
        job.barrier()
        if job.rank == job.size - 1:
            assert port.get_into(room, timeout=60.0) == (0, turn, 23)
            assert memoryview(room).tobytes() == data[:-1] + b"\\0"
            assert port.get_into(room) == (0, turn, 24)
            assert memoryview(room).tobytes() == data
            before = memoryview(room).tobytes()
            for timeout in (0, None):
                mistake = raised(trihop.Misuse, lambda: port.get_into(room, timeout=timeout), "has 25 bytes")
                assert mistake.length == 25
            assert memoryview(room).tobytes() == before
            assert port.get_into(bytearray(mistake.length)) == (0, turn, 25)
            raised(trihop.WouldBlock, lambda: port.get_into(room, timeout=0))
            raised(trihop.Timeout, lambda: port.get_into(room, timeout=0.01))
        job.barrier()
""",
        shape,
    )


def test_what_cannot_be_written_takes_nothing(program):
    program(
        SHARED
        + """
class Copies:
    def __array__(self, dtype=None, copy=None):
        return np.zeros(8)

with trihop.Job() as job:
    port = job.channels("work").create()
    port.send(b"news", 7)
    fixed = np.zeros(8)
    fixed.flags.writeable = False
    for mistake, room, text in [
        (TypeError, b"12345678", "read-only"), (TypeError, fixed, "read-only"),
        (TypeError, memoryview(bytearray(8)).toreadonly(), "read-only"),
        (ValueError, np.zeros((8, 2))[:, 0], "one piece"), (ValueError, np.zeros((8, 2)).T, "one piece"),
        (ValueError, memoryview(bytearray(16))[::2], "one piece"),
        (TypeError, np.zeros(8, "O"), "Python objects"), (TypeError, np.zeros(8, "i8,O"), "Python objects"),
        (TypeError, [0] * 8, ""), (TypeError, "12345678", ""), (TypeError, Copies(), ""), (TypeError, None, ""),
    ]:
        raised(mistake, lambda: port.get_into(room, timeout=0), text)
        assert port.poll("size") == 1
    for empty in (bytearray(), np.zeros(0), np.zeros((0, 3))):
        assert raised(trihop.Misuse, lambda: port.get_into(empty)).length == 4
    assert port.get_into(np.zeros(8)) == (0, 7, 4)
    port.send(b"", 8)
    assert port.get_into(bytearray()) == (0, 8, 0)
    raised(trihop.Misuse, lambda: job.channels("locks").semaphore().get_into(bytearray(8)), "semaphore")
"""
    )


def test_messages_come_as_arrays_over_their_memory(program, shape):
    program(
        SHARED
        + """
import gc

with trihop.Job() as job:
    channels = job.channels("work")
    port = shared(job, channels, bytes=64 << 20)
    for number, length in enumerate([0, 1, 1000, 100_000, 3_000_000]):
        sent = (np.arange(length) * 7 % 251).astype(np.uint8)
        if job.rank == 0:
            port.send(sent, number)
            port.send(b"kept" * 10, 100)
        job.barrier()
        if job.rank == job.size - 1:
            source, kind, got = port.get_array(timeout=60.0)
            assert (source, kind, got.dtype, got.shape) == (0, number, np.uint8, (length,))
            kept = port.get_array()[2]
            assert (got == sent).all()
            got[:] = 1                      # it is the program's
            assert kept.tobytes() == b"kept" * 10
            raised(trihop.WouldBlock, lambda: port.get_array(timeout=0))
        job.barrier()
    if job.rank == 0:
        port.send(np.arange(4, dtype="f8"))
    job.barrier()
    numbers = port.get_array()[2].view("f8") if job.rank == job.size - 1 else None
    job.barrier()
    del port
    channels.close()
gc.collect()
assert numbers is None or numbers.tolist() == [0, 1, 2, 3]
""",
        shape,
    )


def test_messages_are_passed_on_with_their_memory(program, shape):
    program(
        RAISED
        + """
with trihop.Job() as job:
    channels = job.channels("fields")
    mine = channels.create()
    names = job.allgather(mine.descriptor.encode())
    following = channels.attach(names[(job.rank + 1) % job.size].decode())
    for turn in range(10):
        if job.rank == 0:
            message = following.buffer(100_000)
            assert len(message) == 100_000
            array = message.array
            array[:] = turn + 1
            raised(trihop.Misuse, lambda: following.send_buffer(message), "an array")
            assert message.array[99_999] == turn + 1
            del array
            following.send_buffer(message, kind=turn)
            assert len(message) == 0 and message.array.shape == (0,)
            source, kind, got = mine.get_buffer(timeout=60.0)
            assert (source, kind, len(got)) == (job.size - 1, turn, 100_000)
            assert (got.array == turn + 1).all()
            del got
        else:
            source, kind, message = mine.get_buffer(timeout=60.0)
            following.send_buffer(message, kind)
    raised(trihop.Misuse, lambda: mine.buffer(1 << 40), "bytes")
    full = channels.create(messages=1)
    full.send(b"first")
    message = full.buffer(20_000)
    raised(trihop.WouldBlock, lambda: full.send_buffer(message, timeout=0))
    assert full.poll("receivers") == 0
    job.barrier()
    del following, mine, full
    channels.close()
""",
        shape,
    )


def test_channels_go_on_in_the_next_job_at_an_agent(program):
    program(
        SHARED
        + """
import os

assert os.environ["TRIHOP_AGENT"]
kept = names = None
for turn in range(3):
    with trihop.Job() as job:
        channels = job.channels("tasks", kept=kept)
        if names is None:
            mine = channels.create()
            names = [name.decode() for name in job.allgather(mine.descriptor.encode())]
        after = channels.attach(names[(job.rank + 1) % job.size])
        after.send(b"of job %d" % turn, job.rank)
        job.barrier()
        before = (job.rank - 1) % job.size
        mine = channels.attach(names[job.rank])
        assert mine.owner == job.rank and mine.poll("size") == (1 if turn == 0 else 2)
        if turn > 0:
            assert mine.get(timeout=0) == (before, before, b"of job %d" % (turn - 1))
        job.barrier()
        if turn < 2:
            kept = channels.keep()
            assert kept.descriptors == [names[job.rank]]
            raised(trihop.Closed, lambda: mine.get(timeout=0))
        else:
            assert kept.descriptors == []
            assert mine.get(timeout=0)[2] == b"of job 2"
            channels.close()
""",
        (4, 2),
        seat="agent",
        # They stay for the next job, and end with the ranks.
        under="env TRIHOP_AGENT_LINGER_MS=60000",
    )


def test_a_signal_is_heard_in_a_get_and_in_a_poll(program):
    said = program(
        """
import os
import pathlib
import signal
import threading
import time
import trihop

def interrupt(main, called):
    called.wait()
    sleeps = pathlib.Path(f"/proc/self/task/{main}/stat")
    while sleeps.read_text().rsplit(")", 1)[1].split()[0] != "S":
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

with trihop.Job() as job:
    mine = job.channels("tasks").create()
    for call in mine.get, lambda: mine.poll("in"), lambda: mine.get(timeout=float("inf")):
        called = threading.Event()
        main = threading.get_native_id()
        thread = threading.Thread(target=interrupt, args=(main, called))
        try:
            thread.start()
            called.set()
            call()
        except KeyboardInterrupt:
            thread.join()
        else:
            raise AssertionError(call)
    mine.send(b"a task")                # nobody waits for it any more
    assert mine.get(timeout=60.0)[2] == b"a task"
print("ended")
""",
        (2, 1),
    )
    assert said.split() == ["ended"] * 2


def test_a_get_in_a_handler_takes_nothing(program):
    said = program(
        """
import trihop

with trihop.Job() as job:
    mine = job.channels("tasks").create()
    gate = job.channels("gates").barrier(2)
    refused = []

    def handle(source, kind, data):
        for call in mine.get, lambda: mine.poll("in"), lambda: gate.poll("arrive"):
            try:
                call()
            except trihop.Misuse as error:
                refused.append(str(error))

    news = job.shuffle("news", handler=handle)
    mine.send(b"a task")
    news.send(0, b"")
    news.fence()
    assert len(refused) == 3, refused
    assert mine.poll("size") == 1 and gate.poll("waiting") == 0
    assert mine.get()[2] == b"a task"
print("ended")
"""
    )
    assert said.split() == ["ended"]


def test_a_message_is_given_away_once(program):
    said = program(
        """
import trihop

with trihop.Job() as job:
    mine = job.channels("tasks").create(messages=1)
    message = mine.buffer(3)
    message.array[:] = list(b"abc")
    mine.send_buffer(message)
    try:
        mine.send_buffer(message)
    except trihop.Misuse as refused:
        assert "given away" in str(refused)
    else:
        raise AssertionError("it is gone")
    again = mine.buffer(3)
    try:
        mine.send_buffer(again, timeout=0)
    except trihop.WouldBlock:
        pass                            # the channel is full, and has refused it
    else:
        raise AssertionError("there is room for one")
    assert len(again) == 0
    try:
        mine.send_buffer(again)
    except trihop.Misuse as refused:
        assert "given away" in str(refused)
    else:
        raise AssertionError("it is gone")
    assert mine.get()[2] == b"abc"
    nothing = mine.buffer(0)
    mine.send(b"abc")
    for _ in range(2):
        try:
            mine.send_buffer(nothing, timeout=0)
        except trihop.WouldBlock:
            pass                        # there is no more of it to lose
print("ended")
"""
    )
    assert said.split() == ["ended"]
