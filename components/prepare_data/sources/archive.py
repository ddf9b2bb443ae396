"""The source `images:ARCHIVE`: a tar, tar.gz or zip file with the layout of an image folder, at any depth.

Images in tar and zip files are read in place, at the offsets recorded while listing. A compressed tar can only be read
sequentially, so its images are appended to one spool file while it is listed. Nothing is extracted by name.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import posixpath
import re
import struct
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from slipway.components.prepare_data.encoding.image import MAX_IMAGE_BYTES
from slipway.components.prepare_data.examples import Group, Unusable, source_error
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.images import FIRST_BYTES, groups_of, is_image, open_images, valid_name
from slipway.components.prepare_data.sources.source import Entry, Ignored, PlainReader, Reader, Source
from slipway.components.prepare_data.sources.spool import read_at
from slipway.core.errors import UserError
from slipway.core.images import format_of
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path

ENDING = re.compile(r"\.(tar|tar\.gz|tgz|zip)$", re.IGNORECASE)
SPOOL = "images"
PIECE = 1 << 20
# Used instead of the offset for members without data in the archive.
LINK, SPARSE = 2**64 - 1, 2**64 - 2
WITHOUT_BYTES = {
    LINK: "it is a link inside the archive",
    SPARSE: "it is a sparse file inside the archive; pack it again without --sparse",
}
# Headers that precede a tar member, such as its long name, which tarfile reads into memory, and their maximum size.
TAR_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
)  # fmt: skip
MAX_HEADER_BYTES = 1 << 20
_DAMAGED_HEADER = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]
DAMAGED = (tarfile.TarError, EOFError, zlib.error, struct.error, OSError)


class ArchiveSource(Source):
    """The source `images:FILE.tar`, `.tar.gz`, `.tgz` or `.zip`.

    Raises:
        UserError: The file cannot be read.
    """

    stamps_are_times = True

    def __init__(self, argument: str, reference: str) -> None:
        self.reference = reference
        self.path = local_path(argument).expanduser().absolute()
        self.name = valid_name(ENDING.sub("", self.path.name))
        ending = ENDING.search(self.path.name)
        assert ending is not None
        self._kind = {"tgz": "tar.gz"}.get(ending[1].lower(), ending[1].lower())
        try:
            self._status = self.path.stat()
        except OSError as error:
            raise self._unreadable(error.strerror) from None

    def parts(self) -> list[Path]:
        return [self.path]

    def entries(self, part: Path, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        """Yield the archive's images. As class, each has its folder; `groups` derives class and split from it."""
        members = {"zip": _zip_members, "tar": _tar_members}.get(self._kind)
        try:
            with part.open("rb") as file:
                archive_members = members(file) if members else _compressed_members(file, scratch / SPOOL)
                contents = self.reader(scratch) if members else None
                for member in archive_members:
                    yield from self._entry(member, ignored, contents)
        except DAMAGED as error:
            if isinstance(error, OSError) and error.filename is None and error.errno is not None:
                raise  # an error of the disk, not of the archive
            raise self._unreadable(str(error)) from None
        except RecursionError:  # tarfile reads each header within the previous one
            raise self._unreadable("it has too many headers in a row") from None

    def groups(self, listed: Iterable[Group]) -> dict[Group, Group]:
        folders = {group[1]: group for group in listed}
        return {folders[folder]: group for folder, group in groups_of(folders, self.path, self.reference).items()}

    def stamp(self) -> str:
        about = (self._kind, self._status.st_size, self._status.st_mtime_ns)
        return hashlib.sha256(repr(about).encode()).hexdigest()

    def reader(self, scratch: Path) -> Reader:
        if self._kind == "zip":
            return ZipReader(self.path)
        return StretchReader(scratch / SPOOL if self._kind == "tar.gz" else self.path)

    def _entry(self, member: Member, ignored: Ignored, contents: Reader | None) -> Iterator[Entry]:
        key = posixpath.normpath(member.name)
        if key.startswith((b"/", b"../")) or key == b"..":
            raise source_error(
                self.reference,
                f"The entry {os.fsdecode(member.name)!r} of {self.path} points outside the archive.",
                fix="create the archive again from inside the folder: tar -cf FILE.tar -C FOLDER .",
            )
        folder, _, name = key.rpartition(b"/")
        if any(part.startswith(b".") for part in key.split(b"/")):
            return
        if is_image(name) or (_has_image(contents, key, member) if contents else member.has_image):
            yield key, _text(folder), None, member.size, member.stamp, member.offset, b""
        else:
            ignored.add(key)

    def _unreadable(self, reason: str | None) -> UserError:
        return source_error(self.reference, f"The archive {self.path} cannot be read: {reason or 'it is damaged'}.")


