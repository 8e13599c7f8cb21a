"""Traces: what they share, where they come from, what a bad file says."""

from collections import Counter
from itertools import groupby, pairwise

import pytest

from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.simulate.contexts import (
    LENGTHS,
    SWITCH,
    Ceiling,
    ContextTraces,
    Cost,
    ceiling,
    contexts,
    cost_of,
)
from lmc_grouped.tools.simulate.trace import Segment, block_hashes
from lmc_grouped.tools.simulate.trace_file import read_trace
from lmc_grouped.tools.simulate.traces import GENERATED, generate
from tests.factories import full, recurrent, table_of

SIZE = {"requests": 120, "context_tokens": 16_000}


def shared_blocks(first, second, block_tokens: int = 16) -> int:
    """Blocks at the start that two prompts have in common."""
    pairs = zip(block_hashes(first, block_tokens), block_hashes(second, block_tokens), strict=False)
    return sum(a == b for a, b in pairs)


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_trace_follows_from_its_seed(name):
    trace = generate(name, seed=3, **SIZE)
    assert trace == generate(name, seed=3, **SIZE)
    assert trace != generate(name, seed=4, **SIZE)


@pytest.mark.parametrize("name", GENERATED)
def test_a_shorter_trace_is_the_start_of_a_longer_one(name):
    short = generate(name, requests=30, context_tokens=16_000, seed=1)
    assert short.requests == generate(name, seed=1, **SIZE).requests[:30]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_requests_come_in_order_and_fit_the_context(name):
    requests = generate(name, seed=0, **SIZE).requests
    assert len(requests) == 120
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))
    assert all(r.prompt_tokens + r.output.tokens <= 16_000 for r in requests)


@pytest.mark.parametrize("name", GENERATED)
def test_lengths_grow_with_the_context(name):
    short = generate(name, requests=40, context_tokens=8_000, seed=0).requests
    long = generate(name, requests=40, context_tokens=80_000, seed=0).requests
    pairs = [(a.prompt_tokens, b.prompt_tokens) for a, b in zip(short, long, strict=True)]
    assert all(9 * a < b < 11 * a for a, b in pairs)


@pytest.mark.parametrize("name", GENERATED)
def test_every_generated_prompt_begins_with_what_all_have_in_common(name):
    requests = generate(name, seed=0, **SIZE).requests
    assert len({request.prompt[0] for request in requests}) == 1


def test_a_turn_of_a_chat_contains_the_turns_before_it_and_their_answers():
    requests = generate("chats", seed=0, **SIZE).requests
    by_chat: dict[str, list] = {}
    for request in requests:
        by_chat.setdefault(request.output.name.rsplit("-answer-")[0], []).append(request)
    turns = [pair for chat in by_chat.values() for pair in pairwise(chat)]
    assert turns
    for earlier, later in turns:
        known = (*earlier.prompt, earlier.output)
        assert later.prompt[: len(known)] == known


def test_an_agent_branches_from_a_context_that_it_goes_on_with():
    requests = generate("agents", seed=0, **SIZE).requests
    tries = [r for r in requests if "-try-" in r.prompt[-1].name]
    assert tries
    prompts = {request.prompt for request in requests}
    followed = sum(request.prompt[:-1] in prompts for request in tries)
    assert followed >= len(tries) - 3  # the last ones may be cut off with the trace


def test_a_document_is_asked_at_least_three_times():
    requests = generate("documents", requests=400, context_tokens=16_000, seed=0).requests
    asked = Counter(request.prompt[1] for request in requests[:200])
    later = Counter(request.prompt[1] for request in requests)
    assert all(3 <= later[document] <= 6 for document in list(asked)[:20])


def test_contexts_are_asked_once_each_and_then_again_in_the_same_order():
    requests = contexts(3, 1_000).requests
    assert [r.prompt[0].name[-1] for r in requests] == list("012012")
    assert {r.prompt_tokens for r in requests} == {1_000}
    assert shared_blocks(requests[0].prompt, requests[1].prompt) == 0
    assert shared_blocks(requests[0].prompt, requests[3].prompt) == 62


def test_a_context_too_short_for_a_generated_prompt_is_refused():
    with pytest.raises(ToolError, match="--context-tokens is 255"):
        generate("chats", 10, 255, 0)


