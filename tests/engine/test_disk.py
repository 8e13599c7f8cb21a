"""What was on disk comes back exactly: after a restart, a crash, and a flood of host memory."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lmc_grouped.cli import main as lmc_grouped
from lmc_grouped.host.disk.directory import read_namespace
from lmc_grouped.tools.certify.errors import RequestRefused, ServerGone
from lmc_grouped.tools.certify.metrics import parse_samples
from lmc_grouped.tools.certify.runs import Run, compare
from lmc_grouped.tools.certify.server import Server as Requests
from lmc_grouped.tools.processes import SHARED_MEMORY
from lmc_grouped.tools.serving import GROUPED_CONNECTOR, Server
from lmc_grouped.tools.tiny_models import find_recipe
from tests.engine.conftest import model_dir
from tests.engine.lab import VOCABULARY, Lab, open_lab
from tests.engine.test_exactness import EXACT, boundary

MODELS = ["gemma3", "qwen3_next"]
BOUNDARY = {"gemma3": 2080, "qwen3_next": 2048}
"""Where a hit of 2,100 tokens ends."""
SMALL_MEMORY = {"gemma3": "0.01", "qwen3_next": "0.002"}
"""GB for two prompts of 2,100 tokens."""
DAMAGED_GROUP = 1
"""A window group of Gemma3, recurrent state of Qwen3-Next."""
COLD_TOLERANCE = 1e-4
CLEAN_STOP = ["--shutdown-timeout", "10"]
"""Without it vLLM kills its workers at once when it is told to stop."""
ENGINES_OWN = ("psm_", "sem.mp-")
"""What vLLM's message queues leave in /dev/shm when they are killed, with any connector."""


def prompt(seed: int, tokens: int = 2_100) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.choice(VOCABULARY) for _ in range(tokens)]


def disk_settings(root: Path, memory: str) -> dict[str, str]:
    return {
        "LMCACHE_MAX_LOCAL_CPU_SIZE": memory,
        "LMCACHE_LOCAL_DISK": f"file://{root}",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "1",
    }


