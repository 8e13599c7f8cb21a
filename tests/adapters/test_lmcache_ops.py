"""Whether LMCache's compiled operations run on a device, by reading and loading them."""

import sys
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from lmc_grouped.adapters import lmcache_ops
from lmc_grouped.adapters.lmcache_ops import Extension, ExtensionError, can_run, installed
from lmc_grouped.host.libraries import read_library
from tests.binaries import fat_binary, library, sass

VOLTA, AMPERE, HOPPER = (7, 0), (8, 0), (9, 0)


def release(folder: Path, data: bytes, name: str = f"cuda_ops{EXTENSION_SUFFIXES[0]}"):
    """An LMCache to be found in `folder`; the path of its extension."""
    package = folder / "lmcache"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('nobody may import this')\n")
    (package / name).write_bytes(data)
    return package / name


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [n for n in sys.modules if n.partition(".")[0] == "lmcache"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "module"),
    [
        (f"cuda_ops{EXTENSION_SUFFIXES[0]}", "lmcache.cuda_ops"),
        (f"c_ops{EXTENSION_SUFFIXES[0]}", "lmcache.c_ops"),
        ("cuda_ops.abi3.so", "lmcache.cuda_ops"),
    ],
)
def test_the_extension_is_found_under_each_releases_name_without_importing_lmcache(
    on_path: Path, file: str, module: str
):
    release(on_path, library(fat_binary(sass(75))), file)
    assert installed().module == module
    assert "lmcache" not in sys.modules


@pytest.mark.parametrize("file", ["lmcache_native.so", "cuda_ops.cpython-39-x86_64-linux-gnu.so"])
def test_a_build_without_cuda_operations_for_this_python_is_named(on_path: Path, file: str):
    release(on_path, library(), file)
    answer = can_run(AMPERE)
    assert not answer.can_run
    assert "no compiled CUDA operations" in answer.reason
    assert str(on_path) in answer.reason


def test_a_damaged_extension_is_a_reason_and_not_a_failure(on_path: Path):
    release(on_path, library(fat_binary(sass(75)))[:-9])
    answer = can_run(AMPERE)
    assert not answer.can_run
    assert "cut short" in answer.reason


def test_a_missing_lmcache_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lmcache_ops, "PACKAGE", "no_such_package")
    assert can_run(AMPERE) == lmcache_ops.Answer(False, "LMCache is not installed")


def made_up(folder: Path, *numbers: int) -> Extension:
    path = folder / "cuda_ops.so"
    path.write_bytes(library(fat_binary(*map(sass, numbers))))
    return Extension("lmcache.cuda_ops", read_library(path))


def test_without_code_for_the_device_the_load_is_not_even_tried(tmp_path: Path):
    answer = can_run(
        VOLTA,
        find=lambda: made_up(tmp_path, 75, 80),
        try_load=lambda extension: pytest.fail("it was loaded"),
    )
    assert not answer.can_run
    assert answer.reason == (
        "lmcache.cuda_ops holds SASS sm_75, sm_80; PTX none: nothing for sm_70"
    )


@pytest.mark.parametrize("failure", [None, "ImportError: libcudart.so.13: no such file"])
def test_with_code_for_the_device_the_load_decides(tmp_path: Path, failure: str | None):
    answer = can_run(VOLTA, find=lambda: made_up(tmp_path, 70), try_load=lambda extension: failure)
    assert answer.can_run is (failure is None)
    assert (failure or "and it loads") in answer.reason


def test_a_damaged_library_fails_to_load_in_another_process(tmp_path: Path):
    """The made-up library has no code at all: the dynamic linker refuses it."""
    failure = lmcache_ops.load_failure(made_up(tmp_path, 70))
    assert failure is not None
    assert "ImportError" in failure


def test_an_extension_that_ends_its_process_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lmcache_ops, "_LOAD", "import os; os.abort()")
    failure = lmcache_ops.load_failure(made_up(tmp_path, 70))
    assert failure == "the process that loaded it was ended by signal 6"
    monkeypatch.setattr(lmcache_ops, "_LOAD", "import time; time.sleep(60)")
    monkeypatch.setattr(lmcache_ops, "LOAD_TIMEOUT_SECONDS", 0.2)
    assert "more than 0.2 s" in str(lmcache_ops.load_failure(made_up(tmp_path, 70)))


def test_the_installed_release_has_nothing_for_volta_and_needs_cuda_elsewhere():
    """Where torch has no CUDA the extension cannot load: read on whatever runs the tests."""
    extension = installed()
    assert extension.module == "lmcache.cuda_ops", metadata.version("lmcache")
    answer = can_run(VOLTA)
    assert not answer.can_run
    assert answer.reason.endswith("PTX none: nothing for sm_70")
    assert extension.code_for(HOPPER).can_run
    import torch

    if torch.version.cuda is None:
        refused = can_run(HOPPER)
        assert not refused.can_run
        assert "does not load: ImportError: lib" in refused.reason


def test_an_extension_that_is_in_use_here_counts_as_loaded():
    """LMCache's host library stands for the other: it loads without CUDA."""
    import torch  # noqa: F401
    from lmcache import lmcache_native

    path = Path(lmcache_native.__file__)
    extension = Extension("lmcache.lmcache_native", read_library(path))
    assert lmcache_ops.is_loaded(extension)
    assert lmcache_ops.load_failure(extension) is None
    assert not lmcache_ops.is_loaded(installed())


def test_the_extension_is_found_among_the_libraries_of_a_wheel(tmp_path: Path):
    ops = made_up(tmp_path, 75).library
    named = [
        type(ops)(name, ops.needed, ops.code)
        for name in ("lmcache/lmcache_fs.so", "lmcache/c_ops.cpython-311.so")
    ]
    found = lmcache_ops.of_wheel(tuple(named))
    assert found == Extension("lmcache.c_ops", named[1])
    assert lmcache_ops.of_wheel((named[0],)) is None


def test_a_missing_extension_is_an_error_for_who_asks_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lmcache_ops, "PACKAGE", "no_such_package")
    with pytest.raises(ExtensionError, match="not installed"):
        installed()