@pytest.mark.parametrize(
    ("first", "second", "blocks"),
    [
        (["a:64"], ["a:64"], 4),
        (["a:64"], ["a:160"], 4),
        (["a:70"], ["a:80"], 4),
        (["a:64"], ["b:64"], 0),
        (["a:32", "b:32"], ["a:32", "c:32"], 2),
        (["a:40", "b:24"], ["a:40", "c:24"], 2),
        (["a:32", "b:32"], ["a:16", "b:32"], 1),
        (["a:32", "a:32"], ["a:64"], 2),
        (["x:16", "a:64"], ["y:16", "a:64"], 0),
        (["1:16", "6:48"], ["16:64"], 0),
    ],
)
def test_blocks_are_shared_as_far_as_the_text_is_the_same(first, second, blocks):
    def prompt(texts):
        return [Segment(name, int(n)) for name, _, n in (text.partition(":") for text in texts)]

    assert shared_blocks(prompt(first), prompt(second)) == blocks


def test_only_whole_blocks_have_a_hash():
    assert len(block_hashes([Segment("a", 47)], 16)) == 2
    assert len(block_hashes([Segment("a", 7), Segment("b", 9)], 16)) == 1
    assert block_hashes([], 16) == []


def read(tmp_path, *lines: str):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    return read_trace(path)


def test_a_trace_file_is_read_in_the_order_of_arrival(tmp_path):
    trace = read(
        tmp_path,
        '{"arrival": 2.5, "prompt": ["sys:2000", "doc7:60000", "q3:120"], "output_tokens": 200}',
        "",
        '{"prompt": ["sys:2000"], "output": "a1:30"}',
        '{"arrival": 1, "prompt": ["sys:2000", "a1:30"]}',
    )
    assert trace.name == "mine"
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.0, 2.5]
    assert [r.prompt_tokens for r in trace.requests] == [2_000, 2_030, 62_120]
    assert [r.output.tokens for r in trace.requests] == [30, 1, 200]
    assert trace.requests[0].output == Segment("a1", 30)
    assert trace.requests[2].computed_tokens == 62_319


def test_outputs_without_a_name_are_shared_by_nothing(tmp_path):
    line = '{"prompt": ["a:16"], "output_tokens": 33}'
    first, second = read(tmp_path, line, line).requests
    assert shared_blocks((*first.prompt, first.output), (*second.prompt, second.output)) == 1


TABLE = table_of(full(0, 16, 1_000), recurrent(1, 16, 500))


def traces_of(budget_bytes: int) -> ContextTraces:
    return ContextTraces(TABLE, budget_bytes, 0)


def lengths_of(trace) -> list[int]:
    return [request.prompt_tokens for request in trace.requests]


def test_mixed_lengths_follow_from_their_seed_and_are_as_often_short_as_long():
    trace = traces_of(10**6).make(LENGTHS, 2_000, 131_072, seed=3)
    assert trace == traces_of(10**6).make(LENGTHS, 2_000, 131_072, seed=3)
    assert trace != traces_of(10**6).make(LENGTHS, 2_000, 131_072, seed=4)
    lengths = lengths_of(trace)
    assert 1_024 <= min(lengths) < max(lengths) <= 131_072
    per_octave = Counter((tokens - 1).bit_length() for tokens in lengths)
    assert all(200 < per_octave[octave] < 400 for octave in range(11, 18))
    assert len({request.prompt for request in trace.requests}) == 2_000


def test_the_longest_of_mixed_lengths_can_be_given():
    lengths = lengths_of(traces_of(10**6).make(LENGTHS, 500, 4_000, seed=0))
    assert 3_900 < max(lengths) <= 4_000


def test_mixed_lengths_write_two_budgets_unless_a_number_is_given():
    lengths = lengths_of(traces_of(10**7).make(LENGTHS, None, 131_072, seed=0))
    kept = [cost_of(TABLE, tokens, 0).kept_bytes for tokens in lengths]
    assert sum(kept[:-1]) < 2 * 10**7 <= sum(kept)


def test_a_switch_goes_from_short_contexts_to_long_ones_and_back():
    lengths = lengths_of(traces_of(10**6).make(SWITCH, None, 1_600, seed=0))
    parts = [(tokens, len(list(part))) for tokens, part in groupby(lengths)]
    # 6 pages and a state of a short context, 100 pages and a state of a long one.
    assert parts == [(100, 308), (1_600, 20), (100, 308)]


