"""Settings: read by LMCache itself, refused with the key, the value and what is allowed."""

import subprocess
import sys
from pathlib import Path

import pytest

from lmc_grouped.adapters.lmcache_config import (
    ConfigError,
    DiskSettings,
    Settings,
    read_settings,
    with_chunks,
)
from tests.factories import full, recurrent, table_of, window


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("LMCACHE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes LMCache's configuration file and points the environment at it."""

    def write(text: str) -> Path:
        path = tmp_path / "lmcache.yaml"
        path.write_text(text, encoding="utf-8")
        monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(path))
        return path

    return write


def test_without_settings_lmcache_gives_five_gigabytes_and_no_chunk():
    assert read_settings({}) == Settings(budget_bytes=5 * 2**30, chunk_tokens=None)


def test_the_environment_means_what_it_means_to_lmcache(monkeypatch):
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.5")
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "784")
    assert read_settings({}) == Settings(budget_bytes=2**29, chunk_tokens=784)


def test_the_file_means_what_it_means_to_lmcache(config_file):
    config_file("max_local_cpu_size: 2\nlocal_cpu: true\n")
    assert read_settings({}) == Settings(budget_bytes=2**31, chunk_tokens=None)
    config_file("max_local_cpu_size: 2\nchunk_size: 256\n")
    assert read_settings({}) == Settings(budget_bytes=2**31, chunk_tokens=256)


def test_the_environment_wins_over_the_file(config_file, monkeypatch):
    config_file("max_local_cpu_size: 2\n")
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "3")
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "64")
    assert read_settings({}) == Settings(budget_bytes=3 * 2**30, chunk_tokens=64)


def test_an_override_in_the_extra_keys_wins_over_both(config_file, monkeypatch):
    config_file("max_local_cpu_size: 2\n")
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "3")
    extra = {"lmcache.max_local_cpu_size": 0.25, "lmcache.chunk_size": 32}
    assert read_settings(extra) == Settings(budget_bytes=2**28, chunk_tokens=32)


@pytest.mark.parametrize("partition", ["auto", "static"])
def test_the_partition_may_be_named(partition):
    assert read_settings({"cpu_group_partition": partition}).budget_bytes > 0


def test_the_way_of_copying_is_handed_on_as_it_is_written():
    assert read_settings({}).transfer == "auto"
    assert read_settings({"lmc_grouped.transfer": "batch"}).transfer == "batch"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"cpu_group_partition": "elastic"}, "cpu_group_partition is 'elastic'; allowed are auto"),
        ({"cpu_group_partition": None}, "cpu_group_partition is None; allowed are auto, static"),
        ({"max_local_cpu_size": 5}, "unknown key 'max_local_cpu_size'; allowed are cpu_group_pa"),
        ({"lmcache.max_cpu_size": 5}, r"lmcache\.max_cpu_size is no setting of this LMCache"),
    ],
)
def test_an_unknown_extra_key_or_value_names_what_is_allowed(extra, message):
    with pytest.raises(ConfigError, match=message):
        read_settings(extra)


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, None, float("nan"), float("inf"), -float("inf"), 1e-12]
)
def test_a_budget_that_is_no_positive_number_is_refused(value):
    with pytest.raises(ConfigError, match=r"max_local_cpu_size is .*; it must be a number above 0"):
        read_settings({"lmcache.max_local_cpu_size": value})


def test_a_zero_budget_in_the_environment_or_the_file_is_refused(config_file, monkeypatch):
    config_file("max_local_cpu_size: 0\n")
    with pytest.raises(ConfigError, match=r"max_local_cpu_size is 0"):
        read_settings({})
    monkeypatch.delenv("LMCACHE_CONFIG_FILE")
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "-4")
    with pytest.raises(ConfigError, match=r"max_local_cpu_size is -4"):
        read_settings({})


def test_text_in_the_extra_keys_is_read_as_lmcache_reads_it():
    settings = read_settings({"lmcache.max_local_cpu_size": "2", "lmcache.chunk_size": "512"})
    assert settings.budget_bytes == 2 * 2**30
    assert settings.chunk_tokens == 512
    with pytest.raises(ConfigError, match="local_cpu is false"):
        read_settings({"lmcache.local_cpu": "false"})


def test_text_that_is_no_number_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"lmcache\.chunk_size is 'many'"):
        read_settings({"lmcache.chunk_size": "many"})


@pytest.mark.parametrize("value", [0, -256, None])
def test_a_chunk_that_is_no_positive_number_of_tokens_is_refused(value):
    with pytest.raises(ConfigError, match=r"chunk_size is .*; it must be a positive number"):
        read_settings({"lmcache.chunk_size": value})


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("remote_url: redis://localhost:6379\n", "remote_url"),
    ],
)
def test_a_tier_that_is_not_served_yet_is_refused_by_name(config_file, text, setting):
    config_file("max_local_cpu_size: 1\n" + text)
    with pytest.raises(ConfigError, match=f"LMCache setting {setting} is .* does not serve yet"):
        read_settings({})


def test_no_tier_at_all_is_refused(config_file):
    config_file("local_cpu: false\nmax_local_cpu_size: 1\n")
    with pytest.raises(ConfigError, match="local_cpu is false"):
        read_settings({})


def test_a_file_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(tmp_path / "absent.yaml"))
    with pytest.raises(ConfigError, match=r"LMCACHE_CONFIG_FILE=.*absent.yaml cannot be read"):
        read_settings({})


