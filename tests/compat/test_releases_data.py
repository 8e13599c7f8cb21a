"""The pins, the unpacked releases, the generated page."""

import hashlib
import zipfile
from datetime import date
from pathlib import Path

import pytest

from compat import environments
from compat.cases import CASES
from compat.environments import FetchError, unpacked
from compat.expectations import expectations
from compat.releases import FOLDER, PinError, Release, find, is_pinned, newest, releases, revisions
from compat.report import documentation
from patches import PATCHES


def test_the_page_is_what_the_data_says():
    page = FOLDER.parent / "docs" / "compat.md"
    assert page.read_text() == documentation(), "run `python -m compat docs`"


def test_every_pinned_release_has_expectations_and_hashes():
    assert [r.version for r in releases()] == [f"0.5.{n}" for n in range(7)]
    dates = [r.released for r in releases()]
    assert dates == sorted(dates)
    for release in releases():
        assert all(len(digest) == 64 for digest in release.wheels.values())
        assert all(f"-{release.version}-" in name for name in release.wheels)
        expectations(release.version)
    written = {path.stem for path in (FOLDER / "expected").glob("*.toml")}
    assert written == {r.version for r in releases()}


def test_case_names_are_unique_and_patches_exist():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    known = {patch.name for patch in PATCHES}
    for release in releases():
        for entry in expectations(release.version).values():
            assert set(entry.mended_by) <= known


def test_the_revisions_of_the_field_reports_are_recorded():
    assert [r.commit[:8] for r in revisions()] == ["b5d109ea", "fcb67c0a", "322fecf8", "616484d1"]


def test_a_release_that_is_not_pinned_is_refused_with_the_pins():
    assert not is_pinned("0.4.9")
    with pytest.raises(PinError) as refused:
        find("0.4.9")
    assert "0.5.6" in str(refused.value)


def wheel_of(folder: Path, content: str) -> tuple[str, str]:
    """A tiny wheel in the cache; its file name and hash."""
    name = f"lmcache-9.9.9-{newest().python_tag}-none-any.whl"
    path = folder / "wheels" / name
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lmcache/__init__.py", content)
    return name, hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_cached_wheel_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name, digest = wheel_of(tmp_path, "first = True")
    monkeypatch.setattr(environments, "_pip", lambda *a: pytest.fail("nothing is to be fetched"))
    release = Release("9.9.9", date(2026, 1, 1), {name: digest})
    target = unpacked(release, tmp_path)
    assert (target / "lmcache" / "__init__.py").read_text() == "first = True"
    (tmp_path / "wheels" / name).unlink()
    assert unpacked(release, tmp_path) == target


def test_a_wheel_with_another_hash_is_not_unpacked(tmp_path: Path):
    name, digest = wheel_of(tmp_path, "other = True")
    for pins in ({name: "0" * 64}, {}):
        with pytest.raises(PinError) as refused:
            unpacked(Release("9.9.9", date(2026, 1, 1), pins), tmp_path)
        assert digest in str(refused.value)
    assert not (tmp_path / "lmcache-9.9.9").exists()


def test_a_failed_download_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError) as failed:
        unpacked(Release("9.9.9", date(2026, 1, 1), {}), tmp_path)
    assert "9.9.9" in str(failed.value)
