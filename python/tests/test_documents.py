"""Every Python block of the documents runs, and so do the examples."""

import re

import pytest
from conftest import PYTHON

DOCUMENTS = [PYTHON / "README.md", PYTHON.parent / "README.md", PYTHON.parent / "docs" / "PYTHON.md"]
BLOCKS = [
    pytest.param(block, id=f"{path.parent.name}/{path.name} {number}")
    for path in DOCUMENTS
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S))
]


def test_there_are_blocks():
    assert len(BLOCKS) >= 7


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(program, block):
    program(block, (2, 1))


def test_the_histogram_adds_up(launch, shape):
    said = launch(PYTHON / "examples" / "histogram.py", shape, [300_000])
    assert f"{300_000 * shape[0]} updates on {shape[0]} ranks" in said


def test_rows_come_to_the_owners_of_their_keys(launch, shape):
    said = launch(PYTHON / "examples" / "shuffle_rows.py", shape, [20_000])
    assert f"{20_000 * shape[0]} rows" in said and "sums agree" in said
