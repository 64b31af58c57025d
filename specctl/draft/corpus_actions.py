"""What ``specctl corpus`` does. Nothing here prints or logs a text or a token id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specctl.draft.corpus_file import (
    FrozenCorpus,
    fingerprint_of,
    load,
    read_header,
    save,
    version_of,
)
from specctl.draft.frozen_corpus import build_block, merge, newest_within
from specctl.draft.options import SuffixIndexOptions
from specctl.draft.suffix_index import rungs_for
from specctl.errors import CorpusFileError
from specctl.terminal import progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Written", "build", "inspect", "merge_files"]

Ints = npt.NDArray[np.int32]
_BATCH = 512


@dataclass(frozen=True, slots=True)
class Written:
    """A corpus file that was made."""

    path: str
    documents: int
    left_out: int
    tokens: int
    bytes: int

    def words(self) -> str:
        documents = f"{self.documents} documents" + (f" ({self.left_out} left out)" if self.left_out else "")
        return f"{self.path}: {documents}, {self.tokens} tokens, {self.bytes} bytes"


def build(
    inputs: Sequence[Path],
    output: Path,
    *,
    tokenizer: Path,
    field: str,
    namespace: str,
    max_bytes: int | None,
) -> Written:
    """Index logged outputs, the oldest file first. Raises CorpusFileError."""
    fingerprint = fingerprint_of(tokenizer)
    with progress("reading") as update:
        entries = (entry for path in inputs for entry in _entries(path, field))
        documents: list[Ints] = []
        for document in _tokenised(entries, tokenizer):
            if document.size:
                documents.append(document)
            if not len(documents) % _BATCH:
                update(words=f"reading: {len(documents)} documents")
        if not documents:
            raise CorpusFileError(f"expected outputs in {_listed(inputs)}, got none", "input")
        update(words=f"indexing {len(documents)} documents")
        rungs = rungs_for(SuffixIndexOptions())
        try:
            kept = documents if max_bytes is None else newest_within(documents, rungs, max_bytes)
            corpus = build_block(kept, rungs)
        except ValueError as error:
            raise CorpusFileError(str(error), "input") from None
        save(output, corpus, namespace, fingerprint)
    return _written(output, corpus, len(documents))


def inspect(path: Path) -> tuple[dict[str, Any], str | None]:
    """What the file says of itself, and what is wrong with its block (None: nothing).

    Raises CorpusFileError when there is no sound header to show.
    """
    header = read_header(path)
    seen = {
        "file": str(path),
        "format_version": version_of(header),
        "layout_version": header.chains_layout,
        "namespace": header.namespace,
        "tokenizer": header.fingerprint,
        "tokens": header.tokens,
        "documents": header.documents,
        "bytes": path.stat().st_size,
        "rungs": list(header.rungs),
        "created": header.created_utc,
    }
    try:
        load(path)
    except CorpusFileError as error:
        return seen, str(error)
    return seen, None


def merge_files(inputs: Sequence[Path], output: Path, *, max_bytes: int | None) -> Written:
    """Raises CorpusFileError, also where namespace, tokenizer or rungs differ."""
    first = read_header(inputs[0])
    rungs = np.array(first.rungs, np.int64)
    with progress(f"merging {len(inputs)} files"):
        corpora = [load(path, first.namespace, first.fingerprint, rungs=rungs) for path in inputs]
        try:
            merged = merge(corpora, max_bytes)
        except ValueError as error:
            raise CorpusFileError(str(error), "input") from None
        save(output, merged, first.namespace, first.fingerprint)
    return _written(output, merged, sum(corpus.documents for corpus in corpora))


def _written(path: Path, corpus: FrozenCorpus, offered: int) -> Written:
    left_out = offered - corpus.documents
    return Written(str(path), corpus.documents, left_out, corpus.tokens, corpus.bytes_used)


def _entries(path: Path, field: str) -> Iterator[str | Ints]:
    """Of each line its text or its token ids. Raises CorpusFileError with file and line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _entry(line, field, f"{path}:{number}")
    except OSError as error:
        raise CorpusFileError(f"{path}: cannot be read: {error.strerror or error}", "io") from error


def _entry(line: bytes, field: str, place: str) -> str | Ints:
    try:
        value = json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        raise CorpusFileError(f"{place}:{error.colno}: no JSON: {error.msg}", "input") from None
    except (ValueError, RecursionError):
        raise CorpusFileError(f"{place}: no JSON in UTF-8", "input") from None
    if not isinstance(value, list):
        value = _field_of(value, field, place)
    if isinstance(value, list):
        return _ids(value, place)
    if not isinstance(value, str):
        raise CorpusFileError(f"{place}: {field}: expected a text or a list of token ids", "input")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise CorpusFileError(f"{place}: {field}: half of a surrogate pair", "input") from None
    return value


def _field_of(value: Any, field: str, place: str) -> Any:
    for part in field.split("."):
        if not isinstance(value, dict) or part not in value:
            raise CorpusFileError(f"{place}: expected a field {field!r}, or a list of token ids", "input")
        value = value[part]
    return value


def _ids(values: list[Any], place: str) -> Ints:
    for at, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise CorpusFileError(f"{place}: item {at}: expected a token id from 0 to 2147483647", "input")
    return np.array(values, np.int32)


def _tokenised(entries: Iterable[str | Ints], folder: Path) -> Iterator[Ints]:
    """The tokenizer is needed only where there are texts."""
    tokenizer: Tokenizer | None = None
    entries = iter(entries)
    while batch := list(islice(entries, _BATCH)):
        texts = [entry for entry in batch if isinstance(entry, str)]
        if texts and tokenizer is None:
            tokenizer = _load_tokenizer(folder)
        # No special tokens: an output has no beginning-of-text token, and its end is no draft.
        encoded = tokenizer.encode_batch(texts, add_special_tokens=False) if tokenizer is not None else []
        ids = iter(encoded)
        for entry in batch:
            yield np.array(next(ids).ids, np.int32) if isinstance(entry, str) else entry


def _load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        from tokenizers import Tokenizer
    except ImportError:
        words = "texts need the package tokenizers (pip install tokenizers); lists of token ids do not"
        raise CorpusFileError(words, "input") from None
    if not path.is_file():
        raise CorpusFileError(f"{path}: not there; texts need it, lists of token ids do not", "input")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The package raises nothing narrower.
        raise CorpusFileError(f"{path}: not a tokenizer: {error}", "input") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)
