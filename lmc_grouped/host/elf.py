"""As much of a 64-bit ELF file as it takes to find its sections and needed libraries.

Layouts: System V ABI, "Object Files". Nothing is loaded or run.
"""

import mmap
import struct
from dataclasses import dataclass

Buffer = bytes | mmap.mmap

_MAGIC = b"\x7fELF"
_CLASS_64, _LITTLE_ENDIAN = 2, 1
_HEADER = struct.Struct("<40xQ10xHHH")
"""Of the file: offset of the section table; bytes per entry, entries, index of the names."""
_SECTION = struct.Struct("<II16xQQI20x")
"""Name, type; offset, size, linked section."""
_DYNAMIC = struct.Struct("<qQ")
_TYPE_DYNAMIC, _TYPE_NO_BITS = 6, 8
_TAG_NEEDED = 1


class BinaryError(ValueError):
    """A file that is not what its name says: where, what was found, what was expected."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section, whose bytes are all in the file."""

    name: str
    type: int
    offset: int
    size: int
    link: int
    """Index of the section that this one refers to."""


@dataclass(frozen=True, slots=True)
class Elf:
    """A parsed file."""

    data: Buffer
    sections: tuple[Section, ...]

    def needed(self) -> tuple[str, ...]:
        """Names of the shared libraries that have to be there, in the file's order.

        Raises:
            BinaryError: the dynamic section refers to what is not there.
        """
        names: list[str] = []
        for section in self.sections:
            if section.type != _TYPE_DYNAMIC:
                continue
            if section.link >= len(self.sections):
                raise BinaryError(
                    f"section {section.name} takes its names from section {section.link}, but "
                    f"there are {len(self.sections)} sections: the file is damaged"
                )
            strings = self.sections[section.link]
            end = section.offset + section.size - section.size % _DYNAMIC.size
            for offset in range(section.offset, end, _DYNAMIC.size):
                tag, value = _DYNAMIC.unpack_from(self.data, offset)
                if tag == _TAG_NEEDED:
                    names.append(_string(self.data, strings, value))
        return tuple(names)


def parse(data: Buffer) -> Elf:
    """Read the section table.

    Raises:
        BinaryError: no 64-bit little-endian ELF file, or one that is cut short.
    """
    if data[:4] != _MAGIC:
        raise BinaryError(f"no shared library: it begins with {data[:4]!r}, not {_MAGIC!r}")
    if len(data) < _HEADER.size:
        raise BinaryError(f"cut short: {len(data)} bytes do not hold an ELF header")
    if (data[4], data[5]) != (_CLASS_64, _LITTLE_ENDIAN):
        raise BinaryError(
            f"class {data[4]}, byte order {data[5]}: only 64-bit little-endian is read"
        )
    table, entry_bytes, count, names_index = _HEADER.unpack_from(data)
    if count == 0:
        raise BinaryError("it has no section table, so what it holds cannot be listed")
    if entry_bytes < _SECTION.size or names_index >= count:
        raise BinaryError(
            f"section table of {count} entries of {entry_bytes} bytes with names in entry "
            f"{names_index}: the file is damaged"
        )
    _check_inside(data, "the section table", table, count * entry_bytes)
    raw = [_SECTION.unpack_from(data, table + index * entry_bytes) for index in range(count)]
    names = Section("the section names", *raw[names_index][1:])
    _check_inside(data, names.name, names.offset, names.size)
    sections = tuple(
        Section(
            _string(data, names, name), kind, offset, 0 if kind == _TYPE_NO_BITS else size, link
        )
        for name, kind, offset, size, link in raw
    )
    for section in sections:
        if section.size:
            _check_inside(data, f"section {section.name}", section.offset, section.size)
    return Elf(data, sections)


def _string(data: Buffer, section: Section, position: int) -> str:
    start, end = section.offset + position, section.offset + section.size
    stop = data.find(b"\0", start, end) if start < end else -1
    if stop < 0:
        raise BinaryError(
            f"a name at byte {position} of {section.name} ({section.size} bytes) has no end: "
            "the file is damaged"
        )
    return data[start:stop].decode("utf-8", "replace")


def _check_inside(data: Buffer, what: str, offset: int, size: int) -> None:
    if offset + size > len(data):
        raise BinaryError(
            f"cut short: {what} ends at byte {offset + size} of a file of {len(data)} bytes"
        )
