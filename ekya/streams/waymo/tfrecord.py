"""Reads TFRecord files.

Each record is framed as length, checksum of the length, data, checksum of the data. Lengths have 64 bits,
checksums 32 bits, both little-endian. A checksum is a masked CRC-32C: rotated by 15 bits and shifted by a
constant, so that data that contain checksums do not defeat it.
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
# A frame of all cameras and lidars is about 5 MB. A much longer record is skipped unread.
_LONGEST_RECORD_BYTES = 256 * 1024 * 1024


def masked_crc(data: bytes) -> int:
    """Returns the checksum of data in the form that the file stores."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MOVED_BY) & 0xFFFFFFFF


def read_records(file: BinaryIO) -> Iterator[bytes | Lost]:
    """Yields the records of a file, one at a time; memory is that of the longest.

    A record whose data do not match their checksum is lost. If a length does not match its checksum, or the
    file ends within a record, the next record cannot be found and the rest of the file is lost.

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
