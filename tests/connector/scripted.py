"""A scripted engine: real connector halves, real bytes, vLLM's own block pool, no model.

It keeps block tables the way vLLM does (positional, null blocks where a group
keeps nothing, one ring block per request) and "computes" a page by writing
bytes that follow from the group, the layer and the chained block hash. So a
restored page can be compared with what it must hold.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from msgspec.structs import replace
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import KVConnectorBlockState

from lmc_grouped.connector import LMCacheConnectorV1
from lmc_grouped.connector.messages import MoveOperation, Operation, StepMetadata, StepReport
from lmc_grouped.connector.metrics import GroupedStats
from lmc_grouped.core.groups import GroupSpec, Kind
from lmc_grouped.core.hits import needed_pages
from tests.specs import cache_config, engine_config

Offers = dict[str, list[tuple[int, int, int]]]


@dataclass(slots=True, eq=False)
class Request:
    """What the connector reads of a request, under vLLM's names."""

    request_id: str
    num_tokens: int
    block_hashes: list[bytes]
    num_computed_tokens: int = 0
    shared_prefix_boundary: int | None = None
    num_prompt_tokens: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_tokens


class RequestWithoutJunction:
    """A request of an engine that has no ``shared_prefix_boundary``."""

    __slots__ = (
        "block_hashes",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "request_id",
    )

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.num_tokens = request.num_tokens
        self.block_hashes = request.block_hashes
        self.num_computed_tokens = 0
        self.num_prompt_tokens = request.num_prompt_tokens


