"""A few kills of the crash test; `python -m tests.host.crash` does hundreds."""

from tests.host.crash import run


def test_a19_no_wrong_byte_after_kills_at_random_points(tmp_path):
    total = run(10, 11, tmp_path)
    assert total["hit"] > 0
    assert total["miss"] > 0
