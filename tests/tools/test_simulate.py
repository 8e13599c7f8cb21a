"""`lmc-grouped simulate`: the figures from the command line, its forms, and bad input."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from lmc_grouped.cli import main
from lmc_grouped.tools.simulate.budgets import budgets_bytes, parse_budgets

LAYOUTS = Path(__file__).parent.parent / "layouts"
FLASH_NEXT = LAYOUTS / "flash_next.json"
SMALL = {
    "max_model_len": 1_024,
    "name": "small",
    "workers": 2,
    "budget_bytes": 400_000,
    "groups": [
        {"group_id": 0, "kind": "full", "span_tokens": 16, "page_bytes": 1_000},
        {"group_id": 1, "kind": "scratch"},
        {"group_id": 2, "kind": "recurrent", "span_tokens": 16, "page_bytes": 900},
        {
            "group_id": 3,
            "kind": "window",
            "span_tokens": 16,
            "page_bytes": 800,
            "window_tokens": 64,
        },
    ],
}


def simulate(capsys: pytest.CaptureFixture[str], layout: Path, *arguments: str) -> dict:
    """The JSON answer of `simulate`."""
    assert main(["simulate", str(layout), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def by_partition(found: dict) -> dict[str, dict]:
    return {run["partition"]: run for run in found["runs"]}


def write(tmp_path: Path, layout: object = SMALL) -> Path:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(layout))
    return path


# The figures of docs/pools.md.


def test_flash_next_holds_at_least_three_and_a_half_times_as_many_64k_tokens_as_dense_pools(capsys):
    runs = by_partition(simulate(capsys, FLASH_NEXT, "--budget", "16GiB"))
    assert runs["sized"]["restorable_tokens"] >= 3.5 * runs["dense"]["restorable_tokens"] > 0
    assert runs["sized"]["resumable_tokens"] >= 3.5 * runs["dense"]["resumable_tokens"]
    assert {run["restorable_contexts"] for run in runs.values()} == {1, 4}


def test_a_gemma_like_layout_holds_at_least_three_times_as_many_tokens_as_dense_pools(capsys):
    layout = LAYOUTS / "gemma3_27b_like.json"
    arguments = ("--budget", "16GiB", "--partitions", "dense,sized")
    runs = by_partition(simulate(capsys, layout, *arguments))
    assert runs["sized"]["restorable_tokens"] >= 3 * runs["dense"]["restorable_tokens"] > 0


def test_dflash2_takes_at_least_1_8_times_fewer_bytes_per_token_than_shared_rows(capsys):
    layout = LAYOUTS / "dflash2_like.json"
    runs = by_partition(simulate(capsys, layout, "--budget", "16GiB"))
    per_token = {name: run["bytes_per_restorable_token"] for name, run in runs.items()}
    assert per_token["shared"] >= 1.8 * per_token["sized"] > 0


def test_pools_sized_for_longer_contexts_hold_fewer_short_ones_than_shared_rows(capsys):
    arguments = ("--budget", "16GiB", "--context-tokens", "16384")
    runs = by_partition(simulate(capsys, FLASH_NEXT, *arguments))
    assert [runs[name]["restorable_contexts"] for name in ("shared", "sized")] == [17, 10]


def shares(capsys: pytest.CaptureFixture[str], layout: str, *arguments: str) -> dict[str, float]:
    """Partition -> restorable tokens per token of the ceiling."""
    common = ("--partitions", "shared,sized,elastic")
    found = simulate(capsys, LAYOUTS / f"{layout}.json", *common, *arguments)
    return {name: run["ceiling_share"] for name, run in by_partition(found).items()}


@pytest.mark.parametrize(
    ("layout", "budgets", "reference"),
    [
        ("flash_next", "16x", "4095"),
        ("flash_next", "8x", "65532"),
        ("dflash2_like", "4x", "4095"),
        ("dflash2_like", "4x", "65532"),
        ("glm53_flash_like", "1x", "4095"),
    ],
)
def test_elastic_pools_are_at_the_ceiling_with_a_reference_four_times_too_short_or_long(
    capsys, layout, budgets, reference
):
    arguments = ("--context-tokens", "16383", "--reference-tokens", reference)
    found = shares(capsys, layout, "--budgets", budgets, *arguments)
    assert found["elastic"] >= 0.97
    assert found["elastic"] >= max(found.values()) - 0.01
    assert found["sized"] < 0.7


def test_elastic_pools_hold_a_mix_of_lengths_that_pools_of_a_wrong_reference_do_not(capsys):
    arguments = ("--trace", "lengths", "--budgets", "6x", "--reference-tokens", "6500")
    found = shares(capsys, "dflash2_like", *arguments)
    assert found["elastic"] >= 0.97
    assert max(found["shared"], found["sized"]) < 0.7


def test_elastic_pools_have_forgotten_the_long_contexts_when_short_ones_are_back(capsys):
    found = shares(capsys, "flash_next", "--trace", "switch", "--budgets", "4x")
    # Extents cut for 64K contexts leave 6 % of each state's extent empty: few states then, not now.
    assert found["elastic"] >= 0.96
    assert found["elastic"] > found["shared"] > 3 * found["sized"]


def test_where_a_page_is_as_large_as_a_row_elastic_pools_are_shared_rows(capsys):
    arguments = ("--budget", "4GiB", "--context-tokens", "8191")
    found = shares(capsys, "gpt_oss_120b_like", *arguments)
    assert found["elastic"] == found["shared"] >= 0.9


# Forms.


def test_the_ceiling_is_what_the_bytes_of_the_budget_would_hold(capsys):
    for run in simulate(capsys, FLASH_NEXT, "--budget", "16GiB")["runs"]:
        assert f"{run['ceiling_contexts']:.2f}" == "4.88"
        assert run["ceiling_tokens"] == 320_118
        assert run["ceiling_share"] == pytest.approx(run["restorable_tokens"] / 320_118, rel=1e-5)


def test_the_json_answer_has_these_fields(capsys, tmp_path):
    found = simulate(capsys, write(tmp_path))
    assert list(found) == [
        "layout", "trace", "workers", "retention_tokens", "reference_tokens", "step_tokens", "runs",
    ]  # fmt: skip
    assert [run["partition"] for run in found["runs"]] == ["shared", "dense", "sized", "elastic"]
    for run in found["runs"]:
        assert list(run) == [
            "partition", "budget_bytes_per_worker", "used_bytes_per_worker", "requests",
            "prompt_tokens", "hit_tokens", "hit_rate", "evicted_pages", "moved_pages",
            "not_stored_pages", "resident_bytes", "usable_bytes", "usable_share",
            "restorable_contexts", "restorable_tokens", "resumable_tokens",
            "bytes_per_restorable_token", "ceiling_contexts", "ceiling_tokens", "ceiling_share",
            "groups",
        ]  # fmt: skip
        assert [list(group) for group in run["groups"]] == [
            ["group_id", "kind", "slots", "resident_pages", "evicted_pages"]
        ] * 3


def test_the_numbers_of_one_answer_agree_with_one_another(capsys, tmp_path):
    for run in simulate(capsys, write(tmp_path), "--trace", "agents")["runs"]:
        page_bytes = {0: 1_000, 2: 900, 3: 800}
        if run["partition"] == "shared":
            page_bytes = dict.fromkeys(page_bytes, 1_000)
        resident = sum(page_bytes[g["group_id"]] * g["resident_pages"] for g in run["groups"])
        assert run["resident_bytes"] == resident <= run["used_bytes_per_worker"] <= 200_000
        assert run["usable_bytes"] == pytest.approx(run["usable_share"] * resident)
        assert 0 < run["usable_bytes"] <= resident
        assert run["evicted_pages"] == sum(g["evicted_pages"] for g in run["groups"]) > 0
        assert run["hit_rate"] == run["hit_tokens"] / run["prompt_tokens"]
        assert 0 < run["hit_rate"] < 1
        assert run["requests"] == 200
        assert run["restorable_contexts"] is run["bytes_per_restorable_token"] is None
        assert run["ceiling_contexts"] is run["ceiling_tokens"] is run["ceiling_share"] is None
        assert run["partition"] == "elastic" or run["moved_pages"] == 0


def test_with_shared_rows_useless_rows_are_counted_once(capsys, tmp_path):
    layout = SMALL | {"budget_bytes": 100_000}
    arguments = ("--partitions", "shared", "--context-tokens", "500", "--requests", "3")
    (run,) = simulate(capsys, write(tmp_path, layout), *arguments)["runs"]
    # The last context is whole: 31 pages, a state and four window pages in rows of 1,000 bytes.
    assert run["restorable_contexts"] == 1
    assert 36_000 <= run["usable_bytes"] < run["resident_bytes"] <= 50_000


def test_the_layout_may_name_the_bytes_of_a_shared_row(capsys, tmp_path):
    wide = write(tmp_path, SMALL | {"shared_row_bytes": 4_000})
    runs = by_partition(simulate(capsys, wide, "--requests", "2"))
    assert {group["slots"] for group in runs["shared"]["groups"]} == {50}
    assert runs["sized"]["groups"][0]["slots"] > 50


def test_everything_is_hit_by_whoever_comes_again_when_the_budget_is_large(capsys, tmp_path):
    arguments = ("--budget", "1GiB", "--context-tokens", "1000", "--requests", "3")
    for run in simulate(capsys, write(tmp_path), *arguments)["runs"]:
        assert (run["requests"], run["evicted_pages"]) == (6, 0)
        assert run["hit_tokens"] == 3 * (999 // 16 * 16)
        assert run["restorable_contexts"] == 3


def test_without_a_number_one_context_more_than_the_largest_budget_holds_is_asked(capsys, tmp_path):
    found = simulate(capsys, write(tmp_path), "--context-tokens", "1000")
    # 62 pages, one state, and four window pages: 66,100 bytes, of which 200,000 hold three.
    assert {run["requests"] for run in found["runs"]} == {8}


def test_several_budgets_are_run_in_ascending_order(capsys, tmp_path):
    arguments = ("--trace", "chats", "--budgets", "2x, 0.5x,300kB", "--partitions", "sized,shared")
    found = simulate(capsys, write(tmp_path), *arguments)
    seen = [(run["budget_bytes_per_worker"], run["partition"]) for run in found["runs"]]
    budgets = (100_000, 150_000, 400_000)
    assert seen == [(budget, name) for budget in budgets for name in ("sized", "shared")]


def test_a_trace_file_of_the_users_own_is_replayed(capsys, tmp_path):
    trace = tmp_path / "mine.jsonl"
    trace.write_text(
        '{"prompt": ["sys:320", "q1:100"], "output": "a1:50"}\n'
        '{"arrival": 1, "prompt": ["sys:320", "q1:100", "a1:50", "q2:100"]}\n'
    )
    found = simulate(capsys, write(tmp_path), "--trace", str(trace), "--partitions", "sized")
    (run,) = found["runs"]
    assert found["trace"] == "mine"
    assert (run["requests"], run["prompt_tokens"], run["hit_tokens"]) == (2, 990, 416)


def test_the_table_has_a_row_per_run_and_the_reasons_for_not_storing(capsys, tmp_path):
    assert main(["simulate", str(write(tmp_path)), "--trace", "agents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("small, trace agents: 2 worker(s), retention 0")
    assert [line.split()[2] for line in lines[4:8]] == ["shared", "dense", "sized", "elastic"]
    assert "restorable" not in lines[2]
    assert lines[9].startswith("not stored, 391 KiB shared: not_retained ")


def test_the_table_of_contexts_says_how_many_are_left(capsys):
    assert main(["simulate", str(FLASH_NEXT), "--budget", "1GiB"]) == 0
    dense = capsys.readouterr().out.splitlines()[5].split()
    assert dense[-6:] == ["0", "0", "-", dense[-3], "0.31", "0.0%"]


def test_the_same_command_prints_the_same_bytes_in_another_process(tmp_path):
    arguments = ["simulate", str(write(tmp_path)), "--trace", "documents", "--seed", "9", "--json"]
    command = [sys.executable, "-m", "lmc_grouped.cli", *arguments]
    runs = [
        subprocess.run(command, capture_output=True, check=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stderr == b""


# Plots.


@pytest.mark.parametrize(
    ("name", "start"), [("p.png", b"\x89PNG\r\n\x1a\n"), ("p.SVG", b"<?xml"), ("p.svg", b"<?xml")]
)
def test_the_plot_is_a_file_of_its_kind_and_the_same_each_time(capsys, tmp_path, name, start):
    arguments = ("--trace", "chats", "--requests", "20", "--budgets", "1x,2x")
    written = []
    for _ in range(2):
        simulate(capsys, write(tmp_path), *arguments, "--plot", str(tmp_path / name))
        written.append((tmp_path / name).read_bytes())
    assert written[0].startswith(start)
    assert written[0] == written[1]


def test_the_plot_names_every_partition_and_sweeps_budgets_by_itself(capsys, tmp_path):
    plot = tmp_path / "plot.svg"
    arguments = ("--trace", "chats", "--requests", "20", "--plot", str(plot))
    found = simulate(capsys, write(tmp_path), *arguments)
    assert len({run["budget_bytes_per_worker"] for run in found["runs"]}) == 7
    drawn = plot.read_text()
    assert all(
        label in drawn for label in ("shared rows", "dense", "sized by retention", "elastic")
    )
    assert "host budget, GiB" in drawn


def test_without_matplotlib_the_message_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["simulate", str(write(tmp_path)), "--plot", str(tmp_path / "p.png")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert main(["simulate", str(write(tmp_path)), "--requests", "1"]) == 0


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--retention", "none"), "--retention none is what the dense pools keep"),
        (("--retention", "24"), "--retention: a retention interval of 24"),
        (("--budget", "1kB"), "budget of the shared pools"),
        (("--budget", "5kB", "--partitions", "dense"), "budget of the dense pools"),
        (("--budget", "1B"), "less than one byte per worker"),
        (("--trace", "missing.jsonl"), "cannot read the trace missing.jsonl"),
        (("--trace", "chats", "--context-tokens", "100"), "--context-tokens is 100"),
        (("--trace", "lengths", "--context-tokens", "1000"), "--context-tokens is 1000"),
        (("--trace", "switch", "--context-tokens", "100"), "contexts of at most 6 tokens here"),
        (("--plot", "plot.pdf"), "must end in one of .png, .svg"),
        (("--plot", "nowhere/plot.png"), "there is no folder nowhere"),
    ],
)
def test_bad_input_is_named_and_ends_with_status_2(capsys, tmp_path, arguments, said):
    assert main(["simulate", str(write(tmp_path)), *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("lmc-grouped simulate: ")
    assert said in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--partitions", "shared,static"), "'static' is none of shared, dense, sized, elastic"),
        (("--budgets", "1x,"), "argument --budgets: ''"),
        (("--budgets", "0x"), "a factor must be above 0"),
        (("--budgets", "-1x"), "--budgets"),
        (("--requests", "0"), "argument --requests: 0 is not positive"),
        (("--step-tokens", "-5"), "argument --step-tokens: -5 is not positive"),
        (("--seed", "one"), "argument --seed: 'one' is not a whole number"),
        (("--budget", "much"), "argument --budget: 'much' is not a size"),
    ],
)
def test_a_bad_argument_is_named_and_ends_with_status_2(capsys, tmp_path, arguments, said):
    with pytest.raises(SystemExit) as leaving:
        main(["simulate", str(write(tmp_path)), *arguments])
    assert leaving.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"groups": [{"group_id": 0, "kind": "scratch"}]}, "no group of this layout can be stored"),
        ({"budget_bytes": None}, "--budget is missing"),
        ({"shared_row_bytes": 999}, "shared_row_bytes is 999"),
        ({"shared_row_bytes": 10**9}, "hold no row of 1000000000 bytes"),
        ({"groups": []}, "groups is empty"),
    ],
)
def test_a_layout_that_cannot_be_run_ends_with_status_2(capsys, tmp_path, change, said):
    assert main(["simulate", str(write(tmp_path, SMALL | change))]) == 2
    assert said in capsys.readouterr().err


def test_recurrent_groups_that_never_meet_are_refused_by_name(capsys, tmp_path):
    groups = [
        *SMALL["groups"],
        {"group_id": 4, "kind": "recurrent", "span_tokens": 24, "page_bytes": 900},
    ]
    assert main(["simulate", str(write(tmp_path, SMALL | {"groups": groups}))]) == 2
    assert "groups: recurrent groups 2" in capsys.readouterr().err


def test_budgets_are_sizes_and_factors():
    assert parse_budgets("1.5x,1KiB") == (Fraction(3, 2), 1024)
    assert budgets_bytes(parse_budgets("1.5x,1KiB,1024B"), 100) == (150, 1024)
    with pytest.raises(ValueError, match="needs a budget"):
        budgets_bytes(parse_budgets("2x"), None)
