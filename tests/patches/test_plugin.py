"""The vLLM plugin: which patches, when, and the takeover of the plain connector name."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from patches import PATCHES, UnknownPatch, apply, chosen, plugin
from patches.hooks import forget, when_imported
from patches.plugin import CONNECTOR_MODULE, PATCHES_VARIABLE, TAKEOVER_VARIABLE, SettingError

NAMES = [patch.name for patch in PATCHES]


@pytest.mark.parametrize(
    ("text", "names"),
    [("auto", NAMES), (" AUTO ", NAMES), ("none", []), ("P2", ["P2"]), ("p3, P1", ["P3", "P1"])],
)
def test_patches_are_chosen_by_name(text: str, names: list[str]):
    assert [patch.name for patch in chosen(text)] == names


@pytest.mark.parametrize("text", ["P7", "P1,", "all", "P1 P2"])
def test_an_unknown_name_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(UnknownPatch) as refused:
        chosen(text)
    assert "auto, none or a list of P1, P2, P3, P4, P5, P6" in str(refused.value)


def test_nothing_is_applied_when_nothing_is_asked_for():
    assert set(apply("none").values()) == {"off"}


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported and has not been."""
    (tmp_path / "freshly_written.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "freshly_written"
    sys.modules.pop("freshly_written", None)
    forget("freshly_written")


def test_a_callback_waits_for_the_import_and_sees_the_whole_module(module_file: str):
    seen = []
    when_imported(module_file, lambda: seen.append(sys.modules[module_file].ready))
    assert seen == []
    module = importlib.import_module(module_file)
    assert seen == [True]
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    importlib.reload(module)
    assert seen == [True]


def test_a_callback_for_a_module_that_is_there_comes_at_once(module_file: str):
    importlib.import_module(module_file)
    seen = []
    when_imported(module_file, lambda: seen.append(True))
    assert seen == [True]


def test_only_the_last_callback_counts_and_failures_are_not_hidden(module_file: str):
    when_imported(module_file, lambda: pytest.fail("replaced"))
    when_imported(module_file, lambda: {}["missing"])
    with pytest.raises(KeyError):
        importlib.import_module(module_file)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that the plugin waits for."""
    found: list[str] = []
    monkeypatch.setattr(plugin, "when_imported", lambda name, callback: found.append(name))
    monkeypatch.delenv(PATCHES_VARIABLE, raising=False)
    monkeypatch.delenv(TAKEOVER_VARIABLE, raising=False)
    return found


@pytest.mark.parametrize(
    ("value", "waits"), [(None, True), ("auto", True), ("", True), ("P2", True), ("none", False)]
)
def test_the_plugin_waits_for_lmcaches_connector(
    waiting: list[str], monkeypatch: pytest.MonkeyPatch, value: str | None, waits: bool
):
    if value is not None:
        monkeypatch.setenv(PATCHES_VARIABLE, value)
    plugin.register()
    assert waiting == ([CONNECTOR_MODULE] if waits else [])


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [(PATCHES_VARIABLE, "P99", UnknownPatch), (TAKEOVER_VARIABLE, "yes", SettingError)],
)
def test_a_setting_that_cannot_be_read_stops_the_engine(
    waiting: list[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str, error: type
):
    monkeypatch.setenv(name, value)
    with pytest.raises(error, match=value):
        plugin.register()


def test_importing_the_plugin_loads_no_engine_and_no_lmcache():
    code = (
        "import sys, patches.plugin as p; p.register(); "
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'torch', 'vllm', 'lmcache'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


@pytest.fixture
def registry() -> Iterator[dict]:
    """vLLM's connectors by name, restored afterwards."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    before = dict(KVConnectorFactory._registry)
    yield KVConnectorFactory._registry
    KVConnectorFactory._registry.clear()
    KVConnectorFactory._registry.update(before)


def test_the_takeover_gives_the_plain_name_to_our_connector(
    registry: dict,
    waiting: list[str],
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
):
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from lmc_grouped.connector import LMCacheConnectorV1

    plain = KVTransferConfig(kv_connector="LMCacheConnectorV1", kv_role="kv_both")
    monkeypatch.setenv(TAKEOVER_VARIABLE, "0")
    plugin.register()
    assert KVConnectorFactory.get_connector_class(plain) is not LMCacheConnectorV1
    assert lines == []
    monkeypatch.setenv(TAKEOVER_VARIABLE, "1")
    others = dict(registry)
    plugin.register()
    plugin.register()  # vLLM may load its plugins more than once in a process
    assert lines == 2 * [
        "LMC_GROUPED_TAKEOVER=1: the connector LMCacheConnectorV1 without a module path is "
        "lmc_grouped.connector.LMCacheConnectorV1"
    ]
    assert KVConnectorFactory.get_connector_class(plain) is LMCacheConnectorV1
    assert KVConnectorFactory.supports_hma_config(plain)
    changed = {name for name in registry if registry[name] is not others.get(name)}
    assert changed == {"LMCacheConnectorV1"}


def test_the_entry_point_is_declared_and_is_the_plugin():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (declared,) = project["entry-points"]["vllm.general_plugins"].items()
    entry = metadata.EntryPoint(declared[0], declared[1], "vllm.general_plugins")
    assert entry.load() is plugin.register
