"""Which GPUs a shared library holds code for: its NVIDIA fat binaries, read and not trusted.

A section of fat binaries is a row of containers, one per translation unit, padded with
zeros. A container is a header and entries; an entry is a header, which stays plain when
what follows is compressed, and an image: PTX, or SASS in an ELF file. NVIDIA documents
none of it; the layout here was compared with ``cuobjdump`` of CUDA 13.1 on what
``fatbinary`` of CUDA 13.5 writes and on LMCache's releases.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lmc_grouped.host.elf import BinaryError, Buffer, Elf

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
"""Linked code, and code that a device linker would still have to link."""
MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
"""Magic, version, bytes of this header, bytes of all entries."""
_ENTRY = struct.Struct("<HHIQ12xI8xQ16x")
"""Kind, version, bytes of this header, bytes of the image; architecture; flags."""
_PTX, _ELF = 1, 2
_FLAG_SUFFIXES = ((1 << 20, "a"), (1 << 21, "f"))
"""Code of one architecture's own features, and of one family's."""
_PADDING = 8
_NAME = re.compile(r"(sm|compute)_(\d+)([af]?)")


@dataclass(frozen=True, slots=True, order=True)
class Architecture:
    """What one image was compiled for."""

    number: int
    """70 for compute capability 7.0, 120 for 12.0."""
    suffix: str = ""
    """``a``: runs on exactly this one; ``f``: on its family; empty: on later ones too."""
    is_ptx: bool = False
    """To be compiled by the driver; else ready to run."""

    def __str__(self) -> str:
        return f"{'compute' if self.is_ptx else 'sm'}_{self.number}{self.suffix}"

    @classmethod
    def parse(cls, name: str) -> "Architecture | None":
        """Of a name such as ``sm_90a`` or ``compute_70``; None for another one."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[2]), found[3], found[1] == "compute")

    def serves(self, capability: tuple[int, int]) -> bool:
        """Whether the image can run on a device of that compute capability.

        Rules: CUDA C++ Programming Guide, "Application Compatibility": SASS runs on the
        same major version from its minor one on, PTX on everything not older.
        """
        own = divmod(self.number, 10)
        if self.suffix == "a":
            return capability == own
        if self.is_ptx and self.suffix != "f":
            return capability >= own
        return capability[0] == own[0] and capability[1] >= own[1]


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """All fat binaries of one library."""

    containers: tuple[frozenset[Architecture], ...]
    """One per fat binary that holds an image."""
    unknown_kinds: frozenset[int]
    """Kinds of images that are neither PTX nor SASS."""

    @property
    def sass(self) -> tuple[Architecture, ...]:
        """Architectures that any fat binary is compiled for."""
        return self._all(is_ptx=False)

    @property
    def ptx(self) -> tuple[Architecture, ...]:
        """Architectures that any fat binary has PTX of."""
        return self._all(is_ptx=True)

    def _all(self, *, is_ptx: bool) -> tuple[Architecture, ...]:
        every = frozenset[Architecture]().union(*self.containers)
        return tuple(sorted(each for each in every if each.is_ptx is is_ptx))

    def serves(self, capability: tuple[int, int]) -> bool:
        """Whether there are fat binaries and each has an image for the device.

        One without would fail when its first kernel is launched.
        """
        return bool(self.containers) and all(
            any(each.serves(capability) for each in container) for container in self.containers
        )


def device_code(elf: Elf) -> DeviceCode:
    """Read every fat binary of a library; one without any holds no device code.

    Raises:
        BinaryError: a fat binary is damaged or of another format.
    """
    containers: list[frozenset[Architecture]] = []
    unknown_kinds: set[int] = set()
    for section in elf.sections:
        if section.name not in SECTIONS:
            continue
        for start, end in _containers(elf.data, section.offset, section.offset + section.size):
            images, kinds = _images(_entries(elf.data, start, end))
            unknown_kinds |= kinds
            if images:
                containers.append(images)
    return DeviceCode(tuple(containers), frozenset(unknown_kinds))


def _containers(data: Buffer, offset: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the entries of each container begin and end."""
    while offset < end:
        head = data[offset : min(offset + _PADDING, end)]
        if not any(head):
            offset += len(head)
            continue
        if offset + _CONTAINER.size > end:
            raise BinaryError(f"cut short: no room for a fat binary's header at byte {offset}")
        magic, _, header_bytes, body_bytes = _CONTAINER.unpack_from(data, offset)
        if magic != MAGIC or header_bytes < _CONTAINER.size:
            raise BinaryError(
                f"no fat binary at byte {offset}: magic {magic:#x} and a header of {header_bytes} "
                f"bytes, expected {MAGIC:#x} and {_CONTAINER.size} or more"
            )
        start = offset + header_bytes
        offset = start + body_bytes
        if offset > end:
            raise BinaryError(
                f"cut short: a fat binary ends at byte {offset}, its section at byte {end}"
            )
        yield start, offset


def _entries(data: Buffer, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Kind, architecture number and flags of each entry."""
    while offset < end:
        if offset + _ENTRY.size > end:
            raise BinaryError(f"cut short: no room for an image's header at byte {offset}")
        kind, _, header_bytes, image_bytes, number, flags = _ENTRY.unpack_from(data, offset)
        if header_bytes < _ENTRY.size:
            raise BinaryError(
                f"the image at byte {offset} has a header of {header_bytes} bytes, expected "
                f"{_ENTRY.size} or more"
            )
        following = offset + header_bytes + image_bytes
        if following > end:
            raise BinaryError(
                f"cut short: an image ends at byte {following}, its fat binary at byte {end}"
            )
        yield kind, number, flags
        offset = following


def _images(
    entries: Iterable[tuple[int, int, int]],
) -> tuple[frozenset[Architecture], set[int]]:
    """The architectures of one container, and the kinds that are neither PTX nor SASS."""
    images: set[Architecture] = set()
    unknown: set[int] = set()
    for kind, number, flags in entries:
        if kind in (_PTX, _ELF):
            suffix = next((suffix for bit, suffix in _FLAG_SUFFIXES if flags & bit), "")
            images.add(Architecture(number, suffix, kind == _PTX))
        else:
            unknown.add(kind)
    return frozenset(images), unknown
