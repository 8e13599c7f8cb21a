"""What doctor asks of the installed torch, vLLM and LMCache."""

from importlib import metadata
from pathlib import Path

import pytest

from lmc_grouped.tools.doctor.asking import ask, ask_all
from lmc_grouped.tools.doctor.questions import (
    EngineFacts,
    PatchFacts,
    SettingsFacts,
    TorchFacts,
    Unanswered,
)
from patches import PATCHES


def test_the_installed_packages_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "1.5")
    monkeypatch.setenv("LMCACHE_LOCAL_DISK", f"file://{tmp_path}")
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_DISK_SIZE", "2")
    monkeypatch.setenv("LMC_GROUPED_PATCHES", "auto")
    replies = ask_all(["torch", "engine", "settings", "patches"])
    torch, engine = replies["torch"], replies["engine"]
    assert isinstance(torch, TorchFacts)
    assert torch.version == metadata.version("torch")
    assert bool(torch.architectures) is (torch.cuda is not None)
    assert isinstance(engine, EngineFacts)
    assert metadata.version("vllm").startswith(engine.version)
    assert replies["settings"] == SettingsFacts(3 * 2**29, str(tmp_path), 2 * 2**30)
    assert isinstance(replies["patches"], PatchFacts)
    assert list(replies["patches"].states) == [patch.name for patch in PATCHES]


def test_a_configuration_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "-1")
    reply = ask("settings")
    assert isinstance(reply, Unanswered)
    assert reply.is_refusal
    assert "max_local_cpu_size is -1" in reply.reason
