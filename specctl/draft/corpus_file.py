"""A frozen corpus in one file: written whole or not at all, mapped read-only by any number of processes.

    8 bytes    SPECCTLC
    uint32     version, 1 or 2
    uint32     bytes of the header
    uint64     xxh3_64 of the 16 bytes before it and of the header
    header     JSON of CorpusHeader, then zeros up to a multiple of 4096 bytes
    block      uint32[block_words(cap, rungs)], the block of ``chains``

All numbers are little-endian. The checksums find damage, not ill will: whoever may write the file is trusted.
No message of this module holds a token or a text.
"""

from __future__ import annotations

import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from specctl.draft.chains import BASE, CAP, HEAD, MIN_CAP, ROW_WORDS, TAIL, block_words, new_row
from specctl.draft.frozen_corpus import FrozenCorpus, build_block, checked_rungs, documents_of, merge
from specctl.draft.outcomes import added, checked_counts
from specctl.errors import CorpusFileError

__all__ = [
    "CHAINS_LAYOUT",
    "FORMAT_VERSION",
    "CorpusHeader",
    "FrozenCorpus",
    "build_block",
    "documents_of",
    "fingerprint_of",
    "load",
    "merge",
    "read_header",
    "save",
    "set_aside",
    "version_of",
]

FORMAT_VERSION = 2
"""The newest. A file without outcomes is of version 1."""
CHAINS_LAYOUT = 2
"""One more whenever ``chains`` gives a word of the block or of the row another meaning."""

_MAGIC = b"SPECCTLC"
_IDENTITY = struct.Struct("<8sII")
_CHECKSUM = struct.Struct("<Q")
_PREFIX_BYTES = _IDENTITY.size + _CHECKSUM.size
_PAGE_BYTES = 4096
_PIECE_BYTES = 16 * 2**20
_MOST_HEADER_BYTES = 2**26
_THREADS = 4
_STALE_S = 3600.0
"""A temp file that nobody has written to for so long belongs to a process that was killed."""
_VOCABULARY_FILES = (
    "vocab.json", "merges.txt", "vocab.txt", "tekken.json", "tokenizer.model", "*.tiktoken",
    "sentencepiece.bpe.model", "spiece.model", "spm.model", "*.spm",
)  # fmt: skip


class CorpusHeader(BaseModel):
    """What a corpus file says about itself."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    namespace: str
    fingerprint: str  # of the tokenizer
    rungs: tuple[int, ...]
    cap: int
    row: tuple[int, ...]
    tokens: int
    documents: int
    largest_id: int
    created_utc: str
    chains_layout: int
    checksums: tuple[str, ...]  # xxh3_64 of each 16 MiB of the block
    outcomes: dict[str, tuple[tuple[int, int, int, int], ...]] = {}  # rows of ``outcomes.Counts``


def save(path: Path, corpus: FrozenCorpus, namespace: str, fingerprint: str) -> None:
    """Write the file whole, then put it in the place of an earlier one, whose readers keep what they mapped.

    A new file can be read by its owner only; a replaced one keeps its mode. CorpusFileError: the disk is full
    or the folder cannot be written; an earlier file is then untouched. ValueError: not a frozen corpus.
    """
    target = Path(os.path.realpath(path))
    header = CorpusHeader(
        namespace=namespace,
        fingerprint=fingerprint,
        rungs=tuple(corpus.rungs.tolist()),
        cap=int(corpus.row[CAP]),
        row=tuple(corpus.row.tolist()),
        tokens=corpus.tokens,
        documents=corpus.documents,
        largest_id=corpus.largest_id,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        chains_layout=CHAINS_LAYOUT,
        checksums=tuple(_checksums(corpus.mem)),
        outcomes={name: tuple(map(tuple, rows.tolist())) for name, rows in added([corpus.outcomes]).items()},
    )
    _checked_row(header)
    try:
        _remove_stale(target)
        _write_and_replace(target, _head_bytes(header), corpus.mem)
        _sync_folder(target.parent)
    except OSError as error:
        raise CorpusFileError(f"{path}: cannot be written: {error.strerror or error}", "io") from error


def load(
    path: Path,
    namespace: str | None = None,
    fingerprint: str | None = None,
    verify: bool = True,
    rungs: npt.NDArray[np.int64] | None = None,
) -> FrozenCorpus:
    """Map the file read-only. What is not None must be equal; ``verify`` reads and checks the whole block.

    CorpusFileError: the file cannot be read, or is torn, damaged, foreign, of another version or another's.
    """
    with _opened(path) as file:
        header, start = _read_header(path, file)
        _check_owner(path, header, namespace, fingerprint, rungs)
        ladder = np.array(header.rungs, np.int64)
        words = int(block_words(header.cap, ladder))
        expected, got = start + 4 * words, os.fstat(file.fileno()).st_size
        if expected != got:
            raise _damaged(path, f"expected {expected} bytes, got {got}")
        mem = np.asarray(np.memmap(file, np.dtype("<u4"), "r", start, (words,)))
    if verify:
        _verify(path, mem, header.checksums)
    return FrozenCorpus(
        mem=mem,
        row=np.array(header.row, np.int64),
        rungs=ladder,
        tokens=header.tokens,
        documents=header.documents,
        largest_id=header.largest_id,
        outcomes=checked_counts(header.outcomes),
    )


def read_header(path: Path) -> CorpusHeader:
    """The header alone, checked; the block is not looked at. CorpusFileError as in ``load``."""
    with _opened(path) as file:
        return _read_header(path, file)[0]


def version_of(header: CorpusHeader) -> int:
    """The file's."""
    return 2 if header.outcomes else 1


