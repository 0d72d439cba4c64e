"""Guests: processes that are no ranks, of a job that serves them, and of `trihop serve`."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import OTHERS, RAISED, STAYS_READABLE, TASKS


@pytest.fixture
def server():
    """The name of a `trihop serve`, which is ended behind the test."""
    command = os.environ.get("TRIHOP") or shutil.which("trihop")
    name = f"trihop-test-python-{os.getpid()}"
    # Whoever runs the tests may ignore signals, as `nohup` does.
    words = ["env", "--default-signal=INT,HUP,TERM", command, "serve", "--name", name]
    served = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert served.stdout.readline() == f"ready {name}\n"
    yield name
    served.send_signal(signal.SIGTERM)
    assert served.wait(60) == 0
    served.stdout.close()


def guest(tmp_path, text, name) -> str:
    """Runs the text of a program as a process of its own, which is told the name of its server."""
    path = tmp_path / "guest.py"
    path.write_text(RAISED + text)
    environment = {**os.environ, "TRIHOP_GUESTS": name}
    words = [sys.executable, str(path)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_guests_come_one_by_one_and_find_what_others_have_left(tmp_path, server):
    made = guest(
        tmp_path,
        """
guest = trihop.Guest()
assert (guest.rank, guest.size) == (0, 1)
tasks = guest.create(lasting=True, messages=3)
assert tasks.limits["messages"] == 3 and tasks.kind == "messages" and tasks.owner == 0
for number in range(3):
    tasks.send(b"task %d" % number, number)
raised(trihop.WouldBlock, lambda: tasks.send(b"more", timeout=0))
gone = guest.create()
print(tasks.descriptor, gone.descriptor)
""",
        server,
    )
    tasks, gone = made.split()
    guest(
        tmp_path,
        f"""
import threading
guest = trihop.Guest(wait=None)
raised(trihop.NoChannel, lambda: guest.attach("{gone}"))
tasks = guest.attach("{tasks}")
assert tasks.peek() == (0, 0, b"task 0") == tasks.get()
buffer = bytearray(8)
assert raised(trihop.Misuse, lambda: tasks.get_into(bytearray(2))).length == 6
assert tasks.get_into(buffer) == (0, 1, 6) and buffer[:6] == b"task 1"
assert bytes(tasks.get_array()[2]) == b"task 2"
raised(trihop.Timeout, lambda: tasks.get(timeout=0.01))
assert tasks.poll("size") == 0 and tasks.failures() == (0, None)

import selectors
with selectors.DefaultSelector() as selector:
    selector.register(tasks, selectors.EVENT_READ)
    assert not selector.select(0)
    request = tasks.start_get()
    assert not request.test()
    tasks.start_send(b"a", 5).wait()
    assert request.wait() == (0, 5, b"a") and request.test()
    tasks.send(b"b")
    assert selector.select() and tasks.get()[2] == b"b"
    raised(trihop.WouldBlock, lambda: tasks.get(timeout=0))
    assert not selector.select(0)
dropped = tasks.start_get()
selected = selectors.DefaultSelector()
selected.register(dropped, selectors.EVENT_READ)
tasks.send(b"kept")
assert selected.select()
selected.close()
dropped.cancel()
assert tasks.get() == (0, 0, b"kept")

lock = guest.semaphore(1, most=1)
assert lock.poll("acquire") == 0 and lock.poll("release") == 1
inside = []
def member():
    port = trihop.Guest().attach(lock.descriptor)
    for _ in range(20):
        port.poll("acquire")
        inside.append(1)
        assert len(inside) == 1
        inside.pop()
        port.poll("release")
members = [threading.Thread(target=member) for _ in range(4)]
for each in members: each.start()
for each in members: each.join()
assert guest.barrier(1).poll("arrive") == 0
raised(trihop.Misuse, lambda: lock.send(b""))
raised(trihop.Config, lambda: guest.semaphore(3, most=2))

def get():
    while True:
        try:
            return tasks.get()
        except trihop.Misuse as error: # the other thread was at it
            assert "another thread" in str(error)
