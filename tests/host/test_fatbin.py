"""Architectures in fat binaries that are written here byte by byte."""

import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc_grouped.host import elf
from lmc_grouped.host.elf import BinaryError
from lmc_grouped.host.fatbin import Architecture, DeviceCode, device_code
from lmc_grouped.host.libraries import read_library, read_wheel
from tests.binaries import FAMILY, FEATURES, Image, fat_binary, library, ptx, sass

RELEASE_LIKE = library(
    fat_binary(*(sass(number) for number in (75, 80, 100))),
    fat_binary(*(sass(number) for number in (75, 80, 100))),
    needed=("libtorch.so", "libcudart.so.13", "libc.so.6"),
)


def code_of(data: bytes) -> DeviceCode:
    return device_code(elf.parse(data))


def names(code: DeviceCode) -> tuple[list[str], list[str]]:
    return [str(each) for each in code.sass], [str(each) for each in code.ptx]


def test_every_architecture_is_listed_once_whatever_the_length_of_its_header():
    assert names(code_of(RELEASE_LIKE)) == (["sm_75", "sm_80", "sm_100"], [])
    assert len(code_of(RELEASE_LIKE).containers) == 2


def test_compressed_ptx_and_code_of_one_architecture_or_family_are_told_apart():
    data = library(
        fat_binary(sass(70), sass(90, FEATURES), ptx(70), ptx(90, FEATURES), sass(100, FAMILY))
    )
    assert names(code_of(data)) == (
        ["sm_70", "sm_90a", "sm_100f"],
        ["compute_70", "compute_90a"],
    )


def test_relocatable_code_is_found_in_its_own_section():
    data = library(fat_binary(sass(70)), section="__nv_relfatbin", gap=0)
    assert names(code_of(data)) == (["sm_70"], [])


def test_a_library_without_fat_binaries_holds_no_code_for_any_device():
    for data in (library(), library(fat_binary()), library(fat_binary(sass(70)), section=".data")):
        assert code_of(data).containers == ()
        assert not code_of(data).serves((7, 0))


def test_images_of_other_kinds_are_named_and_serve_nobody(tmp_path: Path):
    path = tmp_path / "other.so"
    path.write_bytes(library(fat_binary(sass(75), Image(8, 70))))
    found = read_library(path)
    assert not found.code.serves((7, 0))
    assert found.describe_code() == "SASS sm_75; PTX none; an image of unknown kind 8"