class Site:
    """One directory, and servers over it one after the other."""

    def __init__(self, name: str, root: Path) -> None:
        self.boundary = BOUNDARY[name]
        self.root = root / "disk"
        self.server = Server(
            model_dir(name),
            find_recipe(name),
            connector=GROUPED_CONNECTOR,
            env=disk_settings(self.root, "0.1") | {"VLLM_LOGGING_LEVEL": "INFO"},
            extra_args=CLEAN_STOP,
            log_path=root / "server.log",
        )

    @property
    def requests(self) -> Requests:
        return Requests(self.server.client(), self.server.model, with_logprobs=True)

    def metric(self, name: str) -> dict[str, float]:
        """group -> value of one of our metrics."""
        page = self.server.client().get("/metrics").decode()
        return {
            sample.labels["group"]: sample.value
            for sample in parse_samples(page)
            if sample.name == f"vllm:lmc_grouped_{name}"
        }

    def wait_until_written(self) -> None:
        """The counters of the file tier have stopped."""
        deadline = time.monotonic() + 20
        before: dict[str, float] = {}
        while time.monotonic() < deadline:
            self.requests.nudge()
            now = self.metric("written_bytes_total")
            if now and now == before:
                return
            before = now
            time.sleep(0.1)
        raise AssertionError("nothing is written, or writing does not end")

    def certify(self, *options: str) -> int:
        """The exit status, with prompts that are the same in every run."""
        prompts = ["--tokens", "700", "--seed", "restart"]
        return lmc_grouped(["certify", "--url", self.server.url, *prompts, *options])

    def kill_during_writes(self, seed: int) -> None:
        """Send a long prompt and kill everything as soon as its pages reach the disk."""
        before = self.records()

        def ask() -> None:
            with suppress(ServerGone, RequestRefused):
                self.requests.complete(prompt(seed, 6_000), output_tokens=64)

        thread = threading.Thread(target=ask)
        thread.start()
        deadline = time.monotonic() + 60
        while self.records() == before:
            assert time.monotonic() < deadline, "nothing was written"
        self.server.kill()
        thread.join()

    def leftovers_of_a_kill(self) -> list[str]:
        """What is not the engine's own; that is removed."""
        names = self.server.leftovers()
        for name in names:
            if name.startswith(ENGINES_OWN):
                (SHARED_MEMORY / name).unlink()
        return [name for name in names if not name.startswith(ENGINES_OWN)]

    def records(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.root.rglob("group_*.records"))]

    def flip_a_byte_of_every_page(self, group_id: int) -> None:
        (path,) = self.root.rglob(f"group_{group_id}.pages")
        stored = read_namespace(path.parent)
        assert stored is not None
        page_bytes = stored.page_bytes_by_group[group_id]
        with path.open("r+b") as file:
            for middle in range(page_bytes // 2, path.stat().st_size, page_bytes):
                file.seek(middle)
                (byte,) = file.read(1)
                file.seek(middle)
                file.write(bytes([byte ^ 0x40]))


@pytest.fixture(params=MODELS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = Site(request.param, tmp_path)
    yield site
    site.server.stop()
    assert site.server.leftovers() == [], "something was left in /dev/shm"


def same(run: Run, reference: Run) -> float:
    """Largest log-probability difference of two runs with the same ids."""
    found = compare(run, reference)
    assert found is not None
    assert found.equal_ids
    assert found.largest_logprob_difference is not None
    return found.largest_logprob_difference


def test_a_prefix_outlives_a_clean_stop_and_a_crash(site: Site) -> None:
    first, second = prompt(1), prompt(2)
    with site.server:
        assert site.certify() == 0
        cold, local = (site.requests.complete(first) for _ in range(2))
        other = site.requests.complete(second)
        site.wait_until_written()
    assert cold.hit_tokens == other.hit_tokens == 0
    assert local.is_local()
    assert site.server.leftovers() == []
    assert [path.read_bytes() for path in site.root.rglob("lock")] == [b""], "was not closed"

    site.server.start()
    assert site.certify("--after-restart") == 0
    restored = site.requests.complete(first)
    assert restored.moved is not None
    assert restored.moved.restored_tokens == local.hit_tokens == site.boundary
    assert same(restored, local) == EXACT
    assert all(value > 0 for value in site.metric("read_bytes_total").values())
    site.kill_during_writes(3)
    assert site.leftovers_of_a_kill() == []

    with site.server:
        again = site.requests.complete(first)
        assert again.hit_tokens == site.boundary
        assert same(again, local) == EXACT
        assert site.metric("damaged_pages_total") == {}
        site.flip_a_byte_of_every_page(DAMAGED_GROUP)
        after_damage = site.requests.complete(second)
        assert after_damage.hit_tokens == 0
        assert same(after_damage, other) <= COLD_TOLERANCE
        assert set(site.metric("damaged_pages_total")) == {str(DAMAGED_GROUP)}


@pytest.fixture(params=MODELS)
def small_memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """An engine whose host memory holds one or two prompts."""
    settings = disk_settings(tmp_path, SMALL_MEMORY[request.param])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        with open_lab(model_dir(request.param), request.param, max_num_batched_tokens=512) as lab:
            yield lab


def test_a_prefix_that_host_memory_lost_comes_back_from_disk(small_memory: Lab) -> None:
    lab = small_memory
    wanted = lab.prompt(2_100)
    with lab.counted() as counters:
        lab.run(wanted)
        local = lab.run(wanted)
        for _ in range(4):
            lab.run(lab.prompt(2_100))
        assert not lab.holds(wanted, boundary(lab, 2_100)), "host memory was not flooded"
        lab.reset()
        restored = lab.run(wanted)
    assert restored.cached_tokens == local.cached_tokens == boundary(lab, 2_100)
    assert restored.difference(local) == EXACT
    for group in lab.groups:
        assert counters["read_bytes"][str(group.group_id)] > 0
        assert counters["written_bytes"][str(group.group_id)] > 0
    for group in lab.groups:
        lab.forget()
        lab.run(wanted)
        lab.check_damage_is_noticed(wanted, local, group.group_id)
    lab.run(lab.prompt(40))
    assert not any(lab.held_slots().values())
