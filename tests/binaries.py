"""Shared libraries with fat binaries, written byte by byte."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PTX, SASS = 1, 2
FEATURES, FAMILY, COMPRESSED = 1 << 20, 1 << 21, 0x8000


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a fat binary; what is in it is nobody's business."""

    kind: int
    number: int
    flags: int = 0x11
    header_bytes: int = 64
    body: bytes = b"\x7fELF" + bytes(20)

    def to_bytes(self) -> bytes:
        head = struct.pack(
            "<HHIQIIHHIIIQQQ",
            self.kind, 0x101, self.header_bytes, len(self.body),
            0, 0, 7, 1, self.number, 0, 0, self.flags, 0, 0,
        )  # fmt: skip
        return head + bytes(self.header_bytes - len(head)) + self.body


def fat_binary(*images: Image, magic: int = 0xBA55ED50) -> bytes:
    """One container."""
    body = b"".join(image.to_bytes() for image in images)
    return struct.pack("<IHHQ", magic, 1, 16, len(body)) + body


def sass(number: int, flags: int = 0) -> Image:
    """Code that is ready to run; newer architectures have longer headers."""
    return Image(SASS, number, 0x11 | flags, 112 if number >= 100 else 64)


def ptx(number: int, flags: int = COMPRESSED) -> Image:
    """Code for the driver to compile."""
    return Image(PTX, number, 0x11 | flags, 80, b"(\xb5/\xfd" + bytes(12))


def library(
    *containers: bytes, needed: Sequence[str] = (), section: str = ".nv_fatbin", gap: int = 8
) -> bytes:
    """A 64-bit ELF file with a dynamic section and one of fat binaries, padded in between."""
    strings, positions = b"\0", []
    for name in needed:
        positions.append(len(strings))
        strings += name.encode() + b"\0"
    dynamic = b"".join(struct.pack("<qQ", 1, position) for position in positions)
    dynamic += struct.pack("<qQ", 0, 0)
    code = b"".join(container + bytes(gap) for container in containers)
    contents = {".dynstr": (3, strings, 0), ".dynamic": (6, dynamic, 1), section: (1, code, 0)}
    return _elf(contents)


def _elf(contents: dict[str, tuple[int, bytes, int]]) -> bytes:
    names, name_at = b"\0", {}
    for name in (*contents, ".shstrtab"):
        name_at[name] = len(names)
        names += name.encode() + b"\0"
    body, headers = b"", [bytes(64)]
    for name, (kind, data, link) in (contents | {".shstrtab": (3, names, 0)}).items():
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ", name_at[name], kind, 0, 0, 64 + len(body), len(data), link, 0, 1, 0
            )
        )
        body += data
    head = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    head += struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(headers),
        len(headers) - 1,
    )  # fmt: skip
    return head + body + b"".join(headers)
