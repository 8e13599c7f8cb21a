"""`lmc-grouped inspect` around vLLM: what is refused before it starts, how it is asked,
and the layout file. What vLLM really answers is in tests/engine/test_inspect.py."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lmc_grouped.cli import main
from lmc_grouped.core.groups import ExcludedGroup, GroupTable
from lmc_grouped.tools.inspect import ask, command
from lmc_grouped.tools.inspect.messages import Device, Found, Request
from lmc_grouped.tools.inspect.program import plain_weights
from lmc_grouped.tools.plan.layout import read_layout
from tests.factories import full, recurrent, window

TABLE = GroupTable(
    groups=(
        full(0, span=64, page_bytes=4096, drafter=True),
        window(2, 1024, span=32, page_bytes=512),
        recurrent(3, span=64, page_bytes=2048),
    ),
    excluded=(ExcludedGroup(1, "the engine rebuilds it after a load"),),
    alignment_tokens=256,
    hash_block_tokens=16,
)
FOUND = Found(table=TABLE, max_model_tokens=8192, engine="vLLM 0 on paper")
BUDGET = ("--budget", "64MiB")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory that may be a model: its config.json is JSON."""
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Requests that would have gone to vLLM; each is answered with `FOUND`."""
    requests: list[Request] = []

    def answer(request: Request, *, is_verbose: bool) -> Found:
        assert not is_verbose
        requests.append(request)
        return FOUND

    monkeypatch.setattr(command, "ask_vllm", answer)
    return requests


def inspect(model: Path, *arguments: str) -> int:
    return main(["inspect", "--model", str(model), *arguments])


def test_the_file_that_is_written_is_what_plan_reads(model, asked, tmp_path, capsys):
    output = tmp_path / "layout.json"
    assert inspect(model, "--output", str(output), *BUDGET, "--workers", "2", "--json") == 0
    answered = capsys.readouterr().out
    layout = read_layout(output)
    assert layout.table == TABLE
    assert (layout.name, layout.max_model_tokens, layout.workers) == ("tiny", 8192, 2)
    assert main(["plan", str(output), "--json"]) == 0, "budget and workers are in the file"
    assert capsys.readouterr().out == answered
    assert "vLLM 0 on paper" in json.loads(output.read_text())["note"]


def test_without_output_nothing_is_written(model, asked, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    assert inspect(model, *BUDGET) == 0
    assert "tiny: 1 worker(s)" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_budget_the_file_alone_is_written(model, asked, tmp_path, capsys):
    output = tmp_path / "layout.json"
    assert inspect(model, "--output", str(output)) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert f"wrote {output}" in err
    assert read_layout(output).budget_bytes is None


def test_vllms_names_become_the_request(model, asked):
    settings = ("--max-model-len", "4096", "--block-size", "32", "--dtype", "float32")
    assert inspect(model, *BUDGET, "--workers", "4", *settings) == 0
    assert inspect(model, *BUDGET) == 0
    assert asked == [
        Request(
            model_dir=str(model), workers=4, max_model_tokens=4096, block_tokens=32, dtype="float32"
        ),
        Request(
            model_dir=str(model), workers=1, max_model_tokens=None, block_tokens=None, dtype="auto"
        ),
    ]


def test_an_existing_file_is_overwritten_only_by_force(model, asked, tmp_path, capsys):
    output = tmp_path / "layout.json"
    output.write_text("precious")
    assert inspect(model, "--output", str(output)) == 2
    assert "exists; give another name, or --force" in capsys.readouterr().err
    assert (output.read_text(), asked) == ("precious", [])
    assert inspect(model, "--output", str(output), "--force") == 0
    assert read_layout(output).table == TABLE


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (".", "is a directory"),
        ("absent/layout.json", "there is no directory"),
        ("tiny/config.json/layout.json", "there is no directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_an_impossible_output_is_refused_before_vllm_is_asked(
    model, asked, tmp_path, capsys, output, named
):
    assert inspect(model, "--output", str(tmp_path / output), "--force") == 2
    assert named in capsys.readouterr().err
    assert asked == []


def test_a_directory_without_write_permission_is_refused(
    model, asked, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(command.os, "access", lambda *_: False)  # root may write anywhere
    assert inspect(model, "--output", str(tmp_path / "layout.json")) == 2
    assert "is not writable" in capsys.readouterr().err
    assert asked == []


def test_a_disk_that_is_full_ends_with_a_message(model, asked, capsys):
    assert inspect(model, "--output", "/dev/full", "--force") == 2
    assert "cannot write /dev/full" in capsys.readouterr().err


def test_nothing_to_do_is_refused(model, asked, capsys):
    assert inspect(model) == 2
    assert "--budget is missing" in capsys.readouterr().err
    assert asked == []


BAD_CONFIGS = {
    "has no config.json": None,
    "is not JSON": b"{",
    "codec can't decode": b"\xff\xfe\xff",
    "holds no JSON object": b"[1, 2]",
}


@pytest.mark.parametrize("named", BAD_CONFIGS)
def test_a_directory_that_is_no_model_ends_with_status_2(asked, tmp_path, capsys, named):
    data = BAD_CONFIGS[named]
    if data is not None:
        (tmp_path / "config.json").write_bytes(data)
    assert inspect(tmp_path, *BUDGET) == 2
    err = capsys.readouterr().err
    assert named in err
    assert str(tmp_path) in err
    assert asked == []


def test_a_path_that_is_no_directory_ends_with_status_2(model, asked, tmp_path, capsys):
    (tmp_path / "odd" / "config.json").mkdir(parents=True)
    for path in (tmp_path / "absent", model / "config.json", tmp_path / "odd"):
        assert inspect(path, *BUDGET) == 2
        assert str(path) in capsys.readouterr().err
    assert asked == []


def test_a_model_without_a_cache_is_refused(model, monkeypatch, capsys):
    empty = GroupTable(groups=(), alignment_tokens=16, hash_block_tokens=16)
    found = Found(table=empty, max_model_tokens=512, engine="vLLM 0 on paper")
    monkeypatch.setattr(command, "ask_vllm", lambda *_, **__: found)
    assert inspect(model, *BUDGET) == 2
    assert "has no KV cache" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("--block-size", "0"), ("--max-model-len", "-1"), ("--dtype", "int3")]
)
def test_arguments_out_of_range_are_named_by_argparse(model, capsys, arguments):
    with pytest.raises(SystemExit) as leaving:
        inspect(model, *BUDGET, *arguments)
    assert leaving.value.code == 2
    assert f"argument {arguments[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("quantisation", "is_taken_off"),
    [
        (None, False),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, True),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, True),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, False),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, False),
        ({"config_groups": [{"kv_cache_quant_config": {"bits": 8}}]}, False),
    ],
)
def test_only_a_quantisation_that_spares_the_cache_is_taken_off(quantisation, is_taken_off):
    settings = {} if quantisation is None else {"quantization_config": quantisation}
    assert plain_weights(settings) == ({"quantization_config": None} if is_taken_off else {})


@pytest.fixture
def answer_with(tmp_path, monkeypatch):
    """Put other code in the place of the program that runs vLLM."""

    def install(code: str) -> None:
        prologue = """
            import os, sys
            from pathlib import Path
            import msgspec
            from lmc_grouped.tools.inspect import messages
            request = msgspec.json.decode(sys.stdin.buffer.read(), type=messages.Request)
            reply = lambda it: Path(sys.argv[1]).write_bytes(msgspec.json.encode(it))
        """
        source = textwrap.dedent(prologue) + textwrap.dedent(code)
        (tmp_path / "stand_in_program.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(ask, "PROGRAM", "stand_in_program")

    return install


FOUND_CODE = """
    import msgspec
    from lmc_grouped.core.groups import GroupTable
    table = GroupTable(groups=(), alignment_tokens=request.workers, hash_block_tokens=1)
    found = messages.Found(table=table, max_model_tokens=8, engine=str(request.device))
