"""Tokens of ``make bench-suffix``: source code and transcripts, cut into responses, and requests held back.

    python -m benchmarks.suffix_stream --corpus 1000000

Code: Python files of the standard library and of site-packages, in the order of a hash of their path, so that
a corpus of any size samples all packages. Transcripts: agentic_traj and sql of $SPECCTL_SHARED/data/prompts.
Whole packages, whole task groups and single SQL questions are held back for the requests. The tokenizer (a
byte-level BPE trained here) and the token ids are kept under $SPECCTL_CACHE/bench-suffix.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from testing.provenance import ROOT

Ints = npt.NDArray[np.int32]
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache")) / "bench-suffix"
PROMPTS = Path(os.environ.get("SPECCTL_SHARED", ROOT.parent / "shared")) / "data" / "prompts"
VOCABULARY = 32_000
SAMPLE_BYTES = 60_000_000
MAX_RESPONSE_TOKENS = 768
MAX_CONTEXT_TOKENS = 4_096
LEAST_TOKENS = 16
REQUESTS_OF_A_KIND = 20
FRESH_TOKENS = 1_500_000
"""Code after the corpus: for requests and responses that the corpus has not seen."""
_MAX_FILE_BYTES = 256_000
_HELD_BACK_BYTES = (150_000, 4_000_000)
_COPIES = {"_vendor", "vendor", "vendored", "_vendored", "third_party", "__pycache__", "site-packages"}


@dataclass(frozen=True)
class CodeFile:
    package: str
    path: Path
    size: int

    @cached_property
    def order(self) -> str:
        return hashed(f"{self.package}/{'/'.join(self.path.parts[-3:])}/{self.size}")

    def text(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="ignore")


@dataclass(frozen=True)
class Request:
    kind: str
    prompt: Ints
    output: Ints


@dataclass(frozen=True)
class Stream:
    corpus: list[Ints]
    """Responses, each of at most MAX_RESPONSE_TOKENS."""
    fresh: list[Ints]
    """Responses that follow the corpus and are not in it."""
    requests: list[Request]


def hashed(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def code_files(roots: Iterable[Path]) -> list[CodeFile]:
    """Every Python file of usual size below the roots, without copies of other packages, in hash order."""
    found = []
    for root in roots:
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).parts
            size = path.stat().st_size
            if _COPIES.isdisjoint(parts) and LEAST_TOKENS * 4 < size <= _MAX_FILE_BYTES:
                found.append(CodeFile(package_of(parts[0]), path, size))
    return sorted(found, key=lambda file: (file.order, str(file.path)))


def package_of(name: str) -> str:
    """Packages that differ in a number are near copies: httpx and httpx2."""
    return name.removesuffix(".py").rstrip("0123456789")


def default_roots() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths[name]) for name in ("stdlib", "purelib")]


def hold_back_packages(files: Sequence[CodeFile], requests: int) -> set[str]:
    """Packages of medium size, in hash order: one for every two requests."""
    sizes: dict[str, int] = {}
    for file in files:
        sizes[file.package] = sizes.get(file.package, 0) + file.size
    low, high = _HELD_BACK_BYTES
    medium = [name for name, size in sizes.items() if low <= size <= high]
    return set(sorted(medium, key=hashed)[: (requests + 1) // 2])


def pieces(tokens: Ints, most: int = MAX_RESPONSE_TOKENS) -> Iterator[Ints]:
    """Responses of at most ``most`` tokens; a last one of a few tokens is dropped."""
    for start in range(0, tokens.size, most):
        part = tokens[start : start + most]
        if part.size >= LEAST_TOKENS:
            yield part


def up_to(responses: Iterable[Ints], tokens: int) -> list[Ints]:
    """Responses from the first on, until there are this many tokens; the last one is cut."""
    chosen: list[Ints] = []
    for response in responses:
        if tokens <= 0:
            break
        chosen.append(response[:tokens])
        tokens -= response.size
    return chosen


def spread(few: Sequence[Ints], many: Sequence[Ints]) -> list[Ints]:
    """Both in their order, the few evenly between the many."""
    at = [(i + 0.5) / len(few) for i in range(len(few))] + [(i + 0.5) / len(many) for i in range(len(many))]
    joined = [*few, *many]
    return [joined[i] for i in np.argsort(np.array(at), kind="stable")]


def cut_request(kind: str, context: Ints, output: Ints) -> Request:
    return Request(kind, context[-MAX_CONTEXT_TOKENS:], output[:MAX_RESPONSE_TOKENS])


class Tokens:
    """The tokenizer and the token ids of the code, from the cache where they are there."""

    def __init__(self, roots: Iterable[Path], cache: Path = CACHE) -> None:
        files = code_files(roots)
        self.held_back = hold_back_packages(files, REQUESTS_OF_A_KIND)
        self.files = [file for file in files if file.package not in self.held_back]
        self.aside = [file for file in files if file.package in self.held_back]
        names = "\n".join(f"{file.package} {file.order}" for file in files)
        self.folder = cache / hashed(f"{VOCABULARY} {SAMPLE_BYTES} {names}")[:12]
        self.folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        path = self.folder / "tokenizer.json"
        if not path.exists():
            print(f"suffix stream: training a BPE of {VOCABULARY:,} tokens, once ...", flush=True)
            train(self.files).save(str(path))
        return Tokenizer.from_file(str(path))

    def encode(self, texts: Sequence[str]) -> list[Ints]:
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in encoded]

    def code(self, tokens: int) -> list[Ints]:
        """The token ids of file after file, at least this many."""
        path = self.folder / f"code-{tokens}.npy"
        if not path.exists():
            print(f"suffix stream: tokenising {tokens:,} tokens of code, once ...", flush=True)
            files = self._encode_files(tokens)
            np.save(self.folder / f"ends-{tokens}.npy", np.cumsum([file.size for file in files]))
            np.save(path, np.concatenate(files))
        ends = np.load(self.folder / f"ends-{tokens}.npy")
        return np.split(np.load(path), ends[:-1])

    def _encode_files(self, tokens: int) -> list[Ints]:
        encoded: list[Ints] = []
        waiting = iter(self.files)
        while tokens > 0 and (batch := list(islice(waiting, 64))):
            encoded += self.encode([file.text() for file in batch])
            tokens -= sum(ids.size for ids in encoded[-len(batch) :])
        return encoded


def train(files: Iterable[CodeFile]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=32,
    )
    tokenizer.train_from_iterator(_sample(files, SAMPLE_BYTES), trainer)
    return tokenizer


def _sample(files: Iterable[CodeFile], most_bytes: int) -> Iterator[str]:
    for file in files:
        if most_bytes <= 0:
            break
        most_bytes -= file.size
        yield file.text()


def code_requests(tokens: Tokens, requests: int) -> list[Request]:
    """The middle of files of the packages held back, two of each where there are two."""
    by_package: dict[str, list[CodeFile]] = {}
    for file in tokens.aside:
        if file.size >= 8_000:
            by_package.setdefault(file.package, []).append(file)
    rounds = [files[i] for i in range(requests) for files in by_package.values() if i < len(files)]
    found = []
    for ids in tokens.encode([file.text() for file in rounds[:requests]]):
        middle = ids.size // 2
        found.append(cut_request("code", ids[:middle], ids[middle:]))
    return found


def rows_of(name: str) -> list[dict[str, Any]]:
    with open(PROMPTS / f"{name}.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def agentic(tokens: Tokens, requests: int) -> tuple[list[Ints], list[Request]]:
    """Responses of the corpus, and requests of the task groups held back: at most two turns of each."""
    rows = rows_of("agentic_traj")
    groups = sorted({row["group"] for row in rows}, key=hashed)[: (requests + 1) // 2]
    aside: list[tuple[str, str]] = []
    for group in groups:
        first = next(row for row in rows if row["group"] == group)
        turns = [turn for turn in turns_of(first["messages"]) if len(turn[1]) >= 8 * LEAST_TOKENS]
        aside += sorted(turns, key=lambda turn: hashed(turn[0] + turn[1]))[:2]
    outputs = [out for row in rows if row["group"] not in groups for _, out in turns_of(row["messages"])]
    corpus = [part for ids in tokens.encode(outputs) for part in pieces(ids)]
    return corpus, _encoded(tokens, "agentic", aside[:requests])


def sql(tokens: Tokens, requests: int) -> tuple[list[Ints], list[Request]]:
    rows = sorted(rows_of("sql"), key=lambda row: hashed(row["id"]))
    aside = [(row["prompt"], row["reference"]) for row in rows[:requests]]
    known = {output for _, output in aside}
    outputs = [row["reference"] for row in rows[requests:] if row["reference"] not in known]
    return [part for ids in tokens.encode(outputs) for part in pieces(ids)], _encoded(tokens, "sql", aside)


def _encoded(tokens: Tokens, kind: str, turns: Sequence[tuple[str, str]]) -> list[Request]:
    contexts = tokens.encode([context for context, _ in turns])
    outputs = tokens.encode([output for _, output in turns])
    return [cut_request(kind, context, output) for context, output in zip(contexts, outputs, strict=True)]


def load_stream(corpus_tokens: int, requests: int = REQUESTS_OF_A_KIND) -> Stream:
    """Exactly ``corpus_tokens`` of corpus, where the interpreter has that much code."""
    tokens = Tokens(default_roots())
    agentic_corpus, agentic_requests = agentic(tokens, requests)
    sql_corpus, sql_requests = sql(tokens, requests)
    transcripts = up_to([*agentic_corpus, *sql_corpus], corpus_tokens // 2)
    code_tokens = corpus_tokens - sum(part.size for part in transcripts)
    code = [part for ids in tokens.code(corpus_tokens + FRESH_TOKENS) for part in pieces(ids)]
    chosen = up_to(code, code_tokens)
    return Stream(
        corpus=spread(transcripts, chosen),
        fresh=up_to(code[len(chosen) :], FRESH_TOKENS),
        requests=[*code_requests(tokens, requests), *agentic_requests, *sql_requests],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=int, default=1_000_000)
    stream = load_stream(parser.parse_args().corpus)
    for name, part in (("corpus", stream.corpus), ("fresh", stream.fresh)):
        print(f"{name}: {sum(ids.size for ids in part):,} tokens in {len(part):,} responses")
    for kind in dict.fromkeys(request.kind for request in stream.requests):
        of_kind = [request for request in stream.requests if request.kind == kind]
        prompts = np.mean([request.prompt.size for request in of_kind])
        outputs = np.mean([request.output.size for request in of_kind])
        print(f"{kind}: {len(of_kind)} requests, prompt {prompts:.0f}, output {outputs:.0f} tokens (mean)")


if __name__ == "__main__":
    main()


def turns_of(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(context, output) of every assistant turn."""
    context = ""
    for message in messages:
        content = message.get("content") or ""
        if message.get("tool_calls"):
            content += json.dumps(message["tool_calls"])
        if message["role"] == "assistant" and context:
            yield context, content
        context += f"\n[{message['role']}]\n{content}"
