"""What arrays, bytes and lists are to streams, in a job of one rank."""

import array
import decimal
import gc
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import trihop


@pytest.fixture(scope="module")
def job():
    with trihop.Job(launcher="single") as job:
        yield job


@pytest.fixture
def opened(job, request):
    """Opens streams named after the test."""
    streams = []

    def open(dtype, **options):
        name = f"{request.node.name} {len(streams)}"
        streams.append(job.stream(name, dtype, **options))
        return streams[-1]

    yield open
    for stream in streams:
        stream.close()


def echo(stream, items, targets=0):
    stream.push_block(targets, items)
    stream.round()
    ((source, got),) = stream.pull()
    assert source == 0
    return got


@pytest.mark.parametrize(
    "dtype",
    ["u1", "i2", "f4", "<i8", ">u4", "c16", "S5", "U3", "M8[s]", "?", "V3", "f8,i4", "3f8", "(2,2)i2"],
)
def test_items_of_any_type_of_one_size(opened, dtype):
    stream = opened(dtype)
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 2, 1000 * dtype.itemsize, np.uint8)
    items = raw.view(dtype.base).reshape((-1, *dtype.shape))
    got = echo(stream, items)
    assert got.dtype == items.dtype and got.shape == items.shape and got.tobytes() == items.tobytes()
    assert stream.dtype == dtype


def test_lists_of_floats_are_no_integers(opened):
    stream = opened("i8")
    for items in ([1.5, 2.0], (1.5,), [1j], [1, np.float32(2)], [decimal.Decimal(1)]):
        with pytest.raises(TypeError, match="the stream has items of int64"):
            stream.push_block(0, items)
    stream.push_block(0, [])
    assert echo(stream, [1, 2, True]).tolist() == [1, 2, 1]
    assert echo(opened("f8"), [1, 2.5]).tolist() == [1, 2.5]
    assert echo(opened("u8"), [1, 2**64 - 1]).tolist() == [1, 2**64 - 1]
    assert echo(opened("2i4"), [(1, 2), (3, np.int8(4))]).tolist() == [[1, 2], [3, 4]]


def test_rows_of_tables(opened):
    dtype = np.dtype([("key", "i8"), ("name", "S6"), ("at", "f4", (2,))])
    rows = np.zeros(100, dtype)
    rows["key"], rows["name"], rows["at"][:, 1] = np.arange(100), b"name", 0.5
    got = echo(opened(dtype), rows)
    assert (got == rows).all()


@pytest.mark.parametrize("given", [np.array, list, tuple, lambda n: array.array("q", n),
                                   lambda n: memoryview(array.array("q", n)),
                                   lambda n: np.array(n).tobytes(),
                                   lambda n: bytearray(np.array(n).tobytes()),
                                   lambda n: memoryview(np.array(n).tobytes()),
                                   lambda n: np.repeat(n, 2)[::2], lambda n: np.array(n)[::-1][::-1]])
def test_items_of_any_memory(opened, given):
    numbers = [3, 1, -4, 1, 5]
    assert echo(opened(np.int64), given(numbers)).tolist() == numbers


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i4", "u4", "i8", "u8", ">u4", list])
def test_targets_of_any_width(opened, kind):
    targets = [0] * 70_000 if kind is list else np.zeros(70_000, kind)
    items = np.arange(70_000)
    assert (echo(opened("i8"), items, targets) == items).all()


def test_no_items_are_none(opened):
    stream = opened("i8")
    for targets, items in [([], []), (np.empty(0, "u4"), b""), (0, np.empty(0, "i8"))]:
        stream.push_block(targets, items)
    stream.round()
    assert stream.pull() == []
    sources, items = stream.pull_all()
    assert len(sources) == len(items) == 0 and sources.dtype == "u4" and items.dtype == "i8"