def test_a_switch_of_so_many_requests_keeps_its_parts():
    lengths = lengths_of(traces_of(10**6).make(SWITCH, 64, 1_600, seed=0))
    parts = [(tokens, len(list(part))) for tokens, part in groupby(lengths)]
    assert parts == [(100, 31), (1_600, 2), (100, 31)]


def test_pages_beyond_the_last_boundary_cost_nothing():
    table = table_of(full(0, 64, 1_000), full(1, 32, 10))
    assert cost_of(table, 64 + 63, 0) == Cost(127, 1_000 + 2 * 10)
    assert cost_of(table, 63, 0) == Cost(63, 0)


def test_the_ceiling_counts_the_latest_contexts_and_a_part_of_the_one_that_does_not_fit():
    costs = [Cost(10, 0), Cost(100, 40), Cost(300, 120), Cost(1_000, 1)]
    assert ceiling(costs, 100) == Ceiling(1.5, 250)
    assert ceiling(costs, 1_000) == Ceiling(3, 1_400)
    assert ceiling([], 1_000) == Ceiling(0, 0)


GOOD = '{"prompt": ["a:16"]}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"line 2: .*"),
        ("[]", r"line 2: Expected `object`"),
        ("{}", r"line 2: .*`prompt`"),
        ('{"prompt": []}', r"line 2: prompt is empty"),
        ('{"prompt": "a:16"}', r"line 2: .*`\$\.prompt`"),
        ('{"prompt": ["a:16", 3]}', r"line 2: .*`\$\.prompt\[1\]`"),
        ('{"prompt": ["a:16", "b"]}', r"line 2: prompt\[1\] is 'b'"),
        ('{"prompt": [":16"]}', r"line 2: prompt\[0\] is ':16'"),
        ('{"prompt": ["a:b:16"]}', r"line 2: prompt\[0\] is 'a:b:16'"),
        ('{"prompt": ["a:0"]}', r"line 2: prompt\[0\] is 'a:0': a segment has from 1"),
        ('{"prompt": ["a:-3"]}', r"line 2: prompt\[0\] is 'a:-3'"),
        ('{"prompt": ["a:1e3"]}', r"line 2: prompt\[0\] is 'a:1e3'"),
        ('{"prompt": ["a:99999999999999999999"]}', r"line 2: prompt\[0\]"),
        ('{"prompt": ["a:99999999"]}', r"line 2: prompt\[0\].*a segment has from 1"),
        ('{"prompt": ["a:16"], "arrival": -1}', r"line 2: arrival is -1"),
        ('{"prompt": ["a:16"], "arrival": "noon"}', r"line 2: .*`\$\.arrival`"),
        ('{"prompt": ["a:16"], "output_tokens": -1}', r"line 2: output_tokens is -1"),
        ('{"prompt": ["a:16"], "output_tokens": 1.5}', r"line 2: .*`\$\.output_tokens`"),
        ('{"prompt": ["a:16"], "output": "b"}', r"line 2: output is 'b'"),
        ('{"prompt": ["a:16"], "output": "b:1", "output_tokens": 1}', r"line 2: output and"),
        ('{"prompt": ["a:16"], "promt": []}', r"line 2: .*`promt`"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path, line, said):
    with pytest.raises(ToolError, match=rf"mine\.jsonl, {said}"):
        read(tmp_path, GOOD, line, GOOD)


def test_a_file_without_requests_or_without_a_file_is_refused(tmp_path):
    with pytest.raises(ToolError, match="no requests"):
        read(tmp_path, "", "")
    with pytest.raises(ToolError, match="cannot read"):
        read_trace(tmp_path / "missing.jsonl")
    with pytest.raises(ToolError, match="cannot read"):
        read_trace(tmp_path / "null\0byte")


def test_a_line_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "bytes.jsonl"
    path.write_bytes(b'{"prompt": ["\xff:16"]}')
    with pytest.raises(ToolError, match=r"bytes\.jsonl, line 1"):
        read_trace(path)


def test_a_line_without_an_end_is_refused(tmp_path):
    with pytest.raises(ToolError, match="line 1 is longer than"):
        read(tmp_path, '{"prompt": ["' + "a" * 2**20 + ':16"]}')
