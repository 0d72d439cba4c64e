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
