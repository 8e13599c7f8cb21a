"""What the checks of one run share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmc_grouped.tools.certify.discovery import Offer
from lmc_grouped.tools.certify.judge import Demand, judge
from lmc_grouped.tools.certify.outputs import References, Tolerances
from lmc_grouped.tools.certify.prompts import PromptMaker
from lmc_grouped.tools.certify.report import Row
from lmc_grouped.tools.certify.runs import Run
from lmc_grouped.tools.certify.server import OUTPUT_TOKENS, RESET_WAIT_SECONDS, Server

TURN_TOKENS = 64
"""A new turn of the conversation."""


class NotCheckable(Exception):
    """The server turned out unable to serve a check; the text says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    prompt_tokens: int
    min_restored_fraction: float
    """Of the prompt, between 0 and 1."""
    pressure_tokens: int
    """0: no pressure check."""
    tolerances: Tolerances


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """The prompt later checks come back to, and its runs."""

    ids: tuple[int, ...]
    references: References


@dataclass(slots=True)
class Session:
    """The server, the wishes, and what earlier checks left for later ones."""

    server: Server
    offer: Offer
    prompts: PromptMaker
    options: Options
    first: FirstPrompt | None = None

    def floor_to_block(self, prompt_tokens: int) -> int:
        """The last boundary at which a hit of this prompt may end.

        `(n - 1) // B * B`: the last token is always computed. `n - 1` on a
        server that does not tell its block size `B`.
        """
        block = self.offer.cache.tokens_per_block or 1
        return (prompt_tokens - 1) // block * block

    def required_tokens(self, prompt_tokens: int) -> int:
        """How much of a stored prompt must come back."""
        wanted = int(self.options.min_restored_fraction * prompt_tokens)
        return min(wanted, self.floor_to_block(prompt_tokens))

    def restore(self, ids: Sequence[int]) -> Run:
        """Run a prompt with an empty local prefix cache, so that a hit can only
        come from the connector.

        Raises NotCheckable when the local cache cannot be emptied.
        """
        self.server.nudge()
        if not self.server.reset_prefix_cache():
            raise NotCheckable(
                f"the engine's prefix cache did not reset within {RESET_WAIT_SECONDS:g} s"
            )
        return self.server.complete(ids)

    def judge_restored(
        self,
        check: str,
        ids: tuple[int, ...],
        run: Run,
        references: References,
        at_least_tokens: int,
        at_most_tokens: int | None = None,
    ) -> Row:
        """The row of a run of `ids` that `restore` made; `at_most_tokens` None
        stands for the last boundary a hit may end at. When no reference hit as
        many tokens, one that does is made."""
        if at_most_tokens is None:
            at_most_tokens = self.floor_to_block(run.prompt_tokens)
        demand = Demand(
            restored_at_least_tokens=at_least_tokens, restored_at_most_tokens=at_most_tokens
        )
        if run.moved and run.moved.restored_tokens and not references.same_hit(run):
            control = self._hit_locally(check, ids, run.moved.restored_tokens)
            references = replace(references, local_hits=(*references.local_hits, control))
        return judge(check, run, references, demand, self.options.tolerances)

    def _hit_locally(self, check: str, ids: tuple[int, ...], hit_tokens: int) -> Run:
        """Run a prompt with this many tokens from the engine's own prefix cache:
        first, under the same salt, a prompt that ends one token further, for
        recurrent states are kept only where prompts end."""
        salt = self.prompts.salt(f"{check} same hit")
        self.server.complete(ids[: hit_tokens + 1], salt=salt, output_tokens=1)
        return self.server.complete(ids, salt=salt)


def longest_request_tokens(prompt_tokens: int) -> int:
    """Prompt plus output of the longest request: the second turn."""
    return prompt_tokens + OUTPUT_TOKENS + TURN_TOKENS + OUTPUT_TOKENS
