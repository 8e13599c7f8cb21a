"""The engine's own scheduler, cache managers and connector glue, around a model of digests.

Nothing here knows an engine beyond what cannot be asked for in common words.
"""

import time
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import set_forward_context
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from lmc_grouped.connector import LMCacheConnectorV1
from lmc_grouped.core.prefix import Prefix
from tests.compat.lab import layouts, runner
from tests.compat.lab.model import DigestModel, next_token
from tests.compat.lab.watch import Answer, watch

PATIENCE_SECONDS = 120.0
_hash = get_hash_fn_by_name("sha256")
init_none_hash(_hash)


class Lab:
    """One engine with one worker.

    Args:
        kinds: of the groups, in their order.
        num_blocks: of the device.
        host_pages: of every group together, in bytes of the largest page.
    """

    def __init__(
        self,
        kinds: tuple[str, ...] = layouts.HYBRID,
        *,
        num_blocks: int = 128,
        host_pages: int = 512,
        retention: int | None = 0,
        chunk_tokens: int = 1024,
        policy: str = "recompute",
        **extra: Any,
    ) -> None:
        extra["lmcache.max_local_cpu_size"] = host_pages * layouts.PAGE_BYTES / 2**30
        self.kv_config = layouts.cache_config(kinds, num_blocks, retention)
        self.config = layouts.engine_config(
            num_blocks=num_blocks,
            retention=retention,
            chunk_tokens=chunk_tokens,
            policy=policy,
            extra=extra,
        )
        alignment, hash_tokens = resolve_kv_cache_block_sizes(self.kv_config, self.config)
        self.scheduler = Scheduler(
            vllm_config=self.config,
            kv_cache_config=self.kv_config,
            structured_output_manager=_NoGrammar(),
            block_size=alignment,
            hash_block_size=hash_tokens,
            mm_registry=_TextOnly(),
        )
        self.memory, caches = runner.one_allocation(self.kv_config)
        groups = {kind: group_id for group_id, kind in enumerate(kinds)}
        self.model = DigestModel(groups, dict.fromkeys(groups.values(), self.memory))
        self._hasher = get_request_block_hasher(hash_tokens, _hash)
        self._requests: dict[str, Any] = {}
        self.answers: dict[str, Answer] = {}
        self.failing_groups: set[int] = set()
        """Groups of which no page can be loaded."""
        self.refusal: str | None = None
        """Why the connector refuses the next load, if it is to."""
        watch(self)
        self._start_worker(caches)

    @property
    def half(self) -> Any:
        """The connector's scheduler half."""
        return self.scheduler.get_kv_connector().scheduler_half

    # Requests.

    def add(self, name: str, prompt: list[int], new_tokens: int = 4) -> Answer:
        """A request begins to wait."""
        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        request = Request(name, prompt, params, None, block_hasher=self._hasher)
        self._requests[name] = request
        self.answers[name] = Answer()
        self.scheduler.add_request(request)
        return self.answers[name]

    def ask(self, name: str, prompt: list[int], new_tokens: int = 4) -> Answer:
        """A request from its beginning to its end."""
        answer = self.add(name, prompt, new_tokens)
        self.drain()
        return answer

    def drain(self) -> None:
        """Step until nothing is left to do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.scheduler.has_requests():
            assert time.monotonic() < deadline, f"{list(self.scheduler.requests)} do not end"
            if not self.step():
                time.sleep(0.001)  # it waits for a disk

    def damage(self, name: str, group_id: int, page: int) -> None:
        """Change one byte of a page that the request has stored."""
        prefix = Prefix(self.half.tier.table, self._requests[name].block_hashes)
        (slot,) = self.half.tier.index.slots([prefix.ref(group_id, page)])
        self.worker.region.page(group_id, slot)[0] ^= 1

    def close(self) -> None:
        """A clean stop of the worker."""
        self.worker.close()

    def forget(self, *, running: bool = False) -> None:
        """Reset the engine's prefix cache and scribble over its memory.

        Args:
            running: preempt what runs, which loses its blocks too.
        """
        assert self.scheduler.reset_prefix_cache(reset_running_requests=running)
        self.memory.fill(0xEE)

    # Steps.

    def step(self) -> int:
        """Schedule, run, update; how many tokens were computed."""
        output = self.scheduler.schedule()
        for block in getattr(output, "new_block_ids_to_zero", None) or ():
            self.memory[block] = 0
        if output.total_num_scheduled_tokens:
            result = self._execute(output)
        else:
            result = KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self.config)
        self.scheduler.update_from_output(output, result)
        return output.total_num_scheduled_tokens

    def _execute(self, output: Any) -> Any:
        glue = KVConnectorModelRunnerMixin.maybe_get_kv_connector_output
        names = list(output.num_scheduled_tokens)
        with set_forward_context(None, self.config), glue(output) as kv_output:
            digests = [self._forward(n, output.num_scheduled_tokens[n]) for n in names]
        sampled = []
        for name, digest in zip(names, digests, strict=True):
            is_sampled = digest is not None
            if is_sampled:
                self.answers[name].digests.append(digest)
            sampled.append([next_token(digest)] if is_sampled else [])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=kv_output,
        )

    def _forward(self, name: str, new_tokens: int) -> str | None:
        """Compute a request's share of the step; the digest where a token is sampled."""
        request = self._requests[name]
        # The scheduler has counted the step's tokens already.
        end = request.num_computed_tokens
        tables = self.scheduler.kv_cache_manager.get_block_ids(name)
        digest = self.model.run(tables, list(request.all_token_ids), end - new_tokens, end)
        return digest if end == request.num_tokens else None

    # The connector.

    def _start_worker(self, caches: dict[str, Any]) -> None:
        """What an engine does with its workers at start."""
        worker = LMCacheConnectorV1(self.config, KVConnectorRole.WORKER, self.kv_config)
        self.worker = worker.worker_half
        kv_transfer_state._KV_CONNECTOR_AGENT = worker
        worker.register_kv_caches(caches)
        connector = self.scheduler.get_kv_connector()
        report = worker.get_handshake_metadata()
        if hasattr(connector, "set_xfer_handshake_metadata_pp_aware"):
            connector.set_xfer_handshake_metadata_pp_aware({(0, 0): report})
        else:
            connector.set_xfer_handshake_metadata({0: report})
        half = worker.worker_half
        begin_loads = half.begin_loads

        def begin_spoilt(step: Any) -> None:
            """Ended in the step that begins them: when a thread runs is no matter of engines."""
            begin_loads(self._spoil(step))
            while half.line.running:
                half.line.wait_for_thread(60)

        half.begin_loads = begin_spoilt

    def _spoil(self, step: Any) -> Any:
        """Let the loads of the failing groups end in a slot that does not exist."""

        def spoilt(operation: Any) -> Any:
            pages = tuple(
                type(p)(p.group_id, p.block_ids, [10**9] * len(p.slots))
                if p.group_id in self.failing_groups
                else p
                for p in operation.pages
            )
            return type(operation)(
                operation.operation_id, operation.request_id, pages, operation.refused
            )

        return replace(step, loads=[spoilt(operation) for operation in step.loads])


class _NoGrammar:
    """A manager of requests whose output is free."""

    def should_advance(self, *arguments: Any, **more: Any) -> bool:
        return False

    def accept_tokens(self, *arguments: Any, **more: Any) -> bool:
        return True


class _TextOnly:
    """A registry of models that know no pictures."""

    def supports_multimodal_inputs(self, model_config: Any) -> bool:
        return False
