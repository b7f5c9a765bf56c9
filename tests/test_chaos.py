"""The short version of `make chaos`."""

import chaos
import pytest


@pytest.mark.slow
def test_no_kill_changes_a_byte(capsys):
    status = chaos.main(["--kills=8", "--recipes=nesterov:smoke", "--minutes=30"])
    out = capsys.readouterr().out
    assert status == 0, out
    assert "8, over" in out


def test_a_lost_run_and_another_byte_are_found():
    want = {"a/seed_0": b"1", "a/seed_1": b"2"}
    assert chaos.check(chaos.POOL, want, want) == []
    assert chaos.check(chaos.POOL, want | {"a/seed_1": b"3"}, want) == [
        "pool: a/seed_1/curve.csv differs"
    ]
    assert "pool: a/seed_0 lost" in chaos.check(chaos.POOL, {"a/seed_1": b"2"}, want)