waits = threading.Thread(target=get)
waits.start()
other = guest.attach("{tasks}")
while True:
    try:
        tasks.poll("size")
    except trihop.Misuse as error:
        assert "another thread" in str(error)
        break
other.send(b"for who waits", when="received")
waits.join()
tasks.close()
raised(trihop.Closed, lambda: other.send(b"late"))
""",
        server,
    )


def test_guests_await(tmp_path, server):
    guest(
        tmp_path,
        TASKS
        + """
import asyncio

async def main():
    guest = trihop.Guest()
    port = guest.create(messages=7)
    got = []
    takers = [asyncio.ensure_future(take(port, got)) for _ in range(5)]
    await asyncio.gather(send(port, 0), send(guest.attach(port.descriptor), 0))
    for _ in range(60_000):  # what was sent last may still be on its way
        if len(got) < 2 * EACH:
            await asyncio.sleep(0.001)
    # Who is cancelled has taken nothing.
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    assert len(got) == 2 * EACH and all(len(data) == 1200 for _, _, data in got)
    for _ in range(20):
        taken = asyncio.ensure_future(take(port, got))
        await asyncio.sleep(0)
        await port.start_send(b"kept")
        taken.cancel()
        await asyncio.gather(taken, return_exceptions=True)
        if not (len(got) == 2 * EACH + 1 and got.pop()):
            assert (await port.start_get(timeout=60.0))[2] == b"kept"
    try:
        await port.start_get(timeout=0.01)
        raise SystemExit("there was a message")
    except trihop.Timeout:
        pass
    lock = guest.semaphore(0)
    held = asyncio.ensure_future(hold(lock))
    await lock.start_poll("release")
    assert await held == 0

async def hold(lock):
    return await lock.start_poll("acquire")

asyncio.run(main())
""",
        server,
    )


def test_tasks_of_guests_wake_where_others_end_their_requests(tmp_path, server):
    guest(
        tmp_path,
        OTHERS
        + """
asyncio.run(others_end(trihop.Guest().create()))
""",
        server,
    )


def test_descriptors_of_guests_stay_readable(tmp_path, server):
    guest(
        tmp_path,
        STAYS_READABLE
        + """
stays_readable(trihop.Guest().create())
""",
        server,
    )


def test_a_fork_keeps_nothing_under_way(tmp_path, server):
    guest(
        tmp_path,
        """
import asyncio, os, signal, time

async def main():
    guest = trihop.Guest()
    port = guest.create()
    event = port.fileno()
    other = guest.attach(port.descriptor)
    request = port.start_get()
    taken = asyncio.ensure_future(wait_for(port))
    await asyncio.sleep(0)
    child = os.fork()
    if child == 0:
        try:
            for call in [port.get, request.test, lambda: port.start_get()]:
                raised(trihop.Misuse, call)
            time.sleep(60)
        finally:
            os._exit(1)
    request.cancel()
    taken.cancel()
    await asyncio.gather(taken, return_exceptions=True)
    other.send(b"kept")
    assert other.get(timeout=60.0)[2] == b"kept"
    await other.start_send(b"on")
    assert (await port.start_get(timeout=60.0))[2] == b"on"
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

async def wait_for(port):
    return await port.start_get()

asyncio.run(main())
""",
        server,
    )


def test_a_job_serves_guests_and_says_that_it_ends(program):
    name = f"trihop-test-python-job-{os.getpid()}"
    program(
        RAISED
        + f"""
with trihop.Job() as job:
    channels = job.channels("work")
    mine = channels.create()
    with channels.serve_guests("{name}") as guests:
        assert guests.name == "{name}"
        raised(trihop.Error, lambda: channels.serve_guests("{name}"))
        guest = trihop.Guest("{name}")
        port = guest.attach(mine.descriptor)
        port.send(b"of a guest", 7)
        assert mine.get() == (0, 7, b"of a guest")
    raised(trihop.ServerFailed, lambda: port.poll("size"))
    raised(trihop.ServerFailed, lambda: guest.create())
    raised(trihop.ServerFailed, lambda: trihop.Guest("{name}", wait=0.01))
    raised(ValueError, lambda: trihop.Guest("{name}", wait=-1))
    channels.close()
"""
    )
