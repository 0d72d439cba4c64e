"""Programs with handlers that end with records under way, and without a shutdown. One that does not
end is ended by `trihop run`, with another status."""

import pytest

BUSY = """
import sys
import threading
import time
import trihop

sys.setswitchinterval(1e-4)
seen = []
begun = threading.Event()

def handle(source, kind, data):
    begun.set()
    time.sleep(0.001)
    seen.append(sum(range(1000)))

def flood(job, **options):
    news = job.shuffle("news", handler=handle, **options)
    for number in range(1000):
        news.send(job.rank, b"news")
    begun.wait()
    return news
"""


@pytest.mark.parametrize("options", ["", "own_thread=True"])
def test_the_last_handle_goes_while_its_handler_runs(program, shape, options):
    said = program(
        BUSY
        + f"""
def send():
    job = trihop.Job()
    flood(job, {options})
    job.barrier()

send()
assert seen
before = len(seen)
time.sleep(0.01)
assert len(seen) == before          # with the job the calls of its handlers have ended
print("ended")
""",
        shape,
    )
    assert said.split() == ["ended"] * shape[0]


def test_what_is_raised_with_records_under_way_is_the_end_of_the_program(program):
    said = program(
        BUSY
        + """
def send():
    job = trihop.Job()
    news = flood(job)
    raise ValueError("by the test")

try:
    send()
except ValueError:
    print("raised", flush=True)
send()
""",
        status=1,
    )
    assert said.split() == ["raised"]


@pytest.mark.parametrize("options", ["", "own_thread=True"])
def test_the_interpreter_ends_while_a_handler_runs(program, shape, options):
    said = program(
        BUSY
        + f"""
import atexit

def count():
    begun = len(seen)
    assert begun < 1000
    print("exits", flush=True)

atexit.register(count)
job = trihop.Job()
news = flood(job, {options})
job.barrier()
""",
        shape,
    )
    assert said.split() == ["exits"] * shape[0]


def test_a_handler_that_runs_as_the_interpreter_ends_runs_to_its_end(program):
    said = program(
        """
import threading
import time
import trihop

begun = threading.Event()

def handle(source, kind, data):
    begun.set()
    for _ in range(50):
        time.sleep(0.002)
        sum(range(1000))
    print("handled", flush=True)

job = trihop.Job()
news = job.shuffle("news", handler=handle)
for _ in range(100):
    news.send(job.rank, b"news")
begun.wait()
"""
    )
    # None begins once the program has ended.
    assert said.split() == ["handled"]


def test_a_handler_that_never_ends_is_given_up_by_a_signal(program):
    program(
        """
import os
import signal
import threading
import trihop

begun = threading.Event()

def handle(source, kind, data):
    begun.set()
    threading.Event().wait()

job = trihop.Job()
news = job.shuffle("news", handler=handle)
news.send(job.rank, b"news")
begun.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
"""
    )


def test_a_request_is_the_last_handle(program):
    said = program(
        BUSY
        + """
def send():
    job = trihop.Job()
    port = job.channels("work").create()
    flood(job)
    return port.start_get()

request = send()
assert not request.test()
del request
print("ended")
"""
    )
    assert said.split() == ["ended"]


