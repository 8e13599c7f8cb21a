"""`lmc-grouped disk`: what it lists, finds and deletes, and bad input."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc_grouped.cli import main
from lmc_grouped.host.disk import DiskTier, Quota, ReadOutcome
from lmc_grouped.host.disk.groupfile import pages_path
from lmc_grouped.tools.disk.ages import format_age, parse_age
from lmc_grouped.tools.disk.progress import Progress
from tests.factories import A18_PAGE_BYTES, disk_key, namespace, page_of

MODELS = {"alpha": namespace(model="alpha"), "beta": namespace(model="beta", dtype="float32")}
PAGES = 5


def open_tier(root: Path, model: str) -> DiskTier:
    return DiskTier.open(root, MODELS[model], 0, Quota(10**6), threads=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two namespaces with five pages of each of two groups; alpha's are the older ones."""
    for model in MODELS:
        with open_tier(tmp_path, model) as tier:
            for number in range(PAGES):
                for group_id, size in A18_PAGE_BYTES.items():
                    key = disk_key(group_id, number)
                    tier.put(key, page_of(key, size))
    return tmp_path


def disk(*arguments: object) -> int:
    return main(["disk", *map(str, arguments)])


def digest(model: str) -> str:
    return MODELS[model].digest()


def directory_of(root: Path, model: str) -> Path:
    return root / digest(model) / "rank_0"


def hits(root: Path, model: str) -> int:
    keys = [disk_key(group_id, n) for n in range(PAGES) for group_id in A18_PAGE_BYTES]
    with open_tier(root, model) as tier:
        outcomes = tier.read(keys, [bytearray(A18_PAGE_BYTES[key[0]]) for key in keys])
        return outcomes.count(ReadOutcome.HIT)


def test_ls_names_model_layout_groups_pages_bytes_and_age(root, capsys):
    assert disk("ls", root) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith(digest("alpha")[:12]))
    fields = line.split()
    assert fields[1:] == [
        "0", "alpha", "equal", "spans", "0", "full", "4.00", "KiB", "5", "20.0", "KiB", fields[-1],
    ]  # fmt: skip
    assert fields[-1].endswith("s")
    assert "2 stores, 20 pages" in out


def test_ls_shows_only_the_namespace_that_was_asked_for(root, capsys):
    assert disk("ls", root, "--namespace", digest("beta")[:8]) == 0
    out = capsys.readouterr().out
    assert "beta" in out
    assert "alpha" not in out


def test_ls_shows_what_it_cannot_read_and_what_is_set_aside(root, capsys):
    (directory_of(root, "alpha") / "namespace.json").write_text("{")
    (directory_of(root, "beta") / "group_0.pages.set-aside").write_bytes(bytes(5_000))
    assert disk("ls", root) == 0
    out = capsys.readouterr().out
    assert "namespace.json is missing or of another version" in out
    assert "unknown" in out
    assert "8.00 KiB set aside" in out


def test_verify_passes_what_is_right(root, capsys):
    assert disk("verify", root) == 0
    out = capsys.readouterr().out
    assert out.count("5 pages, 20.0 KiB: right") == 2
    assert "DAMAGED" not in out


def test_verify_names_the_damaged_group_and_leaves_with_1(root, capsys):
    path = pages_path(directory_of(root, "beta"), 1)
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)
    os.truncate(path, len(data) - 1)
    assert disk("verify", root) == 1
    damaged = [line for line in capsys.readouterr().out.splitlines() if "DAMAGED" in line]
    assert damaged == [
        "  group 1: 4 pages, 4.00 KiB: DAMAGED: 1 pages whose bytes changed, 1 pages cut short"
    ]


def test_verify_notices_a_namespace_file_that_was_changed(root, capsys):
    path = directory_of(root, "alpha") / "namespace.json"
    path.write_bytes(MODELS["beta"].to_json())
    assert disk("verify", root) == 1
    assert "of another namespace" in capsys.readouterr().out


def test_verify_leaves_a_store_in_use_alone_and_says_so(root, capsys):
    with open_tier(root, "alpha"):
        assert disk("verify", root) == 2
    captured = capsys.readouterr()
    assert f"not verified: in use by process {os.getpid()}" in captured.err
    assert "1 of 2 stores are in use" in captured.err
    assert captured.out.count(": right") == 2


def test_gc_only_says_what_would_go(root, capsys):
    assert disk("gc", root, "--namespace", digest("alpha")) == 0
    assert "would go; `--delete` deletes them" in capsys.readouterr().out
    assert hits(root, "alpha") == 2 * PAGES


def test_gc_deletes_a_namespace(root):
    assert disk("gc", root, "--namespace", digest("alpha"), "--delete") == 0
    assert [path.name for path in root.iterdir()] == [digest("beta")]
    assert hits(root, "beta") == 2 * PAGES


def test_gc_by_size_deletes_the_oldest_pages_over_all_namespaces(root, capsys):
    # 50 KiB in all, 25 per namespace: four of alpha's pairs go, one stays.
    assert disk("gc", root, "--max-bytes", "30KiB", "--delete") == 0
    assert "8 pages deleted" in capsys.readouterr().out
    assert (hits(root, "alpha"), hits(root, "beta")) == (2, 2 * PAGES)
    assert disk("gc", root, "--max-bytes", "30KiB") == 0
    assert "nothing to delete" in capsys.readouterr().out