@pytest.mark.parametrize(
    "targets, items, mistake",
    [
        (0, np.zeros(3, "f8"), TypeError),
        (0, np.zeros(3, "i4"), TypeError),
        (0, array.array("d", [1.0]), TypeError),
        (0, b"123", ValueError),
        (0, np.zeros((2, 2), "i8"), ValueError),
        (0, "text", TypeError),
        (0, None, TypeError),
        ([0, 0], [1], ValueError),
        ([[0]], [1], TypeError),
        ([0.0], [1], TypeError),
        ("0", [1], TypeError),
        (-1, [1], trihop.Misuse),
        (1 << 40, [1], trihop.Misuse),
        (None, [1], TypeError),
        ([-1], [1], trihop.Misuse),
        ([1], [1], trihop.Misuse),
        (np.array([1], "u4"), [1], trihop.Misuse),
        ([1 << 32], [1], trihop.Misuse),
        (np.array([(1 << 64) - 1], "u8"), [1], trihop.Misuse),
    ],
)
def test_mistakes_send_nothing(opened, targets, items, mistake):
    stream = opened("i8")
    with pytest.raises(mistake):
        stream.push_block(targets, items)
    stream.round()
    assert stream.pull() == []


def test_items_before_a_bad_target_are_sent(opened):
    stream = opened("i8")
    targets = np.zeros(100_000, "i8")
    targets[90_000] = -5
    with pytest.raises(trihop.Misuse, match="-5") as mistake:
        stream.push_block(targets, np.arange(100_000))
    assert mistake.value.taken == 90_000
    stream.round()
    ((_, got),) = stream.pull()
    assert (got == np.arange(90_000)).all()


@pytest.mark.parametrize("dtype", ["O", "f8,O", "V0", "S0", object(), "no type"])
def test_types_without_a_size_of_their_own_are_refused(opened, dtype):
    with pytest.raises(TypeError):
        opened(dtype)


def test_an_item_longer_than_any_message_is_refused_with_the_remedy(opened):
    with pytest.raises(trihop.Config, match="max_message_bytes"):
        opened(f"V{(64 << 20) + 1}")


def test_items_longer_than_a_frame_of_a_queue_arrive(opened):
    rows = np.arange(5 * 10_000, dtype=np.int64).reshape(5, 10_000)
    assert (echo(opened((np.int64, 10_000)), rows) == rows).all()


def test_pulled_arrays_outlive_the_stream_and_are_the_programs(job):
    stream = job.stream("outlived", "i8")
    numbers = np.arange(1_000_000)
    got = echo(stream, numbers)
    assert not got.flags.owndata and got.flags.writeable and got.flags.aligned
    part = got[10:20]
    stream.push_block(0, numbers * 2)
    stream.round()
    ((_, later),) = stream.pull()
    stream.close()
    del stream, later
    gc.collect()
    np.ones(4_000_000)  # what would be written over memory that was given back
    assert (got == numbers).all()
    got[:] = 7
    del got
    gc.collect()
    assert (part == 7).all()


def test_memory_of_pulled_arrays_is_given_back(opened):
    stream = opened("i8")
    items = np.zeros(1 << 20)

    def resident():
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * 4096

    for number in range(60):
        echo(stream, items.view("i8"))
        if number == 10:
            before = resident()
    assert resident() < before + 20 * items.nbytes, "50 arrays of 8 MiB were pulled since"


def test_references_are_given_back(opened):
    stream = opened("i8")
    items, targets = np.arange(10), np.zeros(10, "u4")
    dtype = np.dtype([("a", "i8")])
    rows = opened(dtype)
    before = [sys.getrefcount(of) for of in (items, targets, dtype)]
    for _ in range(100):
        stream.push_block(targets, items)
        rows.push_block(0, np.zeros(1, dtype))
        stream.round()
        stream.pull()
    gc.collect()
    assert [sys.getrefcount(of) for of in (items, targets, dtype)] == before


def test_pull_all_has_the_source_of_each(opened):
    stream = opened("3f4")
    stream.push_block(0, np.arange(30, dtype="f4").reshape(10, 3))
    stream.fence()
    sources, rows = stream.pull_all()
    assert sources.tolist() == [0] * 10 and rows.shape == (10, 3) and rows[9, 2] == 29