"""


def ask_for(workers: int) -> Found:
    request = Request(
        model_dir="m", workers=workers, max_model_tokens=None, block_tokens=None, dtype="auto"
    )
    return ask.ask_vllm(request, is_verbose=False)


def test_the_answer_comes_back_whatever_vllm_prints(answer_with, capfd):
    answer_with(FOUND_CODE + "    print('noise'); print('more', file=sys.stderr); reply(found)")
    found = ask_for(workers=4)
    assert (found.table.alignment_tokens, found.engine) == (4, Device.META)
    assert capfd.readouterr() == ("", "")


def test_the_program_is_kept_from_the_network(answer_with, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    answer_with(FOUND_CODE + "    assert os.environ['HF_HUB_OFFLINE'] == '1'; reply(found)")
    assert ask_for(workers=1) == ask_for(workers=1)


def test_a_model_that_needs_memory_is_asked_for_again_with_some(answer_with):
    refused = "messages.Refused(reason='meta', needs_memory=True)"
    answer_with(FOUND_CODE + f"    reply(found if request.device == 'cpu' else {refused})")
    assert ask_for(workers=1).engine == Device.CPU


def test_what_vllm_refuses_is_said_in_its_words(answer_with, model, capsys):
    answer_with("reply(messages.Refused(reason='no such architecture')); raise SystemExit(1)")
    assert inspect(model, *BUDGET) == 2
    err = capsys.readouterr().err
    assert f"vLLM does not take {model} with these settings: no such architecture" in err


def test_a_program_that_dies_ends_with_what_it_last_wrote(answer_with, model, capsys):
    answer_with("print('out of memory', flush=True); os.kill(os.getpid(), 9)")
    assert inspect(model, *BUDGET) == 2
    err = capsys.readouterr().err
    assert "vLLM ended with status -9 and no answer" in err
    assert err.endswith("it last wrote:\nout of memory\n")


def test_a_machine_without_vllm_is_told_what_to_do(model, monkeypatch, capsys):
    monkeypatch.setattr(ask.importlib.util, "find_spec", lambda _: None)
    assert inspect(model, *BUDGET) == 2
    assert "vLLM, which is not installed here" in capsys.readouterr().err


def test_asking_for_help_loads_no_engine():
    code = (
        "import sys; from lmc_grouped.tools.inspect import command; "
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'torch', 'vllm', 'lmcache'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n")
