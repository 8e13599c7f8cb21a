"""What the releases' compiled operations hold for GPUs, read from their wheels."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from compat.environments import wheel_of
from compat.expectations import Extension, extension
from compat.releases import find, newest, releases
from lmc_grouped.adapters import lmcache_ops
from lmc_grouped.cli import main
from lmc_grouped.host.libraries import read_wheel
from tests.compat.conftest import ROOT
from tests.compat.test_releases import QUICK

VOLTA, TURING, HOPPER, BLACKWELL = (7, 0), (7, 5), (9, 0), (12, 0)
FETCHED = [version for version in QUICK if version != newest().version]
"""The newest is installed: `make test` need not fetch it."""


def seen(found: lmcache_ops.Extension) -> Extension:
    """What was read, as the expectations write it."""
    library = found.library
    assert library.cuda_major is not None
    everywhere = frozenset.intersection(*library.code.containers)
    named = {
        is_ptx: tuple(str(each) for each in sorted(everywhere) if each.is_ptx is is_ptx)
        for is_ptx in (False, True)
    }
    assert named[False] == tuple(map(str, library.code.sass)), "an architecture is not everywhere"
    return Extension(
        found.module, len(library.code.containers), named[False], named[True], library.cuda_major
    )


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(r.version, marks=() if r.version in FETCHED else pytest.mark.compat)
        for r in releases()
    ],
)
def test_a_wheel_holds_what_is_expected_and_nothing_for_volta(
    version: str, capsys: pytest.CaptureFixture[str]
):
    wheel: Path = wheel_of(find(version), ROOT / ".compat")
    found = lmcache_ops.of_wheel(read_wheel(wheel, "lmcache/"))
    assert found is not None
    assert seen(found) == extension(version)
    assert not found.code_for(VOLTA).can_run
    assert all(found.code_for(capability).can_run for capability in (TURING, HOPPER, BLACKWELL))
    assert main(["doctor", "--wheel", str(wheel), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    known = extension(version)
    assert (told["sass"], told["ptx"]) == (list(known.sass), [])
    assert told["cuda_major"] == known.cuda_major
    assert "libcudart.so.13" in told["needed"]


def test_the_installed_release_holds_what_is_expected():
    assert seen(lmcache_ops.installed()) == extension(metadata.version("lmcache"))


def test_no_release_is_expected_to_serve_volta():
    for release in releases():
        known = extension(release.version)
        assert known.ptx == ()
        assert "sm_70" not in known.sass
        assert known.cuda_major == 13
