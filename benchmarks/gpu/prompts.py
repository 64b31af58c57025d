"""Prompts for the benchmarks on a GPU, for any model: JSON lists of lists of token ids.

    python -m benchmarks.gpu.prompts --model FOLDER --output FILE [--count 1364] [--chat]

The text is Python source of the standard library and of site-packages. A prompt asks to repeat a passage and
begins the answer with the passage's first tokens; a passage shares little text with those before it.
``--chat``: plain texts instead, for benchmarks that cut prompts out of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer

from benchmarks.suffix_stream import code_files, default_roots

PASSAGE_TOKENS = (256, 440)
PASSAGES_OF_A_TEXT = 3
OPENING_TOKENS = 24
NGRAM = 8
VARIED_MIN = 0.8
"""Different n-grams of a passage, against its tokens."""
SEEN_MAX = 0.2
"""Share of a passage's n-grams that earlier passages may hold: else a corpus has seen the answer."""


def passages(documents: Iterable[Sequence[int]], most: int, seed: int) -> list[list[int]]:
    """At most ``most`` pieces of the documents that are new and not one line again and again, shuffled."""
    generator = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    found: list[list[int]] = []
    for document in documents:
        at = taken = 0
        while at + PASSAGE_TOKENS[0] <= len(document) and taken < PASSAGES_OF_A_TEXT:
            piece = list(document[at : at + generator.randint(*PASSAGE_TOKENS)])
            at += len(piece)
            grams = {tuple(piece[i : i + NGRAM]) for i in range(len(piece) - NGRAM + 1)}
            if len(grams & seen) <= SEEN_MAX * len(grams) and len(grams) >= VARIED_MIN * len(piece):
                found.append(piece)
                taken += 1
            seen |= grams
        if len(found) >= most:
            break
    generator.shuffle(found)
    return found[:most]


def copying_prompts(tokenizer_file: Path, count: int, seed: int = 0) -> list[list[int]]:
    """Token ids of at most ``count`` prompts, each with a passage of its own."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    before = tokenizer.encode("Repeat the following text.\n\n").ids
    after = tokenizer.encode("\n\nThe same text again:\n\n", add_special_tokens=False).ids
    pieces = passages(_encoded(tokenizer), count, seed)
    return [[*before, *piece, *after, *piece[:OPENING_TOKENS]] for piece in pieces]


def plain_texts(tokenizer_file: Path, count: int) -> list[list[int]]:
    """Token ids of the first ``count`` texts."""
    return list(itertools.islice(_encoded(Tokenizer.from_file(str(tokenizer_file))), count))


def _encoded(tokenizer: Tokenizer) -> Iterator[list[int]]:
    return (tokenizer.encode(file.text()).ids for file in code_files(default_roots()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder with tokenizer.json")
    parser.add_argument("--count", type=int, default=1364, help="4 sets of 1, 4, 16, 64 and 256")
    parser.add_argument("--chat", action="store_true", help="plain texts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    file = arguments.model / "tokenizer.json"
    if arguments.chat:
        prompts = plain_texts(file, arguments.count)
    else:
        prompts = copying_prompts(file, arguments.count, arguments.seed)
    arguments.output.write_text(json.dumps(prompts) + "\n", encoding="utf-8")
    lengths = [len(prompt) for prompt in prompts]
    print(f"{len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens, median {median(lengths)}")


if __name__ == "__main__":
    main()
