"""The bytes of a record file: a header, then one record per slot.

A record is 64 bytes, so that no record crosses a disk sector: a record that was
written in part does not carry its own CRC. All numbers have the low end first.
A record of zeros is a free slot.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import msgspec

from lmc_grouped.core.keys import FORMAT_VERSION, MAX_KEY_BYTES, encode_key
from lmc_grouped.core.pool import PageRef
from lmc_grouped.host.disk.checksum import crc32

RECORD_BYTES = 64
HEADER_BYTES = 64
FREE_RECORD = bytes(RECORD_BYTES)
MAX_PAGE_BYTES = 2**32 - 1
"""A record holds a page's length in four bytes."""

_MAGIC = b"lmcgroup"
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<8sIIQ16s20x")
"""Magic, format version, group_id, page bytes, namespace digest; then the CRC32 of it all."""
_RECORD = struct.Struct(f"<IIQH{MAX_KEY_BYTES}s")
"""After the CRC32 of what follows: page CRC32, length, stamp, key length, key."""
_WHOLE = struct.Struct(f"<IIIQH{MAX_KEY_BYTES}s")
"""The CRC32 and the fields of ``_RECORD``."""
assert _CRC.size + _HEADER.size == HEADER_BYTES
assert _CRC.size + _RECORD.size == RECORD_BYTES


class DiskError(ValueError):
    """A store that cannot be opened: says what was seen and what to do."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Whose records a file holds."""

    namespace_digest: str
    group_id: int
    page_bytes: int
    format_version: int = FORMAT_VERSION


class Record(msgspec.Struct, frozen=True, gc=False):
    """What makes the page in a slot visible."""

    key: PageRef
    page_bytes: int
    page_crc: int
    """CRC32 of the page."""
    stamp_ns: int
    """When it was written, in nanoseconds since 1970; rises within a store."""


class Unreadable(Enum):
    """A slot whose record says nothing that can be believed."""

    DAMAGED = "damaged"


def encode_header(header: FileHeader) -> bytes:
    """``HEADER_BYTES`` bytes."""
    fields = _HEADER.pack(
        _MAGIC,
        header.format_version,
        header.group_id,
        header.page_bytes,
        bytes.fromhex(header.namespace_digest),
    )
    return fields + _CRC.pack(crc32(fields))


def decode_header(data: bytes) -> FileHeader | None:
    """The header of a record file; ``None`` when it is short, damaged or something else."""
    fields = data[: _HEADER.size]
    if len(data) < HEADER_BYTES or data[_HEADER.size : HEADER_BYTES] != _CRC.pack(crc32(fields)):
        return None
    magic, version, group_id, page_bytes, digest = _HEADER.unpack(fields)
    if magic != _MAGIC:
        return None
    return FileHeader(digest.hex(), group_id, page_bytes, version)


def encode_record(record: Record) -> bytes:
    """``RECORD_BYTES`` bytes."""
    key = encode_key(record.key)
    fields = _RECORD.pack(record.page_crc, record.page_bytes, record.stamp_ns, len(key), key)
    return _CRC.pack(crc32(fields)) + fields


def record_offset(slot: int) -> int:
    """Where the record of a slot begins."""
    return HEADER_BYTES + slot * RECORD_BYTES


def decode_records(data: bytes, header: FileHeader) -> Iterator[tuple[int, Record | Unreadable]]:
    """``(slot, record)`` of every slot of a record file that is not free.

    A record of another group or of another length is as damaged as one whose CRC
    does not fit. A trailing part of a record is not looked at.
    """
    # Written for speed: opening a store decodes every record it has.
    slots = (len(data) - HEADER_BYTES) // RECORD_BYTES
    view = memoryview(data)[HEADER_BYTES : record_offset(slots)]
    prefix = encode_key((header.group_id, b"-"))[:-1]
    hash_at, group_id, page_bytes = len(prefix), header.group_id, header.page_bytes
    start = 0
    for slot, fields in enumerate(_WHOLE.iter_unpack(view)):
        crc, page_crc, length, stamp_ns, key_length, key = fields
        end = start + RECORD_BYTES
        fits = (
            crc32(view[start + _CRC.size : end]) == crc
            and hash_at < key_length <= MAX_KEY_BYTES
            and key.startswith(prefix)
            and length == page_bytes
        )
        if fits:
            yield slot, Record((group_id, key[hash_at:key_length]), length, page_crc, stamp_ns)
        elif view[start:end] != FREE_RECORD:
            yield slot, Unreadable.DAMAGED
        start = end
