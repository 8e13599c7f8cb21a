"""Lookups that end where a ring can be rebuilt; tests/compat asks the connector around them."""

from typing import Any

import pytest

from patches.ring_alignment import AlignedLookups


class Server:
    """Holds some tokens of every prompt, in chunks of 32; counts what it has locked."""

    def __init__(self, stored_tokens: int) -> None:
        self.stored_tokens = stored_tokens
        self.asked: list[int] = []
        self.locked: dict[str, int] = {}
        self.sessions_ended: list[str] = []

    def maybe_submit_lookup_request(
        self, request_id: str, token_ids: list[int], cache_salt: str = ""
    ) -> None:
        if request_id not in self.locked:
            self.asked.append(len(token_ids))
            self.locked[request_id] = min(self.stored_tokens, len(token_ids)) // 32 * 32

    def check_lookup_result(self, request_id: str) -> int:
        return self.locked.get(request_id, 0)

    def free_lookup_locks(self, *, start: int, end: int, request_id: str, **more: Any) -> None:
        assert (start, end) == (0, self.locked[request_id])
        assert more.pop("cache_salt") == "salt"
        assert list(more) == ["token_ids"]

    def cleanup_lookup_result(self, request_id: str) -> None:
        del self.locked[request_id]

    def end_session(self, request_id: str) -> None:
        self.sessions_ended.append(request_id)


def look_up(lookups: AlignedLookups, prompt_tokens: int, request_id: str = "r") -> int:
    """As the connector does, once a step; a new lookup is only begun when none is pending."""
    for _ in range(5):
        lookups.maybe_submit_lookup_request(
            request_id, token_ids=list(range(prompt_tokens)), cache_salt="salt"
        )
        found = lookups.check_lookup_result(request_id)
        if found is not None:
            return found
    raise AssertionError("the lookup does not end")


@pytest.mark.parametrize(
    ("prompt_tokens", "stored_tokens", "found", "asked"),
    [
        (1000, 992, 768, [768]),
        (1000, 768, 768, [768]),
        (1000, 544, 512, [768, 512]),
        (1000, 96, 0, [768]),
        (1000, 0, 0, [768]),
        (768, 768, 512, [512]),
        (769, 768, 768, [768]),
        (256, 256, 0, []),
        (1, 992, 0, []),
    ],
)
def test_a24_only_usable_prefixes_are_asked_for(prompt_tokens, stored_tokens, found, asked):
    server = Server(stored_tokens)
    lookups = AlignedLookups(server, 256)
    assert look_up(lookups, prompt_tokens) == found
    assert server.asked == asked
    assert server.locked.get("r", 0) == found
    assert look_up(lookups, prompt_tokens) == found  # asked again every step: no new question
    assert server.asked == asked


def test_a_limit_found_for_one_request_ends_with_it():
    server = Server(544)
    lookups = AlignedLookups(server, 256)
    assert look_up(lookups, 1000) == 512
    server.cleanup_lookup_result("r")
    lookups.end_session("r")
    server.stored_tokens = 992
    assert look_up(lookups, 1000) == 768
    assert server.sessions_ended == ["r"]
    assert look_up(lookups, 1000, "another") == 768


def test_everything_else_is_the_adapter_itself():
    server = Server(0)
    lookups = AlignedLookups(server, 256)
    lookups.stored_tokens = 992
    assert server.stored_tokens == 992
    assert lookups.sessions_ended is server.sessions_ended
