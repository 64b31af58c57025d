"""Suffix index: seconds per call, and tokens per step on a replay of recorded outputs.

    python benchmarks/suffix_index.py time
    python benchmarks/suffix_index.py replay --set min_token_prob=0.2 max_spec_factor=2
    python benchmarks/suffix_index.py sweep
    python benchmarks/suffix_index.py calibration

A replay speculates, accepts what the recorded output confirms, and extends, one request after the other;
every finished output joins the corpus. Data: SPECCTL_DATA (a folder with prompts/*.jsonl) and SPECCTL_MODELS
(a folder with reference-target/tokenizer.json).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

Ints = npt.NDArray[np.int32]
Request = tuple[Ints, Ints]
ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("SPECCTL_DATA", ROOT.parent / "shared" / "data"))
MODELS = Path(os.environ.get("SPECCTL_MODELS", ROOT.parent / "shared" / "models"))
SETS = ("agentic_traj", "agentic_steps", "swe", "sql", "json_mode", "sharegpt")
MAX_REQUEST_TOKENS = 16_384
MAX_OUTPUT_TOKENS = 1_024
# Cost of one verified token as a share of a step: a GPU that reads weights, and a small model on a CPU.
TOKEN_COSTS = (0.03, 0.15)


def encoder() -> Callable[[str], Ints]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "reference-target" / "tokenizer.json"))
    return lambda text: np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def texts(name: str) -> Iterator[tuple[str, str]]:
    """(prompt, output) of a set, in its order."""
    with open(DATA / "prompts" / f"{name}.jsonl", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if "messages" in row:
                yield from turns_of(row["messages"])
            elif "turns" in row:
                yield row["turns"][0], row["reference"][0]
            elif row.get("reference"):
                yield row["prompt"], row["reference"]


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


def load(name: str, requests: int) -> list[Request]:
    """At most ``requests`` of a set that fit, in its order."""
    encode = encoder()
    found: list[Request] = []
    for prompt, output in texts(name):
        if len(prompt) > 4 * MAX_REQUEST_TOKENS:
            continue
        prompt_ids, output_ids = encode(prompt), encode(output)[:MAX_OUTPUT_TOKENS]
        if output_ids.size > 1 and prompt_ids.size + output_ids.size <= MAX_REQUEST_TOKENS:
            found.append((prompt_ids, output_ids))
        if len(found) == requests:
            break
    return found


@dataclasses.dataclass
class Replay:
    steps: int = 0
    emitted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    from_corpus: int = 0
    estimates: list[tuple[int, int, float, bool, float]] = dataclasses.field(default_factory=list)
    """(source, matched tokens, estimated probability of all up to here, whether all came true, estimated
    probability of this token given those before it)"""

    def gain(self, token_cost: float) -> float:
        """Speed against no speculation, if a drafted token costs this share of a step."""
        return self.emitted_tokens / (self.steps + token_cost * self.drafted_tokens)


def replay(
    requests: list[Request],
    options: SuffixIndexOptions,
    num_speculative_tokens: int,
    index: SuffixIndex | None = None,
) -> Replay:
    """In an index of its own, or in slot 0 of one whose corpus is filled."""
    index = index or SuffixIndex(options, 1, MAX_REQUEST_TOKENS)
    slots = np.zeros(1, np.int32)
    result = Replay()
    for prompt, output in requests:
        index.start(0, prompt)
        index.extend(0, output[:1])
        known = 1
        while known < output.size:
            budget = min(num_speculative_tokens, output.size - known - 1)
            batch = index.propose_batch(slots, np.array([budget], np.int32))
            length = int(batch.lengths[0])
            hits = batch.tokens[0, :length] == output[known : known + length]
            accepted = length if hits.all() else int(np.argmin(hits))
            emitted = output[known : known + accepted + 1]
            result.steps += 1
            result.emitted_tokens += emitted.size
            result.drafted_tokens += length
            result.accepted_tokens += accepted
            result.from_corpus += int(batch.source[0] == 2)
            before = 1.0
            for j in range(length):
                estimate = float(batch.probs[0, j])
                matched = int(batch.match_tokens[0]) + j
                result.estimates.append(
                    (int(batch.source[0]), matched, estimate, j < accepted, estimate / before)
                )
                before = estimate
            index.extend(0, emitted)
            known += emitted.size
        index.finish(0)
    return result


def line_of(label: str, result: Replay) -> str:
    steps = max(1, result.steps)
    gains = "  ".join(f"x{result.gain(cost):.3f}" for cost in TOKEN_COSTS)
    return (
        f"{label:34s} tokens/step {result.emitted_tokens / steps:5.2f}  drafted/step "
        f"{result.drafted_tokens / steps:5.2f}  accepted/step {result.accepted_tokens / steps:5.2f}  "
        f"corpus {result.from_corpus / steps:4.0%}  gain {gains}"
    )


def expected_calibration_error(result: Replay, bins: int = 10) -> float:
    return calibration_error(
        np.array([row[2] for row in result.estimates]), np.array([row[3] for row in result.estimates]), bins
    )


def calibration_error(
    estimate: npt.NDArray[np.float64], came_true: npt.NDArray[Any], bins: int = 10
) -> float:
    """Mean distance of estimated and true share, over equal bins of the estimate; both [n]."""
    if estimate.size == 0:
        return 0.0
    at = np.minimum((estimate * bins).astype(int), bins - 1)
    gaps = [
        abs(estimate[at == b].mean() - came_true[at == b].mean()) * (at == b).mean()
        for b in range(bins)
        if (at == b).any()
    ]
    return float(sum(gaps))


def run_replay(arguments: argparse.Namespace) -> None:
    options = options_of(arguments.set)
    print(options)
    for name in SETS:
        started_s = time.perf_counter()
        result = replay(load(name, arguments.requests), options, arguments.drafts)
        error = expected_calibration_error(result)
        print(f"{line_of(name, result)}  ECE {error:.3f}  {time.perf_counter() - started_s:.1f} s")


def run_sweep(arguments: argparse.Namespace) -> None:
    loaded = {name: load(name, arguments.requests) for name in SETS}
    base = options_of(arguments.set)
    grid = itertools.product((1, 2, 3), (0.1, 0.2, 0.3, 0.4, 0.5), (1.0, 2.0, 4.0))
    for least, prob, factor in grid:
        options = dataclasses.replace(
            base, min_match_tokens=least, min_token_prob=prob, max_spec_factor=factor
        )
        gains = {name: replay(loaded[name], options, arguments.drafts) for name in SETS}
        cells = "  ".join(
            f"{name} {r.emitted_tokens / r.steps:.2f}/{r.drafted_tokens / r.steps:.2f}"
            for name, r in gains.items()
        )
        means = [float(np.mean([np.log(r.gain(cost)) for r in gains.values()])) for cost in TOKEN_COSTS]
        print(
            f"match>={least} prob>={prob} factor {factor}: "
            + " ".join(f"x{np.exp(mean):.3f}" for mean in means)
            + f"  {cells}",
            flush=True,
        )


def run_calibration(arguments: argparse.Namespace) -> None:
    options = options_of(arguments.set)
    for name in SETS:
        result = replay(load(name, arguments.requests), options, arguments.drafts)
        print(f"{name}: ECE {expected_calibration_error(result):.3f} over {len(result.estimates)} tokens")
        for source in (1, 2):
            rows = [row for row in result.estimates if row[0] == source]
            for low, high in ((1, 1), (2, 2), (3, 3), (4, 5), (6, 8), (9, 12), (13, 20), (21, 400)):
                part = [row for row in rows if low <= row[1] <= high]
                if part:
                    estimate = np.mean([row[2] for row in part])
                    truth = np.mean([row[3] for row in part])
                    print(
                        f"  source {source} match {low}-{high}: n {len(part)} "
                        f"estimate {estimate:.3f} true {truth:.3f}"
                    )


def options_of(pairs: list[str]) -> SuffixIndexOptions:
    values = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    return SuffixIndexOptions(**values)


def corpus_stream(tokens: int) -> list[Ints]:
    """Outputs: recorded text, repeated with a different order of its pieces until there are enough tokens."""
    encode = encoder()
    pieces = [encode(output) for name in SETS for _, output in itertools.islice(texts(name), 400)]
    pieces = [piece for piece in pieces if piece.size > 16]
    generator = np.random.default_rng(0)
    chosen: list[Ints] = []
    total = 0
    while total < tokens:
        piece = pieces[int(generator.integers(len(pieces)))]
        start = int(generator.integers(piece.size - 8))
        piece = piece[start : start + 512].copy()
        # One token in 16 is replaced, so that no passage is an exact copy of an earlier one.
        swapped = generator.random(piece.size) < 1 / 16
        piece[swapped] = generator.integers(0, 16_384, int(swapped.sum()))
        chosen.append(piece)
        total += piece.size
    return chosen


def percentiles(label: str, samples_s: list[float], per: int = 1) -> None:
    p50, p99 = np.percentile(np.array(samples_s) * 1e6 / per, [50, 99])
    print(f"  {label:44s} p50 {p50:8.2f} us   p99 {p99:8.2f} us")


def run_time(arguments: argparse.Namespace) -> None:
    for corpus_tokens in arguments.corpus:
        pieces = corpus_stream(corpus_tokens + 600_000)
        for batch in arguments.batch:
            time_batch(pieces, corpus_tokens, batch)


def time_batch(pieces: list[Ints], corpus_tokens: int, batch: int) -> None:
    index = SuffixIndex(SuffixIndexOptions(), batch + 1, 4096)
    at, filled, fill_s = 0, 0, 0.0
    while filled < corpus_tokens:
        index.start(batch, pieces[at][:0])
        index.extend(batch, pieces[at])
        index.finish(batch)
        filled += pieces[at].size
        at += 1
        started_s = time.perf_counter()
        index.flush()
        fill_s += time.perf_counter() - started_s
    rest = np.concatenate(pieces[at:])
    span = min(1400, rest.size // batch)
    streams = [rest[i * span : (i + 1) * span] for i in range(batch)]
    for slot, stream in enumerate(streams):
        index.start(slot, stream[: span // 2])
    slots, budgets = np.arange(batch, dtype=np.int32), np.full(batch, 8, np.int32)
    offsets = np.arange(batch + 1, dtype=np.int32)
    propose_s, update_s = [], []
    for step in range(span // 2, span):
        tokens = np.array([stream[step] for stream in streams], np.int32)
        started_s = time.perf_counter()
        index.extend_batch(slots, tokens, offsets)
        between_s = time.perf_counter()
        index.propose_batch(slots, budgets)
        update_s.append(between_s - started_s)
        propose_s.append(time.perf_counter() - between_s)
    print(f"corpus {corpus_tokens:,} tokens, batch {batch} (indexed at {fill_s / filled * 1e6:.2f} us/token)")
    percentiles("propose_batch, whole call", propose_s)
    percentiles("propose_batch, per request", propose_s, batch)
    percentiles("extend_batch, whole call", update_s)
    percentiles("extend_batch, per token", update_s, batch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("time", "replay", "sweep", "calibration"))
    parser.add_argument("--requests", type=int, default=120, help="of each set")
    parser.add_argument("--drafts", type=int, default=8, help="num_speculative_tokens")
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--corpus", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 256])
    arguments = parser.parse_args()
    print(f"warm-up {SuffixIndex(SuffixIndexOptions(), 1, 16).warm_up():.2f} s")
    runs = {"time": run_time, "replay": run_replay, "sweep": run_sweep, "calibration": run_calibration}
    runs[arguments.what](arguments)


if __name__ == "__main__":
    main()
