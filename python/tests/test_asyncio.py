"""Calls on channels that are started: awaited, tested, slept on; semaphores and barriers."""

from conftest import OTHERS, TASKS

SHARED = """
import asyncio
import selectors
import trihop

def shared(job, channels, make):
    mine = make() if job.rank == 0 else None
    return channels.attach(job.broadcast(mine.descriptor.encode() if mine else b"").decode())
"""


def test_tasks_get_what_others_send(program, shape):
    program(
        SHARED
        + TASKS
        + """
async def main(job, port, got):
    takers = [asyncio.ensure_future(take(port, got)) for _ in range(5)]
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)
    ticking = asyncio.ensure_future(tick())
    await asyncio.gather(send(port, job.rank), send(port, job.rank))
    ticking.cancel()
    assert ticks > 0
    # Nobody waits in a call of the library's: the loop goes on.
    await asyncio.get_running_loop().run_in_executor(None, job.barrier)
    if job.rank == 0:
        mine[0].close()
    await asyncio.gather(*takers)

mine = []
with trihop.Job() as job:
    channels = job.channels("work")
    def make():
        mine.append(channels.create(messages=7))
        return mine[0]
    port = shared(job, channels, make)
    got = []
    asyncio.run(main(job, port, got))
    assert all(len(data) == 1200 for _, _, data in got)
    assert job.allreduce(len(got)) == 2 * EACH * job.size
    channels.close()
""",
        shape,
    )


def test_who_is_cancelled_takes_nothing(program, shape):
    program(
        SHARED
        + """
async def main(job, port, lock):
    for turn in range(20):
        asked = asyncio.ensure_future(take(port))
        await asyncio.sleep(0)
        if turn % 2 == 0:
            await port.start_send(b"kept")
        asked.cancel()
        try:
            await asked
            raise SystemExit("it was not cancelled")
        except asyncio.CancelledError:
            pass
        if turn % 2 == 0:
            assert (await port.start_get(timeout=60.0))[2] == b"kept"
    # In time, or not: the deadline is a request's own.
    try:
        await port.start_get(timeout=0.01)
        raise SystemExit("there was a message")
    except trihop.Timeout:
        pass
    try:
        await port.start_get(timeout=0)
        raise SystemExit("there was a message")
    except trihop.WouldBlock:
        pass
    held = await lock.start_poll("acquire")
    assert held == 0
    waits = asyncio.ensure_future(hold(lock))
    await asyncio.sleep(0.01)
    assert not waits.done()
    assert await lock.start_poll("release") == 1
    assert await waits == 0

async def take(port):
    return await port.start_get()

async def hold(lock):
    return await lock.start_poll("acquire")

with trihop.Job() as job:
    channels = job.channels("own")
    port, lock = channels.create(), channels.semaphore(1, most=1)
    assert (port.kind, lock.kind) == ("messages", "semaphore")
    asyncio.run(main(job, port, lock))
    request = port.start_get()
    assert not request.test()
    port.send(b"x", 3)
    assert request.wait() == (job.rank, 3, b"x") and request.test()
    try:
        request.wait()
        raise SystemExit("a second result")
    except trihop.Misuse:
        pass
    taken_back = port.start_get()
    taken_back.cancel()
    port.send(b"y")
    assert port.get(timeout=60.0)[2] == b"y"
    job.barrier()
    channels.close()
""",
        shape,
    )


def test_tasks_wake_where_others_end_their_requests(program, shape):
    program(
        SHARED
        + OTHERS
        + """
with trihop.Job() as job:
    channels = job.channels("own")
    asyncio.run(others_end(channels.create()))
    job.barrier()
    channels.close()
""",
        shape,
    )


def test_ranks_sleep_on_descriptors_and_meet(program, shape):
    program(
        SHARED
        + """
def sleep_on(what):
    with selectors.DefaultSelector() as selector:
        selector.register(what, selectors.EVENT_READ)
        assert selector.select()

with trihop.Job() as job:
    channels = job.channels("gates")
    inbox = shared(job, channels, channels.create)
    lock = shared(job, channels, lambda: channels.semaphore(0))
    gate = shared(job, channels, lambda: channels.barrier(job.size + 1))
    inbox.send(b"news", job.rank)
    lock.poll("release")
    if job.rank + 1 < job.size:
        assert gate.poll("arrive") < job.size
    else:
        got = 0
        while got < job.size:
            sleep_on(inbox)
            try:
                while True:
                    inbox.get(timeout=0)
                    got += 1
            except trihop.WouldBlock:
                pass
        taken = 0
        while taken < job.size:
            sleep_on(lock)
            try:
                while True:
                    lock.poll("acquire", timeout=0)
                    taken += 1
            except trihop.WouldBlock:
                pass
        first = gate.start_poll("arrive")
        sleep_on(gate)
        assert not first.test() and gate.poll("one_missing") == job.size
        assert gate.poll("arrive", timeout=0) == job.size
        sleep_on(first)
        assert first.wait() < job.size
        assert gate.poll("abort") == 0
        try:
            gate.poll("arrive")
            raise SystemExit("the barrier is whole")
        except trihop.BarrierBroken:
            assert gate.poll("broken") == 1
        assert gate.poll("reset") == 0
    job.barrier()
    try:
        lock.get()
        raise SystemExit("got from a semaphore")
    except trihop.Misuse:
        pass
    channels.close()
""",
        shape,
    )
