"""What the engine asks its connector, written down."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Answer:
    """What became of one request."""

    digests: list[str] = field(default_factory=list)
    """After each generated token."""
    local: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    """Tokens found on the device and brought back, each time it was admitted."""
    reason: str = ""
    preemptions: int = 0


def watch(lab: Any) -> None:
    """Write down the connector's answers and what the engine makes of them."""
    connector = lab.scheduler.get_kv_connector()
    local_tokens: dict[str, int] = {}
    ask, accept = connector.get_num_new_matched_tokens, connector.update_state_after_alloc
    plan, finish = lab.half.lookups._plan, connector.request_finished_all_groups

    def asked(request: Any, tokens: int) -> Any:
        local_tokens[request.request_id] = tokens
        return ask(request, tokens)

    def accepted(request: Any, blocks: Any, external_tokens: int) -> None:
        if request.request_id in local_tokens:
            answer = lab.answers[request.request_id]
            answer.local.append(local_tokens.pop(request.request_id))
            answer.restored.append(external_tokens)
        accept(request, blocks, external_tokens)

    def planned(*arguments: Any) -> str | None:
        refusal, lab.refusal = lab.refusal, None
        return refusal or plan(*arguments)

    def finished(request: Any, block_ids: Any) -> Any:
        answer = lab.answers[request.request_id]
        answer.reason = request.status.name
        answer.preemptions = request.num_preemptions
        return finish(request, block_ids)

    connector.get_num_new_matched_tokens = asked
    connector.update_state_after_alloc = accepted
    connector.request_finished_all_groups = finished
    lab.half.lookups._plan = planned