def open_archive(argument: str, settings: DataSettings, column: str | None, task: TaskName) -> Source:
    """Open the source `images:ARCHIVE`; a folder with the name of an archive is opened as a folder.

    Raises:
        UserError: The file cannot be read.
    """
    if local_path(argument).expanduser().is_dir():
        return open_images(argument, settings, column, task)
    return ArchiveSource(argument, settings.source)


class Member(NamedTuple):
    """A file in an archive: name, uncompressed size in bytes, stamp, and offset (or LINK, SPARSE).

    Of a tar.gz, whose members are read only once, `has_image` is whether its content is an image.
    """

    name: bytes
    size: int
    stamp: int
    offset: int
    has_image: bool = False


def _has_image(contents: Reader, key: bytes, member: Member) -> bool:
    """Whether the content of a member is an image, whatever its name is."""
    if member.offset in WITHOUT_BYTES or member.size > MAX_IMAGE_BYTES:
        return False
    try:
        return format_of(contents.read(key, member.offset, member.size)[:FIRST_BYTES]) is not None
    except Unusable:
        return False


def _tar_members(file: BinaryIO) -> Iterator[Member]:
    length = file.seek(0, os.SEEK_END)
    if length % tarfile.BLOCKSIZE:
        raise EOFError("it is cut short")
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:", tarinfo=_TarInfo) as archive:
        for info in _tar_infos(archive, length):
            yield _member(info, info.offset_data)


def _compressed_members(file: BinaryIO, spool: Path) -> Iterator[Member]:
    """Yield the members of a tar.gz and append the images that are not too large to `spool`."""
    offset = 0
    with gzip.GzipFile(fileobj=file) as unpacked, spool.open("wb") as kept:
        with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_TarInfo) as archive:
            for info in _tar_infos(archive):
                member = _member(info, offset)
                has_bytes = member.offset not in WITHOUT_BYTES and member.size <= MAX_IMAGE_BYTES
                content = archive.extractfile(info) if has_bytes else None
                piece = content.read(FIRST_BYTES) if content else b""
                has_image = format_of(piece) is not None
                yield member._replace(has_image=has_image)
                while content and piece and (has_image or is_image(member.name)):
                    offset += kept.write(piece)
                    piece = content.read(PIECE)
        while unpacked.read(PIECE):  # read to the end, where gzip verifies the checksum
            pass


class _TarInfo(tarfile.TarInfo):
    """A member whose headers are small enough to be read into memory, and undamaged.

    tarfile takes a damaged header after the first one for the end of the archive.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except _DAMAGED_HEADER as error:
            raise tarfile.ReadError(str(error)) from None

    def _proc_member(self, archive: tarfile.TarFile) -> Self:  # tarfile documents that a subclass may override it
        if self.type in TAR_HEADERS and self.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {self.size:,} bytes, more than {MAX_HEADER_BYTES:,}")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return, unused-ignore]


def _tar_infos(archive: tarfile.TarFile, length: int = sys.maxsize) -> Iterator[tarfile.TarInfo]:
    """Yield the files and links of an archive of `length` bytes without keeping them in memory."""
    while (info := archive.next()) is not None:
        if not info.offset_data <= archive.offset <= length:
            raise EOFError(f"the size of {info.name} is wrong")
        archive.members = []  # type: ignore[attr-defined]
        if info.isreg() or info.issym() or info.islnk():
            yield info


def _member(info: tarfile.TarInfo, offset: int) -> Member:
    name = info.name.encode("utf-8", "surrogateescape")
    # Times before 1970 are negative; the stamp is unsigned. A time may be infinite or not a number.
    stamp = int(info.mtime) & 2**64 - 1 if math.isfinite(info.mtime) else 0
    if not info.isreg() or info.issparse():
        return Member(name, 0, stamp, SPARSE if info.isreg() else LINK)
    return Member(name, info.size, stamp, offset)


class StretchReader(PlainReader):
    """Reads images stored uncompressed in one file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        if offset in WITHOUT_BYTES:
            raise Unusable(WITHOUT_BYTES[offset])
        data = read_at(self._descriptor, offset, size)
        if len(data) != size:
            raise Unusable("the archive is truncated inside it")
        return data