def test_one_round_at_a_time(opened):
    stream = opened("i8")
    assert stream.test()
    stream.start_round()
    with pytest.raises(trihop.Misuse, match="round is under way"):
        stream.start_round()
    with pytest.raises(trihop.Misuse):
        stream.push_block(0, [1])
    stream.wait()
    stream.push_block(0, [1])


def test_a_record_that_is_too_long_is_refused(job):
    shuffle = job.shuffle("short", max_message_bytes=100)
    with pytest.raises(trihop.Misuse, match="max_message_bytes"):
        shuffle.send(0, b"x" * 101)
    with pytest.raises(trihop.Misuse):
        shuffle.send(1, b"x")
    with pytest.raises(TypeError):
        shuffle.send(0, "text")
    shuffle.try_send(0, b"")
    shuffle.fence()
    assert shuffle.pull() == [(0, 0, b"")]
    shuffle.close()


def test_addresses_of_objects_are_not_sent(job):
    shuffle, channels = job.shuffle("objects"), job.channels("objects")
    port = channels.create()
    objects = np.array(["a", "b"], dtype=object)
    for data in (objects, objects[:0], np.zeros(2, "i8,O"), memoryview(objects)):
        for call in [
            lambda: shuffle.send(0, data),
            lambda: shuffle.try_send(0, data),
            lambda: port.send(data),
            lambda: port.start_send(data),
            lambda: job.allgather(data),
            lambda: job.broadcast(data),
        ]:
            with pytest.raises(TypeError, match="has Python objects, which do not leave"):
                call()
    shuffle.fence()
    assert shuffle.pull() == [] and port.poll("size") == 0
    channels.close()
    shuffle.close()


def test_words_and_times_that_mean_nothing_are_refused(job):
    channels = job.channels("words")
    channel = channels.create()
    for mistake, call in [
        (ValueError, lambda: channel.send(b"", when="soon")),
        (ValueError, lambda: channel.poll("nothing")),
        (ValueError, lambda: channel.get(timeout=-1)),
        (ValueError, lambda: channel.get(timeout=float("nan"))),
        (ValueError, lambda: job.allreduce(1, "mean")),
        (TypeError, lambda: job.allreduce("text")),
        (trihop.Config, lambda: channels.create(messages=0)),
        (trihop.NoChannel, lambda: channels.attach("nonsense")),
        (trihop.Misuse, lambda: channel.send(b"x" * (2 << 20))),
        (trihop.Misuse, lambda: job.node_of(1)),
        (trihop.Misuse, lambda: job.ranks_of(1)),
    ]:
        with pytest.raises(mistake):
            call()
    channels.close()


def test_all_errors_are_errors_of_the_package():
    classes = [of for of in vars(trihop).values() if isinstance(of, type) and issubclass(of, Exception)]
    assert len(classes) == 12 and all(issubclass(of, trihop.Error) for of in classes)


def test_everything_is_documented_and_the_stubs_are_true(tmp_path):
    for of in vars(trihop).values():
        if isinstance(of, type):
            public = [value for key, value in vars(of).items() if not key.startswith("_")]
            assert all(part.__doc__ for part in [of, *public]), of
    if not shutil.which("stubtest", path=str(pathlib.Path(sys.executable).parent)):
        pytest.skip("mypy, which has stubtest, is not here")
    # What the package loads is its own affair.
    (tmp_path / "allowed").write_text(r"trihop\.trihop")
    command = [sys.executable, "-m", "mypy.stubtest", "trihop", "--allowlist", str(tmp_path / "allowed")]
    # What it knows of numpy is kept: that takes longest.
    kept = {**os.environ, "MYPY_CACHE_DIR": str(pathlib.Path(sys.prefix, "mypy_cache"))}
    subprocess.run(command, check=True, cwd=tmp_path, env=kept)