def set_aside(path: Path) -> Path:
    """Rename a refused file to ``<name>.refused-<UTC timestamp>``; the new path. Nothing is deleted.

    CorpusFileError: it cannot be renamed, or another process was faster.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.refused-{stamp}")
    try:
        path.rename(aside)
    except OSError as error:
        raise CorpusFileError(f"{path}: cannot be set aside: {error.strerror or error}", "io") from error
    return aside


def fingerprint_of(tokenizer: Path) -> str:
    """xxh3_128, in hex, of a tokenizer file, or of a folder's tokenizer.json, else of its vocabulary files.

    CorpusFileError: nothing there says how texts become tokens, or it cannot be read.
    """
    try:
        if not tokenizer.is_dir():
            return xxhash.xxh3_128_hexdigest(tokenizer.read_bytes())
        if (tokenizer / "tokenizer.json").is_file():
            return xxhash.xxh3_128_hexdigest((tokenizer / "tokenizer.json").read_bytes())
        found = sorted({file for pattern in _VOCABULARY_FILES for file in tokenizer.glob(pattern)})
        digest = xxhash.xxh3_128()
        for file in found:
            content = file.read_bytes()
            digest.update(f"{file.name} {len(content)}\n".encode())
            digest.update(content)
    except OSError as error:
        raise CorpusFileError(f"{tokenizer}: cannot be read: {error.strerror or error}", "io") from error
    if not found:
        raise CorpusFileError(f"{tokenizer}: expected tokenizer.json or vocabulary files, got neither", "io")
    return digest.hexdigest()


def _damaged(path: Path, words: str) -> CorpusFileError:
    return CorpusFileError(f"{path}: torn or damaged: {words}", "damaged")


def _head_bytes(header: CorpusHeader) -> bytes:
    text = header.model_dump_json(exclude_defaults=True).encode()
    identity = _IDENTITY.pack(_MAGIC, version_of(header), len(text))
    head = identity + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(identity + text)) + text
    return head + bytes(-len(head) % _PAGE_BYTES)


def _checksums(mem: npt.NDArray[np.uint32]) -> Iterator[str]:
    """Of each piece, in order, by a few threads: xxhash releases the GIL."""
    block = mem.data.cast("B")
    pieces = [block[start : start + _PIECE_BYTES] for start in range(0, len(block), _PIECE_BYTES)]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        yield from threads.map(xxhash.xxh3_64_hexdigest, pieces)


def _verify(path: Path, mem: npt.NDArray[np.uint32], checksums: tuple[str, ...]) -> None:
    found = list(_checksums(mem))
    if len(found) != len(checksums):
        raise _damaged(path, f"expected {len(found)} checksums, got {len(checksums)}")
    for number, (expected, got) in enumerate(zip(checksums, found, strict=True), 1):
        if expected != got:
            piece = f"piece {number} of {len(found)}"
            raise _damaged(path, f"{piece}: expected checksum {expected}, got {got}")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    def opened(name: str, flags: int) -> int:
        number = os.open(name, flags | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(number).st_mode):
            return number
        os.close(number)
        raise CorpusFileError(f"{path}: expected a file, got a folder or a device", "io")

    try:
        with open(path, "rb", opener=opened) as file:
            yield file
    except OSError as error:
        raise CorpusFileError(f"{path}: cannot be read: {error.strerror or error}", "io") from error


def _read_header(path: Path, file: IO[bytes]) -> tuple[CorpusHeader, int]:
    """The header, and the offset of the block."""
    prefix = file.read(_PREFIX_BYTES)
    if prefix[: len(_MAGIC)] != _MAGIC[: len(prefix)]:
        raise CorpusFileError(f"{path}: expected a specctl corpus, got another kind of file", "foreign")
    if len(prefix) < _PREFIX_BYTES:
        raise _damaged(path, f"expected at least {_PREFIX_BYTES} bytes, got {len(prefix)}")
    _, version, header_bytes = _IDENTITY.unpack_from(prefix)
    if not 1 <= version <= FORMAT_VERSION:
        raise CorpusFileError(
            f"{path}: expected format version {FORMAT_VERSION} or older, got {version}", "version"
        )
    text = file.read(min(header_bytes, _MOST_HEADER_BYTES))
    if len(text) < header_bytes:
        raise _damaged(path, f"expected a header of {header_bytes} bytes, got {len(text)}")
    if xxhash.xxh3_64_intdigest(prefix[: _IDENTITY.size] + text) != _CHECKSUM.unpack_from(prefix, 16)[0]:
        raise _damaged(path, "the header's checksum is wrong")
    padding_bytes = -(_PREFIX_BYTES + header_bytes) % _PAGE_BYTES
    if file.read(padding_bytes) != bytes(padding_bytes):
        raise _damaged(path, "expected zeros after the header")
    return _parsed_header(path, text), _PREFIX_BYTES + header_bytes + padding_bytes


def _parsed_header(path: Path, text: bytes) -> CorpusHeader:
    try:
        header = CorpusHeader.model_validate_json(text)
    except ValidationError as error:
        wrong = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise _damaged(path, f"header: {wrong}: {error.errors()[0]['msg']}") from None
    if header.chains_layout != CHAINS_LAYOUT:
        words = f"expected layout version {CHAINS_LAYOUT}, got {header.chains_layout}"
        raise CorpusFileError(f"{path}: {words}", "version")
    try:
        _checked_row(header)
        checked_counts(header.outcomes)
    except ValueError as error:
        raise _damaged(path, f"header: {error}") from None
    return header


def _checked_row(header: CorpusHeader) -> None:
    """ValueError unless the row is one of a frozen text: compiled code trusts it without bounds checks."""
    words = header.tokens + header.documents
    if not MIN_CAP <= header.cap <= 2**30 or not 0 <= header.documents <= words <= header.cap:
        raise ValueError(f"cap: expected {words} or more, at least {MIN_CAP}, got {header.cap}")
    if len(header.row) != ROW_WORDS:
        raise ValueError(f"row: expected {ROW_WORDS} values, got {len(header.row)}")
    row = header.row
    if (row[BASE], row[TAIL], row[HEAD]) != (0, 0, words):
        got = f"{row[BASE]}, {row[TAIL]} to {row[HEAD]}"
        raise ValueError(f"row: expected a text at 0, 0 to {words}, got {got}")
    # A new row's other words are either fixed by cap and rungs, or counts that start at 0.
    fixed = new_row(0, header.cap, checked_rungs(header.rungs), is_ring=False).tolist()
    for start, value in zip(fixed, row, strict=True):
        if value != start and not (start == 0 and 0 <= value <= words):
            raise ValueError(f"row: expected {fixed} at its start, got {list(row)}")


def _check_owner(
    path: Path,
    header: CorpusHeader,
    namespace: str | None,
    fingerprint: str | None,
    rungs: npt.NDArray[np.int64] | None,
) -> None:
    ladder = None if rungs is None else rungs.tolist()
    for name, expected, got in (
        ("namespace", namespace, header.namespace),
        ("tokenizer fingerprint", fingerprint, header.fingerprint),
        ("rungs", ladder, list(header.rungs)),
    ):
        if expected is not None and expected != got:
            raise CorpusFileError(f"{path}: {name}: expected {expected!r}, got {got!r}", "mismatch")


def _remove_stale(target: Path) -> None:
    """Temp files that killed processes left."""
    for left in target.parent.iterdir():
        if left.name.startswith(f".{target.name}.") and left.name.endswith(".tmp"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    left.unlink()


def _write_and_replace(target: Path, head: bytes, mem: npt.NDArray[np.uint32]) -> None:
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        try:
            if target.exists():
                os.fchmod(number, target.stat().st_mode & 0o777)
            _write(number, memoryview(head))
            _write(number, mem.data.cast("B"))
            os.fsync(number)
        finally:
            os.close(number)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _write(number: int, data: memoryview) -> None:
    while data:
        data = data[os.write(number, data[:_PIECE_BYTES]) :]


def _sync_folder(folder: Path) -> None:
    """Only then does a rename outlive a loss of power."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
