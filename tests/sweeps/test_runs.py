"""Which runs a command line asks for."""

import pytest

from sweeps import runs


@pytest.mark.parametrize(
    ("text", "seeds"), [("0:3", [0, 1, 2]), ("5:6", [5]), ("3", [3]), ("4,1", [4, 1])]
)
def test_seeds(text, seeds):
    assert runs.parse_seeds(text) == seeds
