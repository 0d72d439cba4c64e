"""Requests that are waited for and taken back, by several threads, in handlers, under signals."""

from conftest import STAYS_READABLE

OWN = """
import threading
import trihop

def raised(call, text):
    try:
        call()
    except trihop.Misuse as mistake:
        assert text in str(mistake), mistake
        return
    raise SystemExit(f"no mistake: {text}")
"""


def test_a_result_that_has_come_stays_where_its_request_is_taken_back(program, shape):
    program(
        OWN
        + """
with trihop.Job() as job:
    port = job.channels("own").create()
    request = port.start_get()
    port.send(b"kept", 7)
    while not request.test():
        pass
    request.cancel()
    assert request.wait() == (job.rank, 7, b"kept")
    raised(request.wait, "it was had")
    request.cancel()
    raised(request.wait, "it was had")
    under_way = port.start_get()
    under_way.cancel()
    raised(under_way.wait, "taken back")
    failed = port.start_get(timeout=0)
    while not failed.test():
        pass
    failed.cancel()
    try:
        failed.wait()
        raise SystemExit("there was a message")
    except trihop.WouldBlock:
        pass
    job.barrier()
""",
        shape,
    )


def test_a_wait_inside_a_handler_leaves_its_request_under_way(program, shape):
    program(
        OWN
        + """
with trihop.Job() as job:
    port = job.channels("own").create()
    request = port.start_get()
    seen = []

    def handle(source, kind, data):
        raised(request.wait, "inside a handler")
        seen.append(request.test())

    letters = job.shuffle("letters", handler=handle)
    letters.send(job.rank, b"x")
    letters.fence()
    assert seen == [False]
    port.send(b"still here")
    assert request.wait()[2] == b"still here"

    def take(source, kind, data):
        while not ended.test():
            pass
        seen.append(ended.wait()[2])        # it has ended: this does not wait

    ended = port.start_get()
    port.send(b"at once")
    others = job.shuffle("others", handler=take)
    others.send(job.rank, b"x")
    others.fence()
    assert seen == [False, b"at once"]
""",
        shape,
    )


def test_others_test_and_take_back_what_a_thread_waits_for(program, shape):
    program(
        OWN
        + """
with trihop.Job() as job:
    port = job.channels("own").create()
    for turn in range(5):
        request = port.start_get(timeout=None if turn % 2 else 600.0)
        outcome = []

        def wait():
            begun.set()
            try:
                outcome.append(request.wait())
            except trihop.Misuse as mistake:
                outcome.append(str(mistake))

        begun = threading.Event()
        waits = threading.Thread(target=wait)
        waits.start()
        begun.wait()
        for _ in range(1000 * turn):
            assert not request.test()
        request.cancel()
        waits.join()
        assert len(outcome) == 1 and "taken back" in outcome[0], outcome
        port.send(b"for the next")
        assert port.get(timeout=60.0)[2] == b"for the next"
    # Of two that wait, one gets it.
    request = port.start_get()
    outcome = []
    both = [threading.Thread(target=wait) for _ in range(2)]
    for thread in both:
        thread.start()
    port.send(b"for one")
    for thread in both:
        thread.join()
    got = [one for one in outcome if not isinstance(one, str)]
    assert got == [(job.rank, 0, b"for one")] and len(outcome) == 2, outcome
    job.barrier()
""",
        shape,
    )


def test_descriptors_stay_readable_once_others_have_heard_of_the_end(program, shape):
    program(
        STAYS_READABLE
        + """
with trihop.Job() as job:
    channels = job.channels("own")
    stays_readable(channels.create())
    job.barrier()
    channels.close()
""",
        shape,
    )


def test_a_wait_ends_with_what_a_handler_of_signals_raises(program):
    program(
        OWN
        + """
import signal

signal.signal(signal.SIGALRM, signal.default_int_handler)
with trihop.Job() as job:
    port = job.channels("own").create()
    request = port.start_get()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        request.wait()
        raise SystemExit("there was a message")
    except KeyboardInterrupt:
        pass
    assert not request.test()               # it is still under way
    port.send(b"later")
    assert request.wait()[2] == b"later"
    timed = port.start_get(timeout=0.3)
    try:
        timed.wait()
        raise SystemExit("there was a message")
    except trihop.Timeout:
        pass
"""
    )


def test_a_wait_ends_with_the_job(program):
    said = program(
        OWN
        + """
import os
import sys

job = trihop.Job()
port = job.channels("own").create()
request = port.start_get()
if job.rank == 1:
    job.barrier()
    os._exit(0)
job.barrier()
try:
    request.wait()
    raise SystemExit("there was a message")
except trihop.PeerGone:
    print("gone")
sys.stdout.flush()
os._exit(0)
""",
        (2, 1),
    )
    assert said.split() == ["gone"]
