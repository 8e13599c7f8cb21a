"""`lmc-grouped plan`: the published numbers from the command line, and bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.cli import main
from lmc_grouped.tools.errors import ToolError
from lmc_grouped.tools.plan.layout import format_layout, parse_layout
from lmc_grouped.tools.plan.sizes import format_size, parse_size

LAYOUTS = Path(__file__).parent.parent / "layouts"
FLASH_NEXT = LAYOUTS / "flash_next.json"
A08_ARGUMENTS = ("--budget", "16GiB", "--workers", "4")


def run_plan(capsys: pytest.CaptureFixture[str], layout: Path, *arguments: str) -> dict:
    """The JSON answer of `plan`."""
    assert main(["plan", str(layout), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def write(tmp_path: Path, layout: object) -> Path:
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(layout))
    return path


def layout_of(*groups: dict, **more: object) -> dict:
    return {"max_model_len": 4_096, "groups": list(groups)} | more


FULL = {"group_id": 0, "kind": "full", "span_tokens": 16, "page_bytes": 1_000}


@pytest.mark.parametrize(
    ("arguments", "slots"),
    [
        (("--retention", "none"), [107] * 5),
        (("--retention", "6272"), [280] + [48] * 4),
        (("--retention", "0"), [390] + [10] * 4),
        ((), [390] + [10] * 4),
        (("--retention", "0", "--reference-tokens", "16384"), [326] + [32] * 4),
        (("--partition", "off"), [419] * 5),
        (("--partition", "static"), [390] + [10] * 4),
    ],
)
def test_a08_the_published_numbers_come_from_the_command_line(capsys, arguments, slots):
    found = run_plan(capsys, FLASH_NEXT, *A08_ARGUMENTS, *arguments)
    assert [group["slots"] for group in found["groups"]] == slots
    assert [group["group_id"] for group in found["groups"]] == [0, 2, 3, 4, 5]
    assert found["budget_bytes_per_worker"] == 4_294_967_296
    assert found["used_bytes_per_worker"] <= 4_294_967_296
    assert found["excluded"] == [
        {"group_id": 1, "reason": "scratch: rebuilt from tokens, never stored"}
    ]


def test_the_json_answer_has_these_keys(capsys):
    found = run_plan(capsys, FLASH_NEXT, *A08_ARGUMENTS)
    assert list(found) == [
        "budget_bytes_per_worker",
        "used_bytes_per_worker",
        "token_capacity",
        "contexts",
        "ceiling_tokens",
        "groups",
        "excluded",
        "warnings",
        "partition",
        "modes",
    ]
    assert list(found["groups"][0]) == [
        "group_id", "kind", "span_tokens", "page_bytes", "slots", "tokens_covered",
    ]  # fmt: skip
    assert found["token_capacity"] == 390 * 784
    assert found["ceiling_tokens"] == 320_118


# name, (contexts with shared rows, with fixed pools, ceiling) at the layout's own budget
CONTEXTS = {
    "flash_next": (4, 4, "4.88"),
    "dflash2_like": (5, 10, "10.93"),
    "deepseek_v41": (545, 533, "546.60"),
    "gemma3_27b_like": (21, 19, "22.02"),
    "glm53_flash_like": (46, 100, "116.50"),
    "gpt_oss_120b_like": (28, 28, "28.39"),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_the_six_layouts_hold_the_contexts_that_were_worked_out_for_them(capsys, name):
    layout = LAYOUTS / f"{name}.json"
    rows, pools, ceiling = CONTEXTS[name]
    assert run_plan(capsys, layout, "--partition", "off")["contexts"] == rows
    found = run_plan(capsys, layout)
    assert found["contexts"] == pools
    reference = json.loads(layout.read_text())["max_model_len"]
    assert f"{found['ceiling_tokens'] / reference:.2f}" == ceiling


def share_of(found: dict, partition: str) -> float:
    (mode,) = [mode for mode in found["modes"] if mode["partition"] == partition]
    return mode["ceiling_share"]


def test_every_answer_compares_the_three_partitions_with_the_ceiling(capsys):
    answers = [
        run_plan(capsys, FLASH_NEXT, "--partition", partition)
        for partition in ("auto", "static", "off")
    ]
    modes = answers[0]["modes"]
    assert all(answer["modes"] == modes for answer in answers)
    assert [mode["partition"] for mode in modes] == ["auto", "static", "off"]
    assert [list(mode) for mode in modes] == [
        ["partition", "cut_as", "contexts", "tokens", "ceiling_share"]
    ] * 3
    assert [answer["contexts"] for answer in answers] == [mode["contexts"] for mode in modes]
    for mode in modes:
        assert mode["ceiling_share"] == mode["tokens"] / answers[0]["ceiling_tokens"]
        assert mode["contexts"] * 65_536 <= mode["tokens"]


@pytest.mark.parametrize("name", CONTEXTS)
def test_elastic_pools_are_at_the_ceiling_on_all_six_layouts(capsys, name):
    found = run_plan(capsys, LAYOUTS / f"{name}.json", "--partition", "auto")
    assert found["partition"] == "auto"
    assert 0.97 <= share_of(found, "auto") <= 1
    assert share_of(found, "auto") >= max(share_of(found, n) for n in ("static", "off")) - 0.01
    rows, pools, _ = CONTEXTS[name]
    assert found["contexts"] >= 0.99 * max(rows, pools)


def test_the_answer_about_elastic_pools_has_extents_floors_and_a_balance(capsys):
    found = run_plan(capsys, FLASH_NEXT, "--partition", "auto")
    assert (found["extents"], found["extent_bytes"], found["reserve_extents"]) == (
        419, 10_235_904, 2,
    )  # fmt: skip
    assert found["used_bytes_per_worker"] == 419 * 10_235_904
    by_group = {group["group_id"]: group for group in found["groups"]}
    assert [group["pages_per_extent"] for group in by_group.values()] == [1, 1, 1, 1, 12]
    assert [group.get("floor_extents") for group in by_group.values()] == [83, 3, None, None, 1]
    assert [group.get("shares_with") for group in by_group.values()] == [None, None, 2, 2, None]
    # 4.83 contexts of 83 pages and a state of each group.
    assert [group["slots"] for group in by_group.values()] == [401, 4, 4, 4, 4]
    held = sum(group["slots"] * group["page_bytes"] for group in by_group.values())
    assert held <= found["used_bytes_per_worker"]


def test_the_table_of_elastic_pools_says_what_their_slots_are(capsys):
    assert main(["plan", str(FLASH_NEXT), "--partition", "auto"]) == 0
    out = capsys.readouterr().out
    assert "4 worker(s), partition auto, retention 0" in out
    (full_line,) = [line for line in out.splitlines() if " full " in line]
    assert full_line.split()[:9] == ["0", "full", "784", "9.76", "MiB", "401", "1", "83", "317,116"]
    assert "419 of 9.76 MiB, 2 of them kept empty ahead of need" in out
    assert "while contexts of the reference length fill" in out
    shares = {line.split()[0]: line.split()[1:] for line in out.splitlines() if "%" in line}
    assert shares["ceiling"] == ["4.88", "320,118", "100.0%"]
    assert shares["off"] == ["4", "315,627", "98.6%"]
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_a_budget_below_the_floors_becomes_static_pools_with_a_warning(capsys):
    small = (FLASH_NEXT, "--budget", "3GiB", "--workers", "4")
    elastic, static = (run_plan(capsys, *small, "--partition", p) for p in ("auto", "static"))
    assert elastic["partition"] == "static"
    assert elastic["groups"] == static["groups"]
    assert [mode["cut_as"] for mode in elastic["modes"]] == ["static", "static", "off"]
    assert elastic["warnings"][0].startswith("the budget is below the floors of elastic pools")
    assert elastic["warnings"][1:] == static["warnings"]
    assert main(["plan", *map(str, small), "--partition", "auto"]) == 0
    assert "\nauto (static) " in capsys.readouterr().out


def test_a_partition_that_the_budget_is_too_small_for_has_no_contexts(capsys, tmp_path):
    path = write(tmp_path, layout_of(FULL, shared_row_bytes=10**9))
    found = run_plan(capsys, path, "--budget", "1MB")
    off = found["modes"][-1]
    assert (off["cut_as"], off["contexts"], off["tokens"]) == (None, 0, 0)
    assert main(["plan", str(path), "--budget", "1MB"]) == 0
    assert "off (budget too small)" in capsys.readouterr().out


def test_the_bytes_of_a_shared_row_apply_to_the_comparison(capsys, tmp_path):
    narrow, wide = layout_of(FULL), layout_of(FULL, shared_row_bytes=2_000)
    shares = [
        share_of(run_plan(capsys, write(tmp_path, some), "--budget", "9MB"), "off")
        for some in (narrow, wide)
    ]
    assert shares[1] == pytest.approx(shares[0] / 2, rel=0.01)


def test_shorter_contexts_with_the_right_reference_length(capsys):
    layout = LAYOUTS / "dflash2_like.json"
    found = run_plan(capsys, layout, "--reference-tokens", "16384")
    assert found["contexts"] == 33
    rows = run_plan(capsys, layout, "--reference-tokens", "16384", "--partition", "off")
    assert rows["contexts"] == 21
    assert found["ceiling_tokens"] // 16_384 == 40


def test_a_drafter_has_twice_the_slots_and_covers_the_same_tokens(capsys):
    groups = {g["group_id"]: g for g in run_plan(capsys, LAYOUTS / "dflash2_like.json")["groups"]}
    assert groups[4]["slots"] == 2 * groups[0]["slots"]
    assert groups[4]["tokens_covered"] == groups[0]["tokens_covered"]


def test_the_table_shows_where_the_bytes_go(capsys):
    assert main(["plan", str(FLASH_NEXT), *A08_ARGUMENTS]) == 0
    out = capsys.readouterr().out
    assert "flash_next: 4 worker(s), partition static, retention 0, reference 65,536 tokens" in out
    (full_line,) = [line for line in out.splitlines() if " full " in line]
    columns = "0 full 784 9.76 MiB 390 305,760 3.72 GiB 92.9%"
    assert full_line.split() == [*columns.split(), "#" * 28]
    assert "group 1 takes no part: scratch" in out
    assert "4 of 65,536 tokens restorable at once; at most 4.88" in out
    assert out.isascii()


def test_the_bars_of_shared_rows_show_what_contexts_take(capsys):
    assert main(["plan", str(FLASH_NEXT), "--partition", "off"]) == 0
    out = capsys.readouterr().out
    shares = [
        float(word[:-1]) for line in out.splitlines()[4:10] for word in line.split() if "%" in word
    ]
    assert shares == [95.3, 1.1, 1.1, 1.1, 1.1, 0.1]


def test_a09_states_that_run_out_first_are_a_warning(capsys):
    (warning,) = run_plan(capsys, FLASH_NEXT, *A08_ARGUMENTS)["warnings"]
    assert warning.startswith("contexts of up to about 29,792 tokens run out of states first: 10")
    assert "group 2, 3, 4, 5" in warning
    assert run_plan(capsys, FLASH_NEXT, "--retention", "none")["warnings"] == []


@pytest.mark.parametrize("partition", ["auto", "static", "off"])
def test_a_budget_below_one_context_says_what_one_takes(capsys, partition):
    found = run_plan(
        capsys, FLASH_NEXT, "--budget", "1GiB", "--workers", "4", "--partition", partition
    )
    assert found["contexts"] == 0
    *_, warning = found["warnings"]
    assert "not one context of 65,536 tokens fits" in warning
    over_all = warning.partition("bytes per worker, ")[2].split()[0]
    enough = run_plan(
        capsys, FLASH_NEXT, "--budget", over_all, "--workers", "4", "--partition", partition
    )
    assert enough["contexts"] == 1


def test_a01_a_layout_of_scratch_groups_only_gets_a_warning(capsys, tmp_path):
    path = write(tmp_path, layout_of({"group_id": 0, "kind": "scratch"}))
    found = run_plan(capsys, path, "--budget", "1GiB")
    assert (found["contexts"], found["groups"]) == (0, [])
    assert found["warnings"][0].startswith("no group of this layout can be stored")
    assert main(["plan", str(path), "--budget", "1GiB"]) == 0


def test_a24_a_ring_with_a_span_sets_the_alignment():
    ring = {"group_id": 1, "kind": "scratch", "span_tokens": 256}
    assert parse_layout(json.dumps(layout_of(FULL, ring)).encode()).table.alignment_tokens == 256


def test_a_context_shorter_than_the_alignment_is_a_warning(capsys, tmp_path):
    path = write(tmp_path, layout_of(FULL, alignment_tokens=8_192))
    found = run_plan(capsys, path, "--budget", "1GiB")
    assert found["contexts"] == 0
    assert "hits end every 8,192 tokens" in found["warnings"][0]


def test_the_layouts_own_budget_and_workers_are_the_defaults(capsys):
    assert run_plan(capsys, FLASH_NEXT) == run_plan(capsys, FLASH_NEXT, *A08_ARGUMENTS)


WINDOW = {"group_id": 1, "kind": "window", "span_tokens": 16, "page_bytes": 10}
BAD_LAYOUTS = {
    "groups[0]": layout_of({"kind": "full", "span_tokens": 16, "page_bytes": 1}),
    "`max_model_len`": {"groups": [FULL]},
    "`groups`": {"max_model_len": 10},
    "groups is empty": layout_of(),
    "groups[0].span_tokens is missing": layout_of({"group_id": 0, "kind": "full"}),
    "groups[0].page_bytes is missing": layout_of(
        {"group_id": 0, "kind": "full", "span_tokens": 16}
    ),
    "groups[0].page_bytes is 0": layout_of(FULL | {"page_bytes": 0}),
    "groups[0].span_tokens is -16": layout_of(FULL | {"span_tokens": -16}),
    "groups[0].group_id is -1": layout_of(FULL | {"group_id": -1}),
    "groups[1].group_id is 0, which groups[0] has": layout_of(FULL, FULL),
    "groups[1].window_tokens is missing": layout_of(FULL, WINDOW),
    "groups[1].window_tokens is 0": layout_of(FULL, WINDOW | {"window_tokens": 0}),
    "groups[0].window_tokens is 64": layout_of(FULL | {"window_tokens": 64}),
    "max_model_len is 0": layout_of(FULL, max_model_len=0),
    "workers is 0": layout_of(FULL, workers=0),
    "budget_bytes is -1": layout_of(FULL, budget_bytes=-1),
    "shared_row_bytes is -5": layout_of(FULL, shared_row_bytes=-5),
    "alignment_tokens": layout_of(FULL, alignment_tokens=24),
    "hash_block_tokens is 0": layout_of(FULL, hash_block_tokens=0),
    "hash_block_tokens is 5, which does not divide": layout_of(FULL, hash_block_tokens=5),
    "'diagonal'": layout_of(FULL | {"kind": "diagonal"}),
    "`$.groups[0].page_bytes`": layout_of(FULL | {"page_bytes": "many"}),
    "not a layout": [1, 2],
}


@pytest.mark.parametrize("named", BAD_LAYOUTS)
def test_a_bad_layout_ends_with_the_field_and_status_2(capsys, tmp_path, named):
    path = write(tmp_path, BAD_LAYOUTS[named])
    assert main(["plan", str(path), "--budget", "1GiB"]) == 2
    err = capsys.readouterr().err
    assert named in err
    assert str(path) in err
    assert "Traceback" not in err


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b'{"max_model_len": 1e400}'])
def test_a_file_that_is_no_json_ends_with_status_2(capsys, tmp_path, text):
    path = tmp_path / "layout.json"
    path.write_bytes(text)
    assert main(["plan", str(path), "--budget", "1GiB"]) == 2
    assert "not a layout" in capsys.readouterr().err


def test_a_file_that_is_not_there_ends_with_status_2(capsys, tmp_path):
    for path in (tmp_path / "absent.json", tmp_path, Path("a\0b")):
        assert main(["plan", str(path)]) == 2
        assert "cannot read the layout file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--budget", "16"), "--budget: 16 bytes per worker hold less than"),
        (("--budget", "16", "--partition", "off"), "--budget: 16 bytes per worker hold less than"),
        (("--budget", "2", "--workers", "4"), "--budget: 2 bytes"),
        ((), "--budget is missing"),
        (("--budget", "1GiB", "--retention", "100"), "--retention: a retention interval of 100"),
    ],
)
def test_an_impossible_argument_is_named(capsys, tmp_path, arguments, named):
    path = write(tmp_path, layout_of(FULL))
    assert main(["plan", str(path), *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--budget", "many"),
        ("--budget", "0GiB"),
        ("--budget", "16XB"),
        ("--workers", "0"),
        ("--workers", "two"),
        ("--retention", "-784"),
        ("--retention", "some"),
        ("--reference-tokens", "0"),
        ("--reference-tokens", "-1"),
        ("--partition", "round"),
    ],
)
def test_arguments_out_of_range_are_named_by_argparse(capsys, arguments):
    with pytest.raises(SystemExit) as leaving:
        main(["plan", str(FLASH_NEXT), *arguments])
    assert leaving.value.code == 2
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_layout_that_is_written_is_read_back_unchanged(name):
    layout = parse_layout((LAYOUTS / f"{name}.json").read_bytes())
    assert parse_layout(format_layout(layout, note="for people")) == layout


def test_recurrent_groups_that_cannot_be_reconciled_are_both_named(capsys, tmp_path):
    states = [
        {"group_id": i, "kind": "recurrent", "span_tokens": span, "page_bytes": 5}
        for i, span in ((1, 784), (3, 800))
    ]
    path = write(tmp_path, layout_of(FULL, *states, max_model_len=65_536))
    assert main(["plan", str(path), "--budget", "1GiB"]) == 2
    err = capsys.readouterr().err
    assert "1 (span 784 tokens, page 5 bytes) and 3 (span 800 tokens, page 5 bytes)" in err


def test_a_row_narrower_than_the_largest_page_is_refused(capsys, tmp_path):
    path = write(tmp_path, layout_of(FULL, shared_row_bytes=999))
    assert main(["plan", str(path), "--budget", "1GiB", "--partition", "off"]) == 2
    assert "shared_row_bytes is 999" in capsys.readouterr().err


def test_plan_loads_no_engine_and_no_tensors():
    code = (
        "import sys; from lmc_grouped.cli import main; main(sys.argv[1:]); "
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'torch', 'vllm', 'lmcache'}))"
    )
    command = [sys.executable, "-c", code, "plan", str(FLASH_NEXT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "[]", "")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("16GiB", 16 * 2**30),
        ("16 gib", 16 * 2**30),
        ("1.5KiB", 1_536),
        ("12.5GB", 12_500_000_000),
        ("3MB", 3_000_000),
        ("7MiB", 7 * 2**20),
        ("2KB", 2_000),
        (".5KB", 500),
        ("1TiB", 2**40),
        ("4294967296", 2**32),
        ("10B", 10),
    ],
)
def test_sizes_take_binary_and_decimal_units(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e3", "nan", "1 2GB", "0", "0.1B", "9" * 99])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"size|byte"):
        parse_size(text)


@given(st.integers(1, 2**50))
def test_a_size_is_printed_close_to_what_it_is(size_bytes):
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.01)


@given(st.binary(max_size=200))
def test_no_bytes_end_in_anything_but_a_message(data):
    with pytest.raises(ToolError):
        parse_layout(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
_FIELD = st.integers(-2, 70) | _JSON
_GROUP = st.fixed_dictionaries(
    {"group_id": _FIELD, "kind": st.sampled_from(["full", "window", "recurrent", "scratch"])},
    optional={"span_tokens": _FIELD, "page_bytes": _FIELD, "window_tokens": _FIELD},
)


@given(
    st.fixed_dictionaries(
        {"max_model_len": _FIELD, "groups": st.lists(_GROUP, max_size=3) | _JSON},
        optional={"workers": _FIELD, "alignment_tokens": _FIELD, "shared_row_bytes": _FIELD},
    ),
    st.sampled_from(
        [("auto", "0"), ("auto", "none"), ("static", "none"), ("static", "0"), ("off", "0")]
    ),
)
def test_no_layout_ends_in_a_traceback(tmp_path_factory, layout, rule):
    path = tmp_path_factory.getbasetemp() / "generated.json"
    path.write_text(json.dumps(layout))
    partition, retention = rule
    common = ["plan", str(path), "--budget", "1MB", "--partition", partition]
    assert main([*common, "--retention", retention]) in {0, 2}