def test_a_fork_ends_by_itself(program):
    said = program(
        BUSY
        + """
import os

job = trihop.Job()
news = flood(job)
child = os.fork()
if child == 0:
    del news, job
    raise SystemExit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert said.split() == ["3"]


def test_a_fork_uses_nothing_of_the_job(program):
    said = program(
        """
import os
import numpy as np
import trihop

job = trihop.Job()
stream = job.stream("items", "i8")
news = job.shuffle("news")
mine = job.channels("tasks").create()
request = mine.start_get()
calls = [
    job.barrier, job.shutdown, stream.round, stream.pull, lambda: stream.push_block(0, [1]),
    lambda: news.send(0, b"news"), mine.get, lambda: mine.send(b"a task"), request.test,
    lambda: job.stream("other", "i8"), lambda: job.shuffle("other"), lambda: mine.buffer(1),
    lambda: job.channels("other"), job.dump, stream.fence, news.round,
]
child = os.fork()
if child == 0:
    assert (job.rank, stream.name, mine.owner) == (0, "items", 0) and repr(job)
    for call in calls:
        try:
            call()
        except trihop.Misuse as refused:
            assert "a fork uses nothing of a job" in str(refused), refused
        else:
            os._exit(1)
    with job:
        raise SystemExit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
mine.send(b"a task")
assert request.wait()[2] == b"a task"
job.shutdown()
print("ended")
"""
    )
    assert said.split() == ["ended"]


@pytest.mark.parametrize("seat", [None, "agent"])
def test_an_exception_that_leaves_the_job_is_told_to_the_others_at_once(program, seat):
    said = program(
        """
import time
import trihop

try:
    with trihop.Job() as job:
        stream = job.stream("items", "i8")
        if job.rank == 1:
            raise ValueError("by the test")
        stream.fence()
except ValueError:
    kept = job                          # and its process lives on
    try:
        job.barrier()
    except trihop.PeerGone as failed:
        assert "by the test" in str(failed)
    time.sleep(3)
except trihop.PeerGone as gone:
    assert gone.rank == 1
    print(gone)
""",
        (3, 3),
        **({"seat": seat} if seat else {}),
    )
    assert said.count("rank 1 has failed") == 2 and said.count("ValueError: by the test") == 2


@pytest.mark.parametrize("handler", ["", ", handler=print"])
def test_a_round_under_way_ends_before_another_step_is_ended(program, handler):
    said = program(
        f"""
import time
import trihop

with trihop.Job() as job:
    stream = job.stream("items", "i8"{handler})
    for turn in range(20):
        stream.start_round()
        if turn % 2:
            time.sleep(0.002 * job.rank)
        for end in stream.fence, stream.barrier:
            try:
                end()
            except trihop.Misuse as refused:
                assert "wait for it first" in str(refused)
            else:
                raise AssertionError(end)
        stream.wait()
        stream.fence()
print("ended")
""",
        (3, 1),
    )
    assert said.split() == ["ended"] * 3


@pytest.mark.parametrize("handler", ["", ", handler=print"])
def test_rounds_of_two_threads_follow_one_another(program, handler):
    said = program(
        f"""
import threading
import trihop

with trihop.Job() as job:
    stream = job.stream("items", "i8"{handler})

    def rounds():
        for _ in range(200):
            stream.round()

    threads = [threading.Thread(target=rounds) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("ended")
""",
        (2, 1),
    )
    assert said.split() == ["ended"] * 2


def test_ranks_that_mean_other_items_by_a_stream_are_refused(program):
    said = program(
        """
import trihop

with trihop.Job() as job:
    fields = [("a", "i4"), ("b", "f4")]
    for types in ["i8", "f8", "i8"], ["<u4", "<u4", ">u4"], [fields, "i8", "i8"]:
        try:
            job.stream("items", types[job.rank])
        except trihop.Misuse as refused:
            assert "on rank 0, and of" in str(refused), refused
        else:
            raise AssertionError(types)
    stream = job.stream("items", fields)
    stream.push_block(0, [(1, 2.0)])
    stream.fence()
print("ended")
""",
        (3, 1),
    )
    assert said.split() == ["ended"] * 3


def test_a_round_that_waits_leaves_the_core_to_others(program):
    said = program(
        """
import os
import time
import trihop

with trihop.Job() as job:
    stream = job.stream("items", "i8")
    if job.rank == 1:
        time.sleep(2)
    before = os.times()
    stream.round()
    after = os.times()
    # It has slept for most of the time, however long that was.
    waited = after.elapsed - before.elapsed
    took = after.user + after.system - before.user - before.system
    assert job.rank == 1 or took < waited / 2, (took, waited)
print("ended")
""",
        (2, 1),
    )
    assert said.split() == ["ended"] * 2


def test_ranks_with_an_agent_go_on_without_one_that_was_killed(program):
    said = program(
        """
import os
import signal

import trihop

# The launcher asks the ranks to end as soon as one is gone.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
job = trihop.Job()
assert job.lost == []
job.survive()
channels = job.channels("letters")
mine = channels.create()
items = job.stream("items", "i8")
names = [name.decode() for name in job.allgather(mine.descriptor.encode())]
ports = [channels.attach(name) for name in names]
job.barrier()
if job.rank == 1:
    for port in ports:
        port.send(b"a letter", when="deposited")
    os.kill(os.getpid(), signal.SIGKILL)
items.start_round()
assert mine.get() == (1, 0, b"a letter")
while not job.lost:
    try:
        mine.get(timeout=0.05)
    except trihop.Timeout:
        pass
assert job.lost == [1]
for what in lambda: ports[1].send(b""), ports[1].get, job.barrier:
    try:
        what()
    except trihop.PeerGone as gone:
        assert gone.rank == 1
    else:
        raise AssertionError(what)
other = 2 - job.rank
# A round that cannot end says so once, and is over.
try:
    items.wait()
except trihop.PeerGone as gone:
    assert gone.rank == 1
else:
    raise AssertionError("a round of who is gone")
assert items.test()
items.push_block(other, [7])
for turn in range(100):
    ports[other].send(b"another", when="deposited")
    assert mine.get() == (other, 0, b"another")
# Who is the first to end has answered the other by then.
try:
    ports[other].send(b"the last one")
except trihop.PeerGone as gone:
    assert gone.rank == other
print("goes on", flush=True)
""",
        (3, 1),
        status=None,
        seat="agent",
    )
    assert said.count("goes on") == 2


def test_survival_is_for_ranks_with_an_agent(program):
    said = program(
        """
import trihop

with trihop.Job() as job:
    try:
        job.survive()
    except trihop.Misuse as error:
        print(error)
"""
    )
    assert "no agent" in said


def test_an_agent_that_is_killed_has_an_exception_of_its_own(program):
    said = program(
        """
import os
import pathlib
import signal

import numpy as np
import trihop


def agents():
    \"\"\"The agents of this job: they are children of the same launcher.\"\"\"
    for entry in pathlib.Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (entry / "cmdline").read_bytes().split(b"\\0")
        except (OSError, IndexError, ValueError):
            continue
        if parent == os.getppid() and words[1:2] == [b"agent"]:
            yield int(entry.name)


# The launcher asks the ranks to end as soon as an agent is gone.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
job = trihop.Job()
channels = job.channels("tasks")
mine = channels.create()
mine.send(b"a task")
stream = job.stream("items", np.uint64)
stream.fence()
if job.rank == 0:
    ends = list(agents())
    assert len(ends) == 2, ends
    os.kill(ends[0], signal.SIGKILL)
try:
    while True:
        stream.push_block(1 - job.rank, [1])
        stream.fence()
except trihop.AgentDead as dead:
    assert dead.rank in (0, 1)
    kept = channels.keep()
    assert kept.descriptors == [mine.descriptor]
    print("heard of it", flush=True)
""",
        (2, 2),
        status=None,
        seat="agent",
    )
    assert "heard of it" in said
