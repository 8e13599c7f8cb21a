"""What stops start-up where the file tier is on."""

import tempfile
from pathlib import Path

import pytest
from vllm.v1.core import kv_cache_utils

from lmc_grouped.connector.scheduler import SchedulerHalf
from lmc_grouped.core.keys import NamespaceError
from lmc_grouped.host.disk import DiskError, StoreInUseError
from tests.connector.disk_lab import DiskEngine
from tests.host.test_disk_places import without_root
from tests.specs import cache_config, engine_config, full_spec


def half_over(root: Path, algorithm: str) -> SchedulerHalf:
    extra = {"lmcache.local_disk": str(root), "lmcache.max_local_disk_size": 1}
    return SchedulerHalf(
        engine_config(extra=extra, hash_algorithm=algorithm), cache_config(full_spec())
    )


def test_an_unset_seed_is_refused_by_name_where_the_hash_needs_it(monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(NamespaceError, match="PYTHONHASHSEED is not set and block hashes by xxh"):
        half_over(tmp_path, "xxhash")
    assert half_over(tmp_path, "sha256"), "vLLM starts this one from a constant"
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert half_over(tmp_path, "xxhash")


def test_without_a_disk_the_seed_does_not_matter(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert SchedulerHalf(engine_config(hash_algorithm="xxhash"), cache_config(full_spec()))


def test_another_seed_is_another_store(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    first = DiskEngine(tmp_path, full_spec())
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    second = DiskEngine(tmp_path, full_spec())
    assert first.tiers[0].directory != second.tiers[0].directory
    first.close()
    second.close()


def test_an_engine_whose_hashes_start_elsewhere_is_told(monkeypatch, tmp_path, our_log):
    engine = DiskEngine(tmp_path, full_spec())
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"elsewhere", raising=False)
    engine.step()
    assert "set PYTHONHASHSEED to the same number in every process" in our_log.text
    engine.close()


def test_a_store_that_is_in_use_stops_start_up(tmp_path):
    engine = DiskEngine(tmp_path, full_spec())
    with pytest.raises(StoreInUseError, match="in use by process"):
        DiskEngine(tmp_path, full_spec())
    engine.close()
    DiskEngine(tmp_path, full_spec()).close()


def test_a_directory_that_cannot_be_written_stops_start_up():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with without_root(), pytest.raises(DiskError, match=f"{name}.* cannot be written"):
            DiskEngine(Path(name), full_spec())
        Path(name).chmod(0o755)


def test_a_file_where_the_directory_should_be_stops_start_up(tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(DiskError, match="is a file where a directory"):
        DiskEngine(tmp_path / "taken", full_spec())


def test_a_quota_below_one_page_stops_start_up(tmp_path):
    with pytest.raises(DiskError):
        DiskEngine(tmp_path, full_spec(), disk_bytes=10)