@pytest.mark.parametrize("text", ["max_local_cpu_size: [\n", "- 1\n- 2\n", "just words\n"])
def test_a_file_that_is_no_configuration_is_named(config_file, text):
    config_file(text)
    with pytest.raises(ConfigError, match=r"LMCACHE_CONFIG_FILE=.*lmcache.yaml cannot be read"):
        read_settings({})


# The file tier.


def disk(path: object = "/mnt/nvme0", size: object = 2) -> dict[str, object]:
    return {"lmcache.local_disk": path, "lmcache.max_local_disk_size": size}


@pytest.mark.parametrize("written", ["/mnt/nvme0", "file:///mnt/nvme0", "/mnt/nvme0/"])
def test_local_disk_is_a_directory_as_lmcache_writes_it(written, monkeypatch, config_file):
    expected = DiskSettings(Path("/mnt/nvme0"), 2 * 2**30)
    assert read_settings(disk(written)).disk == expected
    config_file(f"local_disk: {written}\nmax_local_disk_size: 2\n")
    assert read_settings({}).disk == expected
    monkeypatch.delenv("LMCACHE_CONFIG_FILE")
    monkeypatch.setenv("LMCACHE_LOCAL_DISK", written)
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_DISK_SIZE", "2")
    assert read_settings({}).disk == expected


def test_a_disk_without_a_size_and_a_size_without_a_disk_are_refused():
    with pytest.raises(ConfigError, match=r"max_local_disk_size is 0.* must be a number above 0"):
        read_settings({"lmcache.local_disk": "/mnt/nvme0"})
    with pytest.raises(ConfigError, match=r"max_local_disk_size is 2.* local_disk is not set"):
        read_settings({"lmcache.max_local_disk_size": 2})


def test_several_directories_are_refused():
    with pytest.raises(ConfigError, match="takes one directory"):
        read_settings(disk("/mnt/nvme0/,/mnt/nvme1/"))


def test_a_disk_does_not_replace_host_memory():
    with pytest.raises(ConfigError, match="local_cpu is false"):
        read_settings(disk() | {"lmcache.local_cpu": False})


def test_an_empty_file_is_the_same_as_none(config_file):
    config_file("")
    assert read_settings({}) == Settings(budget_bytes=5 * 2**30, chunk_tokens=None)


WITHOUT_LMCACHE = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lmcache":
            raise ModuleNotFoundError("No module named 'lmcache'", name="lmcache")

sys.meta_path.insert(0, Block())
from lmc_grouped.adapters.lmcache_config import ConfigError, read_settings
try:
    read_settings({})
except ConfigError as error:
    print(error)
"""


def test_a_missing_lmcache_is_one_clear_error():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_LMCACHE], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("LMCache cannot be imported (No module named 'lmcache')")
    assert "install lmcache 0.5.0 or newer beside vLLM" in result.stdout


# Chunks.


def test_without_a_chunk_the_alignment_of_the_engine_stays():
    table = table_of(full(0, 784), recurrent(1, 784))
    assert with_chunks(table, None, is_sparse=True) is table


def test_a_chunk_of_several_alignments_moves_the_boundaries_apart():
    table = with_chunks(table_of(full(0, 16), window(1, 64, 32)), 256, is_sparse=True)
    assert table.alignment_tokens == 256
    assert [group.span_tokens for group in table.groups] == [16, 32]


@pytest.mark.parametrize("chunk", [256, 600])
def test_a06c_a_chunk_that_does_not_fit_names_the_group_and_the_next_valid_values(chunk):
    table = table_of(full(0, 544), recurrent(1, 544))
    with pytest.raises(ConfigError) as error:
        with_chunks(table, chunk, is_sparse=False)
    assert str(error.value) == (
        f"chunk_size is {chunk}, but group 0 has blocks of 544 tokens; use 544 or 1088, "
        "or leave chunk_size out"
    )


@pytest.mark.parametrize(("chunk", "multiple"), [(256, 1088), (600, 1088), (1200, 1632)])
def test_a06c_where_states_are_sparse_the_advice_is_one_that_would_be_taken(chunk, multiple):
    table = table_of(full(0, 544), recurrent(1, 544))
    with pytest.raises(ConfigError) as error:
        with_chunks(table, chunk, is_sparse=True)
    assert str(error.value) == (
        f"chunk_size is {chunk}, but group 0 has blocks of 544 tokens; use 544 (multiples like "
        f"{multiple} need dense retention), or leave chunk_size out"
    )
    assert with_chunks(table, 544, is_sparse=True) == table


def test_a_chunk_that_only_the_ring_forbids_says_so():
    table = table_of(full(0, 32), alignment=256, scratch_ids=(1,))
    with pytest.raises(ConfigError, match=r"align at 256 tokens, scratch rings included; use 256"):
        with_chunks(table, 288, is_sparse=False)


def test_the_second_group_is_named_when_the_first_one_fits():
    table = table_of(full(0, 16), full(3, 48))
    with pytest.raises(ConfigError, match=r"chunk_size is 64, but group 3 has blocks of 48"):
        with_chunks(table, 64, is_sparse=False)


def test_a_chunk_above_the_alignment_is_refused_where_states_are_sparse():
    table = table_of(full(0, 544), recurrent(1, 544))
    with pytest.raises(ConfigError, match=r"chunk_size is 1088, 2 times the alignment of 544"):
        with_chunks(table, 1088, is_sparse=True)
    assert with_chunks(table, 1088, is_sparse=False).alignment_tokens == 1088
    assert with_chunks(table, 544, is_sparse=True).alignment_tokens == 544
