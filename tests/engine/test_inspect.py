"""`lmc-grouped inspect` gives the groups that a started engine's connector has."""

import json
import shutil
from pathlib import Path

import pytest

from lmc_grouped.cli import main
from lmc_grouped.tools.plan.layout import read_layout
from lmc_grouped.tools.tiny_models import find_recipe
from tests.engine.lab import Lab


def test_the_groups_are_those_of_a_started_engine(
    lab: Lab, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    served = lab.llm.llm_engine.vllm_config.model_config
    recipe = find_recipe(Path(served.model).name)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(Path(served.model) / "config.json", bare)
    output = tmp_path / "layout.json"
    settings = ["--block-size", str(recipe.block_size_tokens), "--dtype", recipe.dtype]
    settings += ["--mamba-ssm-cache-dtype", recipe.state_dtype]
    settings += ["--max-model-len", str(served.max_model_len), "--budget", "64MiB", "--json"]
    status = main(["inspect", "--model", str(bare), "--output", str(output), *settings])
    out, err = capfd.readouterr()
    assert status == 0, err
    layout = read_layout(output)
    assert layout.table == lab.worker.table
    assert layout.max_model_tokens == served.max_model_len
    assert [group["kind"] for group in json.loads(out)["groups"]] == list(recipe.groups)


def test_a_directory_that_describes_no_model_ends_with_vllms_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["inspect", "--model", str(tmp_path), "--budget", "1GiB"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "model_type" in err
    assert "Traceback" not in err
