"""``specctl corpus build|inspect|merge``. Nothing here prints or logs a text or a token id."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specctl.draft.corpus_file import (
    FORMAT_VERSION,
    CorpusHeader,
    FrozenCorpus,
    fingerprint_of,
    load,
    read_header,
    save,
)
from specctl.draft.frozen_corpus import build_block, merge, newest_within
from specctl.draft.options import SuffixIndexOptions
from specctl.draft.suffix_index import rungs_for
from specctl.errors import CorpusFileError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["add_arguments", "run"]

Ints = npt.NDArray[np.int32]
_BATCH = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    words = "index logged outputs: JSON lines with a text, or with token ids; the oldest file first"
    build = actions.add_parser("build", help="index logged outputs", description=words)
    build.add_argument("inputs", nargs="+", type=Path, metavar="INPUT.jsonl")
    build.add_argument("--tokenizer", required=True, type=Path, metavar="FOLDER", help="of the served model")
    build.add_argument("--field", default="output", help="of a line; a.b for b inside a; default: output")
    build.add_argument("--namespace", default="", help="whose requests may get drafts from it; default: none")
    words = "check a corpus file and say what it holds, without a text"
    inspect = actions.add_parser("inspect", help=words, description=words)
    inspect.add_argument("file", type=Path, metavar="FILE")
    words = "one corpus of several, the oldest first; equal outputs are kept once"
    merge = actions.add_parser("merge", help=words, description=words)
    merge.add_argument("inputs", nargs="+", type=Path, metavar="FILE")
    for action in (build, merge):
        action.add_argument("--output", required=True, type=Path, metavar="FILE")
        action.add_argument("--max-bytes", type=_bytes, metavar="N", help="leave out what is oldest")


def _bytes(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count}: expected 1 or more")
    return count


def run(options: argparse.Namespace) -> int:
    """Raises CorpusFileError."""
    if options.action == "inspect":
        return inspect(options.file)
    if options.action == "merge":
        return merge_files(options.inputs, options.output, max_bytes=options.max_bytes)
    return build(
        options.inputs,
        options.output,
        tokenizer=options.tokenizer,
        field=options.field,
        namespace=options.namespace,
        max_bytes=options.max_bytes,
    )


def build(
    inputs: Sequence[Path],
    output: Path,
    *,
    tokenizer: Path,
    field: str,
    namespace: str,
    max_bytes: int | None,
) -> int:
    """Index logged outputs, the oldest file first. Raises CorpusFileError."""
    fingerprint = fingerprint_of(tokenizer)
    entries = (entry for path in inputs for entry in _entries(path, field))
    documents = [document for document in _tokenised(entries, tokenizer) if document.size]
    if not documents:
        raise CorpusFileError(f"expected outputs in {_listed(inputs)}, got none", "input")
    rungs = rungs_for(SuffixIndexOptions())
    try:
        kept = documents if max_bytes is None else newest_within(documents, rungs, max_bytes)
        corpus = build_block(kept, rungs)
    except ValueError as error:
        raise CorpusFileError(str(error), "input") from None
    save(output, corpus, namespace, fingerprint)
    _say_written(output, corpus, len(documents))
    return 0


def inspect(path: Path) -> int:
    """Raises CorpusFileError when there is no sound header to show; a damaged block is 4."""
    header = read_header(path)
    print("\n".join(_words(path, header)))
    try:
        load(path)
    except CorpusFileError as error:
        print(f"  checksum     WRONG: {error}")
        return 4
    print("  checksum     ok")
    return 0


def merge_files(inputs: Sequence[Path], output: Path, *, max_bytes: int | None) -> int:
    """Raises CorpusFileError, also where namespace, tokenizer or rungs differ."""
    first = read_header(inputs[0])
    rungs = np.array(first.rungs, np.int64)
    corpora = [load(path, first.namespace, first.fingerprint, rungs=rungs) for path in inputs]
    try:
        merged = merge(corpora, max_bytes)
    except ValueError as error:
        raise CorpusFileError(str(error), "input") from None
    save(output, merged, first.namespace, first.fingerprint)
    _say_written(output, merged, sum(corpus.documents for corpus in corpora))
    return 0


def _say_written(path: Path, corpus: FrozenCorpus, offered: int) -> None:
    dropped = offered - corpus.documents
    documents = f"{corpus.documents} documents" + (f" ({dropped} left out)" if dropped else "")
    print(f"{path}: {documents}, {corpus.tokens} tokens, {corpus.bytes_used} bytes")


def _words(path: Path, header: CorpusHeader) -> list[str]:
    size = path.stat().st_size
    each = f"{size / header.tokens:.1f} a token" if header.tokens else "no tokens"
    return [
        f"{path}: a specctl corpus, format version {FORMAT_VERSION}, layout version {header.chains_layout}",
        f"  namespace    {header.namespace!r}",
        f"  tokenizer    {header.fingerprint}",
        f"  tokens       {header.tokens} in {header.documents} documents",
        f"  bytes        {size}, {each}",
        f"  rungs        {', '.join(str(rung) for rung in header.rungs)}",
        f"  created      {header.created_utc}",
    ]


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
