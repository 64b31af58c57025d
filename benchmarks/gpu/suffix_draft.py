"""Seconds of the device's suffix drafts by batch, with a corpus; eager launches and a captured graph.

python -m benchmarks.gpu.suffix_draft [--corpus 4000000] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from specctl_kernels.suffix_draft import DeviceCorpus, SuffixDraftRule, suffix_draft

from benchmarks.provenance import summary
from specctl.draft import device_rule
from specctl.draft.calibration import chances
from specctl.draft.chains import ROW_WORDS
from specctl.draft.frozen_corpus import build_block
from specctl.draft.suffix_index import SuffixIndexOptions, rungs_for

_CONTEXT_TOKENS = 2048
_WIDTH = 8


def markov_text(tokens: int, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Text with repeats: pieces of 4 to 40 tokens, drawn again and again, and noise between them."""
    generator = np.random.default_rng(seed)
    pieces = [
        np.random.default_rng(i).integers(0, 32_000, 4 + i % 37).astype(np.int32) for i in range(20_000)
    ]
    text = np.empty(tokens + 64, np.int32)
    at = 0
    while at < tokens:
        piece = pieces[int(generator.zipf(1.3)) % len(pieces)]
        text[at : at + piece.size] = piece
        at += piece.size
        if generator.random() < 0.3:
            text[at : at + 3] = generator.integers(0, 32_000, 3)
            at += 3
    return text[:tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=int, default=4_000_000)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    options = SuffixIndexOptions()
    text = markov_text(arguments.corpus, 1)
    documents = [text[at : at + 512] for at in range(0, text.size, 512)]
    block = build_block(documents, rungs_for(options))
    corpus = DeviceCorpus(2 * block.mem.nbytes + 2**20, ROW_WORDS, device)
    corpus.commit(corpus.stage(block.mem, block.row))
    most = max(arguments.batch)
    own = markov_text(most * _CONTEXT_TOKENS, 2).reshape(most, _CONTEXT_TOKENS)
    tokens = torch.from_numpy(own).to(device)
    lengths = torch.full((most,), _CONTEXT_TOKENS, dtype=torch.int32, device=device)
    slots = torch.arange(most, device=device)
    ones = torch.ones(most, dtype=torch.int32, device=device)
    limits = torch.tensor(device_rule.limits_of(options), dtype=torch.float64, device=device)
    drafts = torch.zeros((most, _WIDTH), dtype=torch.int64, device=device)
    probs = torch.zeros((most, _WIDTH), dtype=torch.float32, device=device)
    heads = torch.zeros((3, most), dtype=torch.int32, device=device)
    rule = SuffixDraftRule(**device_rule.rule_of(options))
    table = torch.from_numpy(chances()).to(device)
    figures = {}
    for batch in arguments.batch:

        def call(n: int = batch) -> None:
            suffix_draft(
                tokens, lengths, slots[:n], ones[:n], ones, corpus, table, rule, limits, _WIDTH,
                drafts[:n], probs[:n], heads[:, :n],
            )  # fmt: skip

        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        eager, replayed = [], []
        for _ in range(arguments.repeats):
            eager.append(timed_us(call))
            replayed.append(timed_us(graph.replay))
        found = {
            "captured us": summary(replayed),
            "eager us": summary(eager),
            "drafted per request": float(heads[0, :batch].float().mean()),
            "from the corpus": float((heads[2, :batch] == 3).float().mean()),
        }
        figures[str(batch)] = found
        print(batch, found, flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def timed_us(call: Any, calls: int = 100) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / calls


if __name__ == "__main__":
    main()
