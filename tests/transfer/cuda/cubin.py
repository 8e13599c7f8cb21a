"""Read machine code for an NVIDIA device: an ELF file, without CUDA's own tools.

Those of CUDA 13 refuse what is older than 7.5.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

E_MACHINE_CUDA = 190
_HEADER = "<16sHHIQQQIHHHHHH"
_SECTION = "<IIQQQQIIQQ"
_SYMBOL = "<IBBHQQ"
_ABI_VERSION = 8
_SHT_SYMTAB = 2
_STT_FUNC = 2
_EIATTR_REGCOUNT = 0x2F
_EIATTR_CBANK_PARAM_SIZE = 0x19
_FORMAT_NONE, _FORMAT_BYTE, _FORMAT_HALF, _FORMAT_SIZED = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Cubin:
    machine: int
    architecture: int
    """70 for compute capability 7.0."""
    sections: Mapping[str, bytes]
    kernels: tuple[str, ...]
    registers: Mapping[str, int]
    """Per kernel."""
    parameter_bytes: Mapping[str, int]
    """Per kernel."""


def parse(image: bytes) -> Cubin:
    """What an image says of itself."""
    fields = struct.unpack_from(_HEADER, image)
    assert fields[0][:4] == b"\x7fELF"
    machine, flags, offset, count, names_index = (fields[i] for i in (2, 7, 6, 12, 13))
    raw = [struct.unpack_from(_SECTION, image, offset + i * 64) for i in range(count)]

    def body(section: tuple) -> bytes:
        return image[section[4] : section[4] + section[5]]

    names = body(raw[names_index])
    sections = {_text(names, section[0]): body(section) for section in raw}
    symtab = next(section for section in raw if section[1] == _SHT_SYMTAB)
    strings = body(raw[symtab[6]])
    symbols = [
        (_text(strings, name), info & 15)
        for name, info, *_ in struct.iter_unpack(_SYMBOL, body(symtab))
    ]
    registers = {
        symbols[index][0]: number
        for attribute, value in _attributes(sections[".nv.info"])
        if attribute == _EIATTR_REGCOUNT
        for index, number in [struct.unpack("<II", value)]
    }
    kernels = tuple(name for name, kind in symbols if kind == _STT_FUNC)
    sizes = {
        name: struct.unpack("<H", value)[0]
        for name in kernels
        for attribute, value in _attributes(sections[f".nv.info.{name}"])
        if attribute == _EIATTR_CBANK_PARAM_SIZE
    }
    # From ABI version 8 on (10.0 and newer, and all that CUDA 13 writes) one byte further.
    architecture = (flags >> 8 if fields[0][_ABI_VERSION] >= 8 else flags) & 0xFF
    return Cubin(machine, architecture, sections, kernels, registers, sizes)


def _text(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode()


def _attributes(info: bytes) -> list[tuple[int, bytes]]:
    """Attribute numbers and values of a ``.nv.info`` section."""
    found: list[tuple[int, bytes]] = []
    place = 0
    while place < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, place)
        assert form in (_FORMAT_NONE, _FORMAT_BYTE, _FORMAT_HALF, _FORMAT_SIZED)
        if form == _FORMAT_SIZED:
            found.append((attribute, info[place + 4 : place + 4 + size]))
            place += 4 + size
        else:  # the value is in the place of the size
            found.append((attribute, info[place + 2 : place + 4]))
            place += 4
    return found
