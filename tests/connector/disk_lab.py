"""Scripted engines with real file tiers: waiting for disks, restarting, damaging pages."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from lmc_grouped.host.disk import DiskTier
from lmc_grouped.host.disk.groupfile import GroupFile
from tests.connector.scripted import ScriptedEngine

PATIENCE_SECONDS = 20.0


class DiskEngine(ScriptedEngine):
    """A scripted engine whose pages are kept below ``root``."""

    def __init__(
        self, root: Path, *specs: Any, disk_bytes: int = 2**20, extra: Any = None, **options: Any
    ) -> None:
        disk = {"lmcache.local_disk": str(root), "lmcache.max_local_disk_size": disk_bytes / 2**30}
        super().__init__(*specs, extra=disk | (extra or {}), **options)
        disk_half = self.half.tier.disk
        assert disk_half is not None
        self.disk = disk_half

    @property
    def tiers(self) -> list[DiskTier]:
        """The ranks' stores."""
        return [worker.worker_half.disk.tier for worker in self.workers]

    def close(self) -> None:
        """A clean stop."""
        for worker in self.workers:
            worker.shutdown()

    def settle(self) -> None:
        """Step until no disk has anything to do."""
        self.until(lambda: not self.disk.writes.writing_bytes and not self.disk.writes._queued)
        for tier in self.tiers:
            tier.flush()
        self.step()

    def until(self, condition: Callable[[], bool]) -> None:
        """Step until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "nothing more happens"
            self.step()
            time.sleep(0.001)

    def ask_until_answered(self, request: Any, local: int = 0) -> int:
        """The engine's lookups, a step between two, until one has an answer."""
        answers: list[int] = []

        def is_answered() -> bool:
            tokens, _ = self.connector.get_num_new_matched_tokens(request, local)
            answers.extend([] if tokens is None else [tokens])
            return bool(answers)

        self.until(is_answered)
        return answers[0]

    def is_waiting(self, request: Any, local: int = 0) -> bool:
        """One lookup; whether its answer is to ask again."""
        return self.connector.get_num_new_matched_tokens(request, local) == (None, False)

    def restore(self, name: str, tokens: int, local: int = 0, **prompt: Any) -> int:
        """A request that waits for its answer and loads it; checks every byte.

        Returns:
            Tokens restored.
        """
        self.wipe()
        request = self.request(name, tokens, **prompt)
        external = self.ask_until_answered(request, local)
        self.allocate(request, external, local)
        if external:
            self.step()
            self.announce(request, 0)
            assert self.wrong_pages(request, local + external, local) == []
        self.finish(request)
        return external

    def store(self, name: str, tokens: int, **prompt: Any) -> Any:
        """A request from its start to its end, and on disk; returns it.

        A step ends at every boundary, so there is a state at each.
        """
        request = self.request(name, tokens, **prompt)
        restored = self.ask_until_answered(request)
        self.allocate(request, restored)
        if restored:
            self.step()
            self.announce(request, 0)
        request.num_computed_tokens = restored
        align = self.table.alignment_tokens
        self.compute(request, *range(restored + align, tokens, align), tokens)
        self.finish(request)
        self.settle()
        return request

    def flood(self, tokens: int, times: int = 1) -> None:
        """Other prompts, until host memory holds nothing else."""
        for number in range(times):
            self.store(f"flood {number}", tokens, prompt=f"flood {number}")

    def ref(self, request: Any, group_id: int, page: int) -> tuple[int, bytes]:
        """The key of one of the request's pages."""
        per_page = self.table.group(group_id).span_tokens // self.table.hash_block_tokens
        return group_id, request.block_hashes[(page + 1) * per_page - 1]

    def nothing_is_held(self) -> bool:
        """No lease and no operation is left."""
        return not any(self.held_slots().values())


def flip_byte(directory: Path, group_id: int, page_bytes: int, content: bytes) -> None:
    """Change one byte of the page with that content."""
    path = directory / f"group_{group_id}.pages"
    data = bytearray(path.read_bytes())
    start = data.index(content)
    assert start % page_bytes == 0
    data[start + page_bytes // 2] ^= 1
    path.write_bytes(data)


@contextmanager
def held_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Reads begin and do not end before the event is set."""
    may_end = Event()
    read_pages = GroupFile.read_pages

    def read_later(self: GroupFile, *arguments: Any) -> int:
        assert may_end.wait(PATIENCE_SECONDS)
        return read_pages(self, *arguments)

    monkeypatch.setattr(GroupFile, "read_pages", read_later)
    try:
        yield may_end
    finally:
        may_end.set()


@contextmanager
def held_writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Writes begin and do not end before the event is set."""
    may_end = Event()
    write_pages = GroupFile.write_pages

    def write_later(self: GroupFile, *arguments: Any) -> None:
        assert may_end.wait(PATIENCE_SECONDS)
        write_pages(self, *arguments)

    monkeypatch.setattr(GroupFile, "write_pages", write_later)
    try:
        yield may_end
    finally:
        may_end.set()