# The central directory at the end of a zip file: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
ZIP_END = struct.Struct("<4s4H2LH")
ZIP64_LOCATOR = struct.Struct("<4sLQL")
ZIP64_END = struct.Struct("<4sQ2H2L4Q")
ZIP_MEMBER = struct.Struct("<4s6H3L5H2L")
ZIP_LOCAL = struct.Struct("<4s5H3L2H")
ZIP_LONGEST_END = ZIP_END.size + 0xFFFF
ZIP64_EXTRA = 1
STORED, DEFLATED = 0, 8
ENCRYPTED = 1


def _zip_members(file: BinaryIO) -> Iterator[Member]:
    """Yield the members of a zip file from its central directory (the module zipfile would hold them all in memory)."""
    count, start = _zip_list(file)
    file.seek(start)
    for _ in range(count):
        fields = ZIP_MEMBER.unpack(file.read(ZIP_MEMBER.size))
        if fields[0] != b"PK\x01\x02":
            raise EOFError("its central directory is damaged")
        time, day, checksum, packed, size, name_length, extra_length, comment_length = fields[5:13]
        name = file.read(name_length)
        size, offset = _zip64_sizes(file.read(extra_length), size, packed, fields[16])
        file.seek(comment_length, os.SEEK_CUR)
        if not name.endswith(b"/"):
            yield Member(name, size, checksum << 32 | day << 16 | time, offset)


def _zip_list(file: BinaryIO) -> tuple[int, int]:
    """Return the number of members and the offset of the central directory."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(length - ZIP_LONGEST_END - ZIP64_LOCATOR.size, 0))
    tail = file.read()
    offset = tail.rfind(b"PK\x05\x06")
    if offset < 0:
        raise EOFError("it has no central directory at its end")
    _, _, _, _, count, _, start, _ = ZIP_END.unpack_from(tail, offset)
    if count == 0xFFFF or start == 0xFFFFFFFF:
        signature, _, offset64, _ = ZIP64_LOCATOR.unpack_from(tail, offset - ZIP64_LOCATOR.size)
        if signature == b"PK\x06\x07":
            file.seek(min(offset64, length))
            fields = ZIP64_END.unpack(file.read(ZIP64_END.size).ljust(ZIP64_END.size, b"\0"))
            count, start = (fields[7], fields[9]) if fields[0] == b"PK\x06\x06" else (0, length + 1)
    if start > length:
        raise EOFError("its central directory is damaged")
    return count, start


def _zip64_sizes(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int]:
    """Return a member's size and offset; those that exceed 32 bits are in the extra fields."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == ZIP64_EXTRA:
            numbers = list(struct.unpack_from(f"<{length // 8}Q", extra, position + 4))
            if len(numbers) < (size, packed, offset).count(0xFFFFFFFF):
                raise EOFError("its central directory is damaged")
            size = numbers.pop(0) if size == 0xFFFFFFFF else size
            if packed == 0xFFFFFFFF:
                numbers.pop(0)
            offset = numbers.pop(0) if offset == 0xFFFFFFFF else offset
        position += 4 + length
    return size, offset


class ZipReader(PlainReader):
    """Reads stored and deflated members of a zip file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._length = os.fstat(self._descriptor).st_size

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        header = os.pread(self._descriptor, ZIP_LOCAL.size, min(offset, self._length))
        if len(header) < ZIP_LOCAL.size or not header.startswith(b"PK\x03\x04"):
            raise Unusable("its header in the archive is damaged")
        _, _, flags, method, _, _, checksum, _, _, name_length, extra_length = ZIP_LOCAL.unpack(header)
        if flags & ENCRYPTED or method not in (STORED, DEFLATED):
            raise Unusable(
                "it is encrypted" if flags & ENCRYPTED else f"its compression method {method} is not supported"
            )
        start = offset + ZIP_LOCAL.size + name_length + extra_length
        data = read_at(self._descriptor, start, size) if method == STORED else self._inflated(start, size)
        if len(data) != size or (checksum and zlib.crc32(data) != checksum):
            raise Unusable("it is damaged in the archive")
        return data

    def _inflated(self, offset: int, size: int) -> bytes:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        data, packed = b"", b""
        try:
            while not inflater.eof and len(data) <= size:
                packed = inflater.unconsumed_tail
                if not packed:
                    packed = os.pread(self._descriptor, min(max(size, 4096), PIECE), offset)
                    offset += len(packed)
                if not packed:
                    break
                data += inflater.decompress(packed, size + 1 - len(data))
        except zlib.error:
            return b""
        return data


def _text(name: bytes) -> str:
    """Decode a folder's name; old zip files use CP437 instead of UTF-8."""
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return name.decode("cp437")