def test_gc_gives_the_room_of_deleted_pages_back(root):
    path = pages_path(directory_of(root, "alpha"), 0)
    before = path.stat().st_blocks
    disk("gc", root, "--max-bytes", "30KiB", "--delete")
    assert path.stat().st_blocks * 512 <= before * 512 - 3 * 4_096


def test_gc_by_age_deletes_what_is_older(root, capsys, monkeypatch):
    assert disk("gc", root, "--older-than", "1h") == 0
    assert "nothing to delete" in capsys.readouterr().out
    later = time.time_ns() + int(3_601e9)
    monkeypatch.setattr("lmc_grouped.tools.disk.cleaning.time.time_ns", lambda: later)
    assert disk("gc", root, "--older-than", "1h", "--delete") == 0
    assert list(root.iterdir()) == []


def test_gc_leaves_files_of_others_and_says_so(root, capsys):
    mine = directory_of(root, "alpha") / "notes.txt"
    mine.write_text("keep")
    assert disk("gc", root, "--namespace", digest("alpha"), "--delete") == 0
    assert f"{mine}: left" in capsys.readouterr().err
    assert [path.name for path in mine.parent.iterdir()] == ["lock", "notes.txt"]


def test_gc_never_touches_a_store_in_use(root, capsys):
    with open_tier(root, "alpha") as tier:
        for more in (["--max-bytes", "30KiB"], []):
            arguments = [root, "--namespace", digest("alpha"), *more, "--delete"]
            if more:
                arguments[-2] = "1KiB"
            assert disk("gc", *arguments) == 2
            assert f"in use by process {os.getpid()}" in capsys.readouterr().err
        assert len(tier.stored_pages()) == 2 * PAGES
    assert hits(root, "alpha") == 2 * PAGES


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ls", "none"], "does not exist: give the directory of local_disk"),
        (["verify", "file"], "is a file"),
        (["gc", "."], "gc needs --older-than, --max-bytes or --namespace"),
        (["gc", ".", "--older-than", "soon"], "'soon' is not an age"),
        (["gc", ".", "--max-bytes", "0"], "less than one byte"),
        (["ls", ".", "--namespace", "ffff"], "'ffff' is no namespace"),
        (["ls", ".", "--namespace", "1"], "'1' is too short"),
        (["ls"], "required: DIRECTORY"),
        ([], "required: ACTION"),
    ],
)
def test_bad_input_leaves_with_2_and_a_message(root, capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(root)
    (root / "file").write_text("")
    try:
        status = disk(*arguments)
    except SystemExit as leaving:  # argparse's own way out
        status = leaving.code
    assert status == 2
    assert says in capsys.readouterr().err


def test_a_prefix_of_two_namespaces_is_refused(tmp_path, capsys):
    for name in ("abcd" * 8, "abcdef01" * 4):
        (tmp_path / name / "rank_0").mkdir(parents=True)
    assert disk("ls", tmp_path, "--namespace", "abcd") == 2
    assert "is the beginning of 2 namespaces" in capsys.readouterr().err


@given(st.binary(max_size=300))
def test_no_namespace_file_ends_in_a_traceback(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("any")
    directory = root / ("0" * 32) / "rank_0"
    directory.mkdir(parents=True)
    (directory / "namespace.json").write_bytes(data)
    (directory / "group_0.records").write_bytes(data)
    (directory / "group_0.pages").write_bytes(data)
    assert disk("ls", root) == 0
    assert disk("verify", root) == 1


def test_the_command_needs_neither_torch_nor_vllm_nor_lmcache(root):
    code = (
        "import sys; from lmc_grouped.cli import main; main(sys.argv[1:]); "
        "print({name.split('.')[0] for name in sys.modules} & {'torch', 'vllm', 'lmcache'})"
    )
    for action in ("ls", "verify"):
        done = subprocess.run(
            [sys.executable, "-c", code, "disk", action, str(root)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == "set()"


@given(st.floats(0, 10**9))
def test_an_age_is_printed_short(seconds):
    assert len(format_age(seconds)) <= 6


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5_400), ("36h", 129_600), ("7d", 604_800), ("1.5w", 907_200)]
)
def test_ages_are_read_as_people_write_them(text, seconds):
    assert parse_age(text) == seconds


class Screen:
    def __init__(self, *, is_terminal: bool) -> None:
        self.text = ""
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_long_work_and_not_short_work(monkeypatch, is_terminal):
    now = [0.0]
    monkeypatch.setattr("lmc_grouped.tools.disk.progress.time.monotonic", lambda: now[0])
    screen = Screen(is_terminal=is_terminal)
    progress = Progress("verify", 4 * 2**20, screen)
    progress.advance(2**20)
    assert screen.text == ""
    now[0] = 60.0
    progress.advance(2**20)
    progress.finish()
    assert "50% 2.00 MiB of 4.00 MiB" in screen.text
    assert screen.text.startswith("\r") == is_terminal
    assert screen.text.endswith("\n")
