"""CRC32 of pages: zlib-ng and zlib give one number, and each reads what the other wrote."""

import random
import subprocess
import sys
import zlib
from collections.abc import Callable

import pytest
from zlib_ng import zlib_ng

from lmc_grouped.host.disk import checksum
from tests.factories import disk_key

WITHOUT_ZLIB_NG = """
import sys
sys.modules["zlib_ng"] = None
from lmc_grouped.cli import main
code = main(sys.argv[1:])
from lmc_grouped.host.disk.checksum import CRC32_LIBRARY
print("CRC32 of", CRC32_LIBRARY)
sys.exit(code)
"""


@pytest.mark.parametrize("compute", [zlib.crc32, zlib_ng.crc32, checksum.crc32])
def test_the_crc_is_the_one_of_the_published_check_value(compute: Callable[[bytes], int]):
    # https://reveng.sourceforge.io/crc-catalogue/17plus.htm: CRC-32/ISO-HDLC
    assert compute(b"123456789") == 0xCBF43926


def test_both_libraries_give_the_same_number_at_every_length_and_alignment():
    noise = random.Random(0).randbytes(70_000)
    lengths = [*range(300), 4_095, 4_096, 5_121, 65_536, 69_000]
    for length in lengths:
        view = memoryview(noise)[length % 64 : length % 64 + length]
        assert zlib_ng.crc32(view) == zlib.crc32(view), length


def test_one_flipped_bit_gives_another_number():
    page = bytearray(random.Random(1).randbytes(8_192))
    before = checksum.crc32(page)
    page[5_000] ^= 16
    assert checksum.crc32(page) != before


def test_the_fast_library_is_used_where_it_is_installed_and_zlib_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
):
    assert checksum.choose_crc32() == (zlib_ng.crc32, "zlib-ng")
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    assert checksum.choose_crc32() == (zlib.crc32, "zlib")


def test_a_store_written_with_one_library_is_verified_with_the_other(open_disk, tmp_path):
    disk = open_disk()
    disk.put(*(disk_key(group_id, number) for number in range(3) for group_id in (0, 1)))
    disk.tier.close()
    command = [sys.executable, "-c", WITHOUT_ZLIB_NG, "disk", "verify", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("CRC32 of zlib\n")
    page_file = disk.tier.directory / "group_1.pages"
    damaged = bytearray(page_file.read_bytes())
    damaged[7] ^= 1
    page_file.write_bytes(damaged)
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
