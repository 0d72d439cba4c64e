"""What starts jobs: `TRIHOP` is the command, or `trihop` is in PATH."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

PYTHON = pathlib.Path(__file__).resolve().parent.parent
#: Ranks and nodes of the jobs that most tests run.
SHAPES = [(1, 1), (2, 1), (4, 2)]
#: Of a program: tasks of `asyncio` that send, and that take until their channel is closed.
TASKS = """
EACH = 40

async def take(port, got):
    while True:
        try:
            got.append(await port.start_get())
        except trihop.Closed:
            return

async def send(port, kind):
    for number in range(EACH):
        await port.start_send(number.to_bytes(4, "little") * 300, kind, when="received")
"""

#: Of a program: hears of the end of a request.
ENDED = """
def until_it_has_ended(request):
    while not request.test():
        pass
"""

#: Of a program: tasks whose requests are ended by others, on a port that nobody else uses.
OTHERS = ENDED + """
import asyncio
import os
import trihop

async def outcome(request):
    try:
        return (await request)[2]
    except trihop.Misuse as mistake:
        return str(mistake)

async def others_end(port):
    loop = asyncio.get_running_loop()

    async def here(call, *arguments):
        call(*arguments)

    async def by_a_thread(call, *arguments):
        await loop.run_in_executor(None, call, *arguments)

    async def one_of(count):
        request = port.start_get()
        tasks = [asyncio.ensure_future(outcome(request)) for _ in range(count)]
        await asyncio.sleep(0)          # they wait
        return request, tasks

    for turn in range(5):               # the same descriptors come again
        for by in (here, by_a_thread):
            request, (task,) = await one_of(1)
            await by(request.cancel)
            assert "taken back" in await task
            request, (task,) = await one_of(1)
            port.send(b"heard of by others")
            await by(until_it_has_ended, request)
            assert await task == b"heard of by others"
        request, tasks = await one_of(2)
        port.send(b"for one")
        one, other = sorted(await asyncio.gather(*tasks), key=str)
        assert one == b"for one" and "it was had" in other, (one, other)
        request, (cancelled, task) = await one_of(2)
        cancelled.cancel()
        assert "taken back" in await task
        port.send(b"for the next")
        assert (await port.start_get())[2] == b"for the next"
        del request, task, tasks, cancelled
        if turn == 0:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= before
"""

#: Of a program: what sleeps on the descriptors of requests that others end.
STAYS_READABLE = ENDED + """
import selectors
import trihop

def stays_readable(port):
    with selectors.DefaultSelector() as selector:
        def is_readable(timeout=0):
            return len(selector.select(timeout)) == 1

        for is_taken_back in (False, True, False, True):
            request = port.start_get()
            selector.register(request, selectors.EVENT_READ)
            assert not is_readable()
            if is_taken_back:
                request.cancel()
            else:
                port.send(b"x")
                until_it_has_ended(request)
            for _ in range(2):
                assert is_readable(60)      # against hangs alone
            selector.unregister(request)
            # Also one that nobody has slept on before.
            request = port.start_get(timeout=0)
            until_it_has_ended(request)
            selector.register(request, selectors.EVENT_READ)
            assert is_readable()
            selector.unregister(request)
"""

#: Of a program: the package, and what says that a call raises.
RAISED = """
import trihop

def raised(mistake, call, text=""):
    try:
        call()
    except mistake as error:
        assert text in str(error), error
        return error
    raise SystemExit(f"not raised: {mistake}")
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shape" in metafunc.fixturenames:
        names = [f"{ranks} on {nodes}" for ranks, nodes in SHAPES]
        metafunc.parametrize("shape", SHAPES, ids=names)


@pytest.fixture(scope="session")
def launch():
    """Runs a Python program as a job and returns what it has printed, without what ranks put before."""
    command = os.environ.get("TRIHOP") or shutil.which("trihop")
    if not command:
        pytest.fail("TRIHOP names no command `trihop`, and there is none in PATH")

    def run(program, shape=(1, 1), arguments=(), status=0, seat=None, under=None, **variables) -> str:
        ranks, nodes = shape
        launcher = [command, "run", "-n", str(ranks), "--nodes", str(nodes), "--no-prefix"]
        launcher += ["--seat", seat] if seat else []
        launcher += ["--agent-under", under] if under else []
        # Against hangs alone.
        launcher += ["--timeout", "120", "--", sys.executable, str(program), *map(str, arguments)]
        ended = subprocess.run(
            launcher,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = f"{program} as {shape} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        if status is None:  # a job that is to fail, by whatever its launcher says then
            assert ended.returncode != 0, said
        else:
            assert ended.returncode == status, said
        return ended.stdout

    return run


@pytest.fixture
def program(launch, tmp_path):
    """Runs the text of a program, as `launch` does."""

    def run(text: str, shape=(1, 1), **more) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        return launch(path, shape, **more)

    return run