@pytest.mark.parametrize(
    ("architecture", "served", "not_served"),
    [
        (Architecture(70), [(7, 0), (7, 2), (7, 5)], [(6, 1), (8, 0)]),
        (Architecture(75), [(7, 5)], [(7, 0), (8, 0), (12, 0)]),
        (Architecture(86), [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        (Architecture(90, "a"), [(9, 0)], [(8, 9), (10, 0)]),
        (Architecture(100, "f"), [(10, 0), (10, 3)], [(9, 0), (12, 0)]),
        (Architecture(100, "a"), [(10, 0)], [(10, 3)]),
        (Architecture(70, is_ptx=True), [(7, 0), (8, 0), (12, 0)], [(6, 1)]),
        (Architecture(90, "a", is_ptx=True), [(9, 0)], [(7, 0), (10, 0)]),
        (Architecture(120, "f", is_ptx=True), [(12, 0), (12, 1)], [(10, 0)]),
    ],
)
def test_an_image_serves_the_devices_that_the_guide_says(
    architecture: Architecture,
    served: list[tuple[int, int]],
    not_served: list[tuple[int, int]],
):
    assert [c for c in served if not architecture.serves(c)] == []
    assert [c for c in not_served if architecture.serves(c)] == []


def test_an_architecture_is_read_back_from_its_name():
    every = [Architecture(90, "a"), Architecture(70, is_ptx=True), Architecture(120, "f")]
    assert [Architecture.parse(str(each)) for each in every] == every
    assert [Architecture.parse(name) for name in ("sm_", "gfx90a", "sm_90x")] == [None] * 3


def test_a_device_is_served_only_if_every_fat_binary_has_code_for_it():
    half = library(fat_binary(sass(70), sass(75)), fat_binary(sass(75)))
    assert code_of(half).serves((7, 5))
    assert not code_of(half).serves((7, 0))
    mended = library(fat_binary(sass(70), sass(75)), fat_binary(ptx(60)))
    assert code_of(mended).serves((7, 0))


def test_needed_libraries_and_the_major_version_of_the_runtime_are_read(tmp_path: Path):
    path = tmp_path / "ops.so"
    path.write_bytes(RELEASE_LIKE)
    found = read_library(path)
    assert found.needed == ("libtorch.so", "libcudart.so.13", "libc.so.6")
    assert found.cuda_major == 13
    path.write_bytes(library(needed=("libc.so.6",)))
    assert read_library(path).cuda_major is None


def wheel(path: Path, **contents: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name.replace("__", "/").replace("_so", ".so"), data)
    return path


def test_a_wheel_is_read_without_unpacking_it(tmp_path: Path):
    path = wheel(
        tmp_path / "a.whl", pkg__ops_so=RELEASE_LIKE, pkg__host_so=library(), other__x_so=library()
    )
    found = read_wheel(path, "pkg/")
    assert [each.name for each in found] == ["pkg/host.so", "pkg/ops.so"]
    assert found[0].describe_code() == "no device code"
    assert found[1].describe_code() == "SASS sm_75, sm_80, sm_100; PTX none"
    assert [each.name for each in tmp_path.iterdir()] == ["a.whl"]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "empty"),
        (b"#!/bin/sh\n", "no shared library"),
        (b"\x7fELF", "cut short"),
        (b"\x7fELF\x01\x01" + bytes(100), "only 64-bit"),
        (b"\x7fELF\x02\x01" + bytes(100), "no section table"),
        (RELEASE_LIKE[:-1], "cut short"),
        (library(fat_binary(sass(70), magic=0x466243B1)), "no fat binary at byte"),
        (library(fat_binary(sass(70))[:-1], gap=0), "cut short: a fat binary ends"),
        (library(b"\x50\xed\x55\xba", gap=0), "no room for a fat binary's header"),
        (library(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 12) + bytes(12)), "no room for an image"),
        (library(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + bytes(64)), "header of 0 bytes"),
        (library(struct.pack("<IHHQ", 0xBA55ED50, 1, 8, 64) + bytes(64)), "header of 8 bytes"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_file_and_the_place(
    tmp_path: Path, data: bytes, part: str
):
    path = tmp_path / "broken.so"
    path.write_bytes(data)
    with pytest.raises(BinaryError, match=part) as error:
        read_library(path)
    assert str(path) in str(error.value)


def test_an_image_longer_than_its_fat_binary_is_an_error():
    head = struct.pack("<HHIQ12xI8xQ16x", 2, 0x101, 64, 1000, 70, 0x11)
    data = library(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(head)) + head, gap=2000)
    with pytest.raises(BinaryError, match="an image ends at byte"):
        code_of(data)


def test_what_is_no_wheel_and_what_is_missing_are_errors(tmp_path: Path):
    (tmp_path / "no.whl").write_bytes(b"text")
    with pytest.raises(BinaryError, match="no wheel"):
        read_wheel(tmp_path / "no.whl")
    with pytest.raises(BinaryError, match="cannot be read"):
        read_wheel(tmp_path / "missing.whl")
    with pytest.raises(BinaryError, match="cannot be read"):
        read_library(tmp_path / "missing.so")
    with pytest.raises(BinaryError, match=r"pkg/ops\.so: cut short"):
        read_wheel(wheel(tmp_path / "cut.whl", pkg__ops_so=RELEASE_LIKE[:200]))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_of_a_library_is_anything_but_an_error_or_an_answer(data: st.DataObject):
    """Cut anywhere or with any byte changed: never another exception, never endless."""
    good = bytearray(RELEASE_LIKE)
    if data.draw(st.booleans()):
        del good[data.draw(st.integers(0, len(good))) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if good:
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = elf.parse(bytes(good))
        parsed.needed()
        device_code(parsed)
    except BinaryError:
        pass
