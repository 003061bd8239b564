"""The framing of TFRecord files: a length, its checksum, the data, their checksum; again and again.

Lengths are 64 bits, checksums are 32 bits, both with the lowest byte first. A checksum is a CRC-32C
that was rotated by 15 bits and moved by a constant, so that data which hold checksums do not confuse it.
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

from ekya.streams.waymo.shots import Lost

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MOVED_BY = 0xA282EAD8
# A frame of all cameras and lidars is about 5 MB. What claims to be longer is passed over unread.
_LONGEST_RECORD_BYTES = 256 * 1024 * 1024


def masked_crc(data: bytes) -> int:
    """The checksum of some data as it stands in the file."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MOVED_BY) & 0xFFFFFFFF


def read_records(file: BinaryIO) -> Iterator[bytes | Lost]:
    """The records of a file, one at a time; memory is that of the longest.

    A record whose data do not fit their checksum is lost. Where a length does not fit its checksum, or
    the file ends before its record does, nobody knows where the next one begins: all the rest is lost.

    Raises:
        OSError: the file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    number, at = 0, 0
    while at < size:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            yield Lost(f"record {number} and all behind it: the file ends within the record's length")
            return
        length, checksum = _HEAD.unpack(head)
        if masked_crc(head[:8]) != checksum:
            yield Lost(f"record {number} and all behind it: the checksum of its length is wrong")
            return
        at += _HEAD.size + length + _CHECKSUM.size
        if at > size:
            yield Lost(f"record {number} and all behind it: the file ends within the record")
            return
        if length > _LONGEST_RECORD_BYTES:
            file.seek(at)
            yield Lost(f"record {number}: {length} bytes are too many for a frame")
        else:
            data, checksum = file.read(length), file.read(_CHECKSUM.size)
            if len(checksum) < _CHECKSUM.size:
                yield Lost(f"record {number} and all behind it: the file became shorter while it was read")
                return
            if masked_crc(data) == _CHECKSUM.unpack(checksum)[0]:
                yield data
            else:
                yield Lost(f"record {number}: its checksum is wrong")
        number += 1