@dataclass(slots=True)
class StepResult:
    """What one scripted step did."""

    metadata: StepMetadata
    reports: list[StepReport | None]
    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class ScriptedEngine:
    """One scheduler connector and one worker connector per rank."""

    def __init__(
        self,
        *specs: Any,
        units: int = 64,
        budget_bytes: int | None = None,
        world_size: int = 1,
        num_blocks: int = 256,
        retention: int | str = "none",
        partition: str = "static",
        extra: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.kv_config = cache_config(*specs, num_blocks=num_blocks)
        if budget_bytes is None:
            budget_bytes = units * _unit_bytes(self.kv_config)
        self.vllm_config = engine_config(
            budget_bytes=budget_bytes,
            world_size=world_size,
            extra={"lmc_grouped.retention": retention, "cpu_group_partition": partition}
            | (extra or {}),
            **config,
        )
        self.connector = LMCacheConnectorV1(
            self.vllm_config, KVConnectorRole.SCHEDULER, self.kv_config
        )
        half = self.connector.scheduler_half
        assert half is not None
        self.half = half
        self.workers = [
            LMCacheConnectorV1(self._rank_config(rank), KVConnectorRole.WORKER, self.kv_config)
            for rank in range(world_size)
        ]
        self.caches = [self._make_caches() for _ in range(world_size)]
        for worker, caches in zip(self.workers, self.caches, strict=True):
            worker.register_kv_caches(caches)
        self.pool = BlockPool(num_blocks, enable_caching=False, hash_block_size=16)
        self.connector.bind_gpu_block_pool(self.pool)
        self.connector.set_xfer_handshake_metadata_pp_aware(
            {(0, rank): worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)}
        )
        self.table = half.tier.table
        self.preempted: set[str] = set()
        self.tables: dict[str, list[list[int]]] = {}
        self.failing: set[tuple[int, int]] = set()
        """(rank, group_id) whose copies fail: their blocks are out of range."""
        self.ends_only_forwards = False
        """As vLLM 0.30 and ReVolta: ``wait_for_save`` is not called where nothing is computed."""
        self.spared: set[str] = set()
        """Requests whose copies never fail."""

    def _rank_config(self, rank: int) -> Any:
        """The configuration as that rank gets it."""
        parallel = SimpleNamespace(**vars(self.vllm_config.parallel_config) | {"rank": rank})
        return SimpleNamespace(**vars(self.vllm_config) | {"parallel_config": parallel})

    @property
    def index(self) -> Any:
        return self.half.tier.index

    @property
    def stats(self) -> GroupedStats:
        return self.half.tier.stats

    def held_slots(self) -> dict[int, int]:
        """group_id -> slots that something holds: leases and operations under way."""
        return {group_id: pool.held_slots for group_id, pool in self.index.residency().items()}

    def pinned_blocks(self) -> int:
        """Device blocks that are neither free nor in a request's table."""
        in_tables = {b for tables in self.tables.values() for blocks in tables for b in blocks if b}
        return self.pool.num_gpu_blocks - 1 - self.pool.get_num_free_blocks() - len(in_tables)

    def not_stored(self, reason: str) -> int:
        """How many pages were not stored for that reason."""
        return self.stats.counter("not_stored_pages", reason)

    # Requests.

    def request(self, name: str, tokens: int, prompt: str = "p", shared: int | None = None):
        """A request of ``tokens`` tokens.

        Prompts of the same name have the same tokens; ``shared`` tokens at the
        start are those of prompt "p".
        """
        unit = self.table.hash_block_tokens
        hashes: list[bytes] = []
        for end in range(unit, tokens + 1, unit):
            text = "p" if shared is not None and end <= shared else prompt
            parent = hashes[-1] if hashes else b""
            hashes.append(hashlib.sha256(parent + f"{text}:{end}".encode()).digest())
        return Request(name, tokens, hashes)

    def ask(self, request: Any, local: int = 0) -> int:
        """One lookup; tokens promised beyond ``local``."""
        tokens, is_async = self.connector.get_num_new_matched_tokens(request, local)
        assert is_async == (tokens > 0)
        assert tokens is not None
        return tokens

    def allocate(self, request: Any, external: int = 0, local: int = 0) -> None:
        """Give blocks for local and external tokens and tell the connector."""
        self.give_blocks(request, local + external, restored=local + external)
        self.announce(request, external)

    def announce(self, request: Any, external: int) -> None:
        """``update_state_after_alloc`` with the request's tables."""
        tables = self.tables[request.request_id]
        self.connector.update_state_after_alloc(
            request, SimpleNamespace(get_block_ids=lambda: tuple(map(list, tables))), external
        )

    def give_blocks(self, request: Any, tokens: int, restored: int = 0) -> None:
        """Grow the request's tables to ``tokens`` tokens, null where a group keeps nothing."""
        groups = self.kv_config.kv_cache_groups
        tables = self.tables.setdefault(request.request_id, [[] for _ in groups])
        for group_id, blocks in enumerate(tables):
            if group_id not in self.table.group_ids:
                blocks.extend([] if blocks else self._new_blocks(1))
                continue
            group = self.table.group(group_id)
            for page in range(len(blocks), -(-tokens // group.span_tokens)):
                is_kept = True
                if restored:
                    is_kept = page in needed_pages(group, 0, restored)
                elif group.kind is Kind.RECURRENT:
                    is_kept = page == (tokens - 1) // group.span_tokens
                blocks.extend(self._new_blocks(1) if is_kept else [0])

    def start(self, request: Any, local: int = 0) -> int:
        """Look up, allocate, load if something matched; the tokens restored."""
        external = self.ask(request, local)
        self.allocate(request, external, local)
        if external:
            self.step()
            self.announce(request, 0)
        request.num_computed_tokens = local + external
        return external

    def start_without_load(self, request: Any) -> None:
        """A request of which nothing is held."""
        assert self.ask(request) == 0
        self.allocate(request)

    def compute(self, request: Any, *step_ends: int, **step: Any) -> StepResult:
        """Prefill up to each token of ``step_ends``; states are offered where steps end."""
        for end in step_ends:
            result = self.step({request: end - request.num_computed_tokens}, **step)
            request.num_computed_tokens = end
        return result

    def prefill(self, name: str, tokens: int, *, chunk: int = 10**9, **prompt: Any) -> Any:
        """A new request, computed to its last token, with a step end at its last boundary."""
        request = self.request(name, tokens, **prompt)
        self.start(request)
        boundary = (tokens - 1) // self.table.alignment_tokens * self.table.alignment_tokens
        first = request.num_computed_tokens
        ends = {*range(first + chunk, tokens, chunk), boundary, tokens}
        self.compute(request, *sorted(end for end in ends if end > first))
        return request

    def slide(self, request: Any) -> None:
        """Null what attention no longer looks at, as vLLM does before a step."""
        for group in self.table.groups:
            blocks = self.tables[request.request_id][group.group_id]
            end = 0
            if group.kind is Kind.WINDOW:
                assert group.window_tokens is not None
                end = max(0, request.num_computed_tokens - group.window_tokens + 1)
                end //= group.span_tokens
            elif group.kind is Kind.RECURRENT:
                end = (request.num_computed_tokens - 1) // group.span_tokens
            for page in range(end):
                self.free([blocks[page]])
                blocks[page] = 0

    def preempt(self, request: Any) -> None:
        """Take the request's blocks away; it starts again from nothing."""
        self.free(block for blocks in self.tables.pop(request.request_id, []) for block in blocks)
        request.num_computed_tokens = 0
        self.preempted.add(request.request_id)

    def finish(self, request: Any) -> None:
        """The request ends; its blocks go back to the engine."""
        tables = self.tables.pop(request.request_id, [])
        self.connector.request_finished_all_groups(request, tuple(map(list, tables)))
        self.free(block for blocks in tables for block in blocks)

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back to the engine's pool."""
        self.pool.free_blocks([self.pool.blocks[block] for block in blocks if block])

    def wipe(self) -> None:
        """Scribble over every device cache, so that bytes can only come from the host."""
        for caches in self.caches:
            for cache in caches.values():
                cache.fill_(0xEE)

    # Steps.

    def step(
        self,
        scheduled: dict[Any, int] | None = None,
        *,
        offers: Offers | None = None,
        acknowledge: bool | Callable[[int], bool] = True,
        settle: bool = True,
    ) -> StepResult:
        """One engine step: plan, load, compute, store, report.

        ``scheduled`` maps requests to new tokens. Without ``offers`` every
        recurrent state that a step ends on is offered. ``acknowledge`` says
        whose reports reach the scheduler, ``settle`` that the copying threads end
        what they have begun within the step.
        """
        scheduled = scheduled or {}
        for request, new in scheduled.items():
            self.give_blocks(request, request.num_computed_tokens + new)
        if offers is None:
            offers = self._offers(scheduled)
        state = KVConnectorBlockState(
            {request.request_id for request in scheduled} | set(offers),
            lambda request_id: tuple(map(list, self.tables[request_id])),
            offers,
        )
        output = SimpleNamespace(
            num_scheduled_tokens={r.request_id: new for r, new in scheduled.items()},
            kv_connector_block_state=state,
            preempted_req_ids=self.preempted,
        )
        self.preempted = set()
        metadata = self.connector.build_connector_meta(output)
        result = StepResult(metadata, [])
        for rank, worker in enumerate(self.workers):
            worker.bind_connector_metadata(self._for_rank(rank, metadata))
            worker.start_load_kv(None)
            for request, new in scheduled.items():
                self._write_pages(rank, request, request.num_computed_tokens + new)
            if scheduled or not self.ends_only_forwards:
                worker.wait_for_save()
            while settle and worker.worker_half.line.running:
                worker.worker_half.line.wait_for_thread(60)
            transfers = worker.get_transfer_results(set())
            result.received |= transfers.finished_recving
            result.failed |= transfers.failed_recving
            result.reports.append(worker.build_connector_worker_meta())
            worker.clear_connector_metadata()
        wanted = acknowledge if callable(acknowledge) else lambda rank: acknowledge
        self.acknowledge(*(r for rank, r in enumerate(result.reports) if wanted(rank)))
        return result

    def acknowledge(self, *reports: StepReport | None) -> None:
        """Hand the ranks' reports over together, as the engine aggregates them."""
        arrived = [report for report in reports if report is not None]
        if not arrived:
            return
        total = arrived[0]
        for report in arrived[1:]:
            total = total.aggregate(report)
        self.connector.update_connector_output(SimpleNamespace(kv_connector_worker_meta=total))

    # Bytes.

    def wrong_pages(self, request: Any, tokens: int, local: int = 0) -> list[tuple[int, int, int]]:
        """(rank, group_id, page) of needed pages whose device bytes are not right."""
        return [
            (rank, group.group_id, page)
            for rank in range(len(self.workers))
            for group in self.table.groups
            for page in needed_pages(group, local, tokens)
            if not self._is_right(rank, request, group, page)
        ]

    def _is_right(self, rank: int, request: Any, group: GroupSpec, page: int) -> bool:
        block = self.tables[request.request_id][group.group_id][page]
        return all(
            torch.equal(self.caches[rank][layer][block], self._content(rank, request, group, page))
            for layer in group.layers
        )

    def _content(self, rank: int, request: Any, group: GroupSpec, page: int) -> torch.Tensor:
        position = (page + 1) * group.span_tokens // self.table.hash_block_tokens - 1
        return self.content_of(rank, group, request.block_hashes[position])

    def content_of(self, rank: int, group: GroupSpec, block_hash: bytes) -> torch.Tensor:
        """What the page must hold on that rank; every group has one layer."""
        digest = hashlib.sha256(block_hash + bytes([rank, group.group_id])).digest()
        repeated = digest * (group.page_bytes // len(digest) + 1)
        return torch.frombuffer(bytearray(repeated[: group.page_bytes]), dtype=torch.uint8)

    def _write_pages(self, rank: int, request: Any, computed: int) -> None:
        for group in self.table.groups:
            first = request.num_computed_tokens // group.span_tokens
            last = min(computed, request.num_tokens) // group.span_tokens
            blocks = self.tables[request.request_id][group.group_id]
            for page in range(first, last):
                if blocks[page]:
                    for layer in group.layers:
                        content = self._content(rank, request, group, page)
                        self.caches[rank][layer][blocks[page]] = content

    def _offers(self, scheduled: dict[Any, int]) -> Offers:
        offers: Offers = {}
        for request, new in scheduled.items():
            end = request.num_computed_tokens + new
            for group in self.table.groups:
                if group.kind is Kind.RECURRENT and end % group.span_tokens == 0:
                    block = self.tables[request.request_id][group.group_id][
                        end // group.span_tokens - 1
                    ]
                    offers.setdefault(request.request_id, []).append((group.group_id, block, end))
        return offers

    def _for_rank(self, rank: int, metadata: StepMetadata) -> StepMetadata:
        groups = {group_id for failing_rank, group_id in self.failing if failing_rank == rank}
        return dataclasses.replace(
            metadata,
            loads=[self._spoilt(operation, groups) for operation in metadata.loads],
            stores=[self._spoilt(operation, groups) for operation in metadata.stores],
            moves=[self._spoilt_move(operation, groups) for operation in metadata.moves],
            disk_writes=metadata.disk_writes,
            disk_reads=metadata.disk_reads,
            disk_epoch=metadata.disk_epoch,
        )

    def _spoilt_move(self, operation: MoveOperation, group_ids: set[int]) -> MoveOperation:
        moves = tuple(
            replace(move, target_slots=[10**9] * len(move.target_slots))
            if move.group_id in group_ids
            else move
            for move in operation.moves
        )
        return replace(operation, moves=moves)

    def _spoilt(self, operation: Operation, group_ids: set[int]) -> Operation:
        if operation.request_id in self.spared:
            return operation
        pages = tuple(
            replace(page, block_ids=[10**6] * len(page.block_ids))
            if page.group_id in group_ids
            else page
            for page in operation.pages
        )
        return replace(operation, pages=pages)

    def _make_caches(self) -> dict[str, torch.Tensor]:
        half = self.connector.scheduler_half
        assert half is not None
        return {
            layer: torch.zeros(self.kv_config.num_blocks, group.page_bytes, dtype=torch.uint8)
            for group in half.tier.table.groups
            for layer in group.layers
        }

    def _new_blocks(self, count: int) -> list[int]:
        return [block.block_id for block in self.pool.get_new_blocks(count)]


def _unit_bytes(kv_config: Any) -> int:
    cacheable = [kv_config.kv_cache_groups[i] for i in kv_config.prefix_cacheable_group_ids]
    unit = max(group.kv_cache_spec.block_size for group in cacheable)
    return sum(
        group.kv_cache_spec.page_size_bytes * (unit // group.kv_cache_spec.block_size)
        for group in cacheable
    )


def stored_blocks(result: StepResult) -> dict[int, list[int]]:
    """group_id -> block ids of the step's stores."""
    blocks: dict[int, list[int]] = {}
    for operation in result.metadata.stores:
        for pages in operation.pages:
            blocks.setdefault(pages.group_id, []).extend(pages.block_ids)
    return blocks
