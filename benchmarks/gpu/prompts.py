"""Copying-heavy prompts for benchmarks.gpu.compare copying: a JSON list of lists of token ids.

    python -m benchmarks.gpu.prompts --output FILE [--count 1364]
    python -m benchmarks.gpu.prompts --output FILE --chat --count 64
    python -m benchmarks.gpu.prompts --output FILE --talk --count 2000

A prompt asks the reference target to repeat a passage and begins the answer with the passage's first tokens.
The passages are pieces of the prompt sets of $SPECCTL_SHARED that hold much text and, as these repeat each
other, of Python files of the standard library and of site-packages. A passage shares little text with those
before it. Kept are prompts where, with the passage's first part given, the model's most likely next token is
the passage's at 80 % of the next 64 places. No proposer is asked. This costs one pass and no decoding, and it
does not promise that the model's own answer stays on the passage: it often leaves it after the first wrong
token. compare copying therefore measures how much of the answers is repeated.

``--chat``: questions of the prompt sets instead, chat, code and SQL in turn; no model is asked.
``--talk``: texts of chats, questions with their answers, for benchmarks that cut prompts out of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.choose_copying import rows_of
from benchmarks.lossless import SHARED
from benchmarks.suffix_stream import code_files, default_roots

KINDS = ("swe", "spec_bench", "sql", "bfcl", "agentic_steps", "agentic_traj")
TALK_KINDS = ("mt_bench", "alpaca", "sharegpt")
CHAT_KINDS = ("mt_bench", "humaneval", "sharegpt", "sql")
_CHAT_TOKENS_MAX = 400
PASSAGE_TOKENS = (256, 440)
PASSAGES_OF_A_TEXT = 3
OPENING_TOKENS = 24
CHECKED_TOKENS = 64
SHARE_MIN = 0.8
VARIED_MIN = 0.8
"""Different n-grams of a passage, against its tokens."""
NGRAM = 8
SEEN_MAX = 0.2
"""Share of a passage's n-grams that earlier passages may hold: else a corpus has seen the answer."""


def texts() -> Iterator[str]:
    for kind in KINDS:
        for row in rows_of(kind):
            yield row["prompt"] if "prompt" in row else _joined(row["messages"])
    for file in code_files(default_roots()):
        yield file.text()


def _joined(messages: Any) -> str:
    return "\n".join(message["content"] for message in messages if isinstance(message["content"], str))


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
    return found


def copied_shares(model: Any, prompts: Sequence[Sequence[int]], following: Sequence[Sequence[int]]) -> Any:
    """float [n]: share of ``following`` [n, CHECKED_TOKENS] that is the most likely token where it stands."""
    rows = [[*prompt, *after] for prompt, after in zip(prompts, following, strict=True)]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=model.device)
    ends = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    places = (ends - 1 + torch.arange(CHECKED_TOKENS)).to(model.device)
    with torch.inference_mode():
        hidden = model.model(ids).last_hidden_state
        hidden = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        best = model.lm_head(hidden).argmax(-1)
    return (best.cpu() == torch.tensor(following)).float().mean(1)


def chosen(model: Any, encode: Any, pieces: Sequence[list[int]], count: int) -> list[list[int]]:
    """The first ``count`` prompts over ``pieces`` that pass; fewer where pieces run out."""
    at_once = 16
    before, after = encode("<|bos|><|user|>Repeat the following text.\n\n"), encode("<|end|><|assistant|>")
    kept: list[list[int]] = []
    shares: list[float] = []
    for at in range(0, len(pieces), at_once):
        batch = pieces[at : at + at_once]
        prompts = [[*before, *piece, *after, *piece[:OPENING_TOKENS]] for piece in batch]
        following = [piece[OPENING_TOKENS : OPENING_TOKENS + CHECKED_TOKENS] for piece in batch]
        found = copied_shares(model, prompts, following).tolist()
        shares += found
        kept += [prompt for prompt, share in zip(prompts, found, strict=True) if share >= SHARE_MIN]
        if len(kept) >= count:
            break
    print(f"{len(kept)} of {len(shares)} kept; median share {median(shares):.2f}", flush=True)
    return kept[:count]


def chat(encode: Any, count: int) -> list[list[int]]:
    """``count`` questions, one of each kind in turn; fewer where one kind runs out."""
    found = []
    for rows in zip(*map(rows_of, CHAT_KINDS), strict=False):
        prompts = [encode(f"<|bos|><|user|>{row['prompt']}<|end|><|assistant|>") for row in rows]
        found += [ids for ids in prompts if len(ids) <= _CHAT_TOKENS_MAX]
    return found[:count]


def talk(encode: Any, count: int) -> list[list[int]]:
    """``count`` texts, prompts and answers of chats; ShareGPT's own conversations are the last."""
    asked = (f"{row['prompt']}\n{_answer(row)}" for kind in TALK_KINDS for row in rows_of(kind))
    file = SHARED / "data" / "vllm_sharegpt" / "dev.json"
    told = (
        "\n".join(turn["value"] for turn in row["conversations"])
        for row in json.loads(file.read_text(encoding="utf-8"))
    )
    return [encode(text) for text in itertools.islice(itertools.chain(asked, told), count)]


def _answer(row: Mapping[str, Any]) -> str:
    given = row.get("reference", "")
    return given if isinstance(given, str) else "\n".join(map(str, given))


def passages_of(encode: Any, arguments: argparse.Namespace) -> list[list[int]]:
    """Cut here, where the texts are, and perhaps chosen from on another machine."""
    file: Path | None = arguments.passages
    if file is not None and file.exists():
        found: list[list[int]] = json.loads(file.read_text(encoding="utf-8"))
        return found
    found = passages(map(encode, texts()), arguments.count * 3 // 2, arguments.seed)
    if file is not None:
        file.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=SHARED / "models" / "reference-target")
    parser.add_argument("--count", type=int, default=1364, help="4 sets of 1, 4, 16, 64 and 256")
    parser.add_argument("--chat", action="store_true", help="questions instead")
    parser.add_argument("--talk", action="store_true", help="texts of chats instead")
    parser.add_argument("--passages", type=Path, help="JSON list: written where it is missing, else taken")
    parser.add_argument("--device", default="cpu", help="none: write the passages and ask no model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    if arguments.chat:
        prompts = chat(encode, arguments.count)
    elif arguments.talk:
        prompts = talk(encode, arguments.count)
    else:
        pieces = passages_of(encode, arguments)
        print(f"{len(pieces)} passages", flush=True)
        if arguments.device == "none":
            return
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).to(arguments.device)
        prompts = chosen(model, encode, pieces, arguments.count)
    arguments.output.write_text(json.dumps(prompts) + "\n", encoding="utf-8")
    lengths = [len(prompt) for prompt in prompts]
    print(f"{len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens, median {median(lengths)}")


if __name__ == "__main__":
    main()
