"""Is something wrong with what drafts? Acceptance that sound drafts do not have, and its likely cause. Pure.

Drafts are judged in blocks. A block is long enough, in drafts and in seconds, that neither chance nor a short
gap in the traffic looks like a fault. Counters hold no token ids, so that repeated tokens are known only by
what they do: every draft is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from specctl.contract.telemetry import SelfChecks, Telemetry, TelemetryCell
from specctl.types import Observation

__all__ = [
    "ALL_RATIO",
    "DRAFTS_MIN",
    "NEAR_ZERO_RATIO",
    "NONE_RATIO",
    "Advice",
    "Cause",
    "Fault",
    "Soundness",
    "is_head",
    "near_zero",
    "since_start",
]

DRAFTS_MIN = 50
"""Fewer tell nothing."""
NEAR_ZERO_RATIO = 0.1
"""Of first tokens: worth a look by a person, who sees ``DRAFTS_MIN`` drafts or more."""
NONE_RATIO = 0.02
"""Of first tokens, over a block: no traffic makes a sound head as bad."""
CHANCE_RATIO = 0.001
"""Under it not even the most frequent tokens are guessed: ids do not fit, or weights are not those."""
ALL_RATIO = 0.998
"""Of drafted tokens, over a block."""
FALL_RATIO = 0.5
"""Of the acceptance before a restart; the first block after it is compared."""
BLOCK_DRAFTS = 2000
BLOCK_S = 10.0
"""Seconds of polls with drafts."""
USUAL_BLOCKS = 20
"""The usual acceptance is a mean over about so many blocks."""

_HEADS = ("eagle", "eagle3", "specctl_peagle", "specctl_hybrid", "mtp", "dflash", "dspark", "nextn", "medusa")
_TEXT = ("ngram", "ngram_gpu", "suffix", "specctl_suffix")


class Cause(StrEnum):
    """Likely, not certain. Closed: also the label of the metric."""

    WRONG_HEAD = "wrong_head"
    WRONG_VOCABULARY = "wrong_vocabulary"
    BROKEN_CHECKPOINT = "broken_checkpoint"
    NO_REPEATS = "no_repeats"
    LOOP = "loop"
    DIFFERENT_OUTPUT = "different_output"


class Advice(NamedTuple):
    """``what`` is wrong and what to ``do``."""

    what: str
    do: str


@dataclass(frozen=True, slots=True)
class Fault:
    """``ratio``: of first tokens accepted, for a loop of all drafted tokens; for a different output of the
    answers that were checked, which ``drafts`` counts then. ``usual_ratio``: of the engine's last start,
    where that is what it is compared with."""

    cause: Cause
    ratio: float
    drafts: int
    advice: Advice
    usual_ratio: float | None = None

    @property
    def words(self) -> str:
        if self.cause is Cause.DIFFERENT_OUTPUT:
            seen = f"{self.ratio:.1%} of {self.drafts} checked answers differ beyond rounding"
            return f"{self.advice.what}: {seen}; {self.advice.do}"
        before = "" if self.usual_ratio is None else f", {self.usual_ratio:.0%} before the restart"
        part = "drafted tokens" if self.cause is Cause.LOOP else "first tokens"
        seen = f"{self.ratio:.1%} of the {part} of {self.drafts} drafts were accepted{before}"
        return f"{self.advice.what}: {seen}; {self.advice.do}"


def is_head(method: str) -> bool:
    """``method``: in lower case."""
    return method in _HEADS or method.endswith("_mtp")


def _copies_text(method: str) -> bool:
    return method in _TEXT or method.startswith("specctl_suffix")


def near_zero(method: str) -> Advice:
    """Of drafts that are hardly ever accepted. ``method``: in lower case; empty: not known."""
    if is_head(method):
        return Advice(
            "the head's drafts are hardly ever accepted",
            "likely a head of another target (other fine-tune, quantisation or chat template), or a wrong "
            "format: specctl doctor with the launch command checks its sizes",
        )
    if _copies_text(method):
        return Advice(
            "the text repeats nothing that could be drafted",
            "this traffic wants a head, a draft model or no speculation (specctl recommend); a "
            "prompt_lookup_min of 2 drafts from chance matches",
        )
    return Advice(
        "drafts are hardly ever accepted",
        "check that draft and target have the same tokenizer and chat template; a high temperature lowers it",
    )


_AS_CHANCE = Advice(
    "drafts are accepted no more often than by chance",
    "likely the draft's ids are not the target's (another vocabulary, a wrong token map), or its weights "
    "were not loaded: specctl doctor with the launch command checks its sizes",
)
_FELL = Advice(
    "acceptance fell with the restart",
    "likely a broken checkpoint, or the target changed and the draft did not: compare the files of both with "
    "those of the last start",
)
_LOOP = Advice(
    "every draft is accepted",
    "likely the output repeats itself in a loop, or the same requests are sent again; read some outputs. "
    "Where they are good, check that verification is not set to accept everything",
)


_DIFFERS = Advice(
    "greedy answers differ from those without drafts",
    "likely a verification that accepts what the target would not emit, of the engine or of a kernel; turn "
    "speculation off, and report it with the server's log, which names each token",
)


def _different(checks: SelfChecks | None) -> Fault | None:
    if checks is None or not checks.differing:
        return None
    ratio = checks.differing / max(checks.checked, 1)
    return Fault(Cause.DIFFERENT_OUTPUT, ratio, checks.checked, _DIFFERS)


class _Block:
    """Sums. ``first``: first tokens that were accepted."""

    def __init__(self) -> None:
        self.drafts = self.first = self.drafted_tokens = self.accepted_tokens = 0
        self.seconds = 0.0

    @property
    def is_full(self) -> bool:
        return self.drafts >= BLOCK_DRAFTS and self.seconds >= BLOCK_S

    def add(self, drafted_at: tuple[int, ...], accepted_at: tuple[int, ...]) -> None:
        if drafted_at and drafted_at[0]:
            self.drafts += drafted_at[0]
            self.first += accepted_at[0] if accepted_at else 0
            self.drafted_tokens += sum(drafted_at)
            self.accepted_tokens += sum(accepted_at)

    def add_cell(self, cell: TelemetryCell) -> None:
        """Of a tree: as many tokens as it is deep."""
        depth = cell.num_speculative_tokens
        self.add(cell.drafted_at[:depth], cell.accepted_at[:depth])

    def fault(self, method: str, usual: float | None = None) -> Fault | None:
        """``usual``: share of first tokens accepted at the engine's last start; None: nothing to compare."""
        first, every = self.first / self.drafts, self.accepted_tokens / self.drafted_tokens
        if every >= ALL_RATIO:
            return Fault(Cause.LOOP, every, self.drafts, _LOOP)
        if _copies_text(method):
            cause = Cause.NO_REPEATS
        elif usual is not None and first < FALL_RATIO * usual:
            return Fault(Cause.BROKEN_CHECKPOINT, first, self.drafts, _FELL, usual)
        elif first < CHANCE_RATIO:
            return Fault(Cause.WRONG_VOCABULARY, first, self.drafts, _AS_CHANCE)
        else:
            cause = Cause.WRONG_HEAD
        return Fault(cause, first, self.drafts, near_zero(method)) if first < NONE_RATIO else None


def since_start(method: str, telemetry: Telemetry) -> Fault | None:
    """Of the counters since the engine's start."""
    if (different := _different(telemetry.self_checks)) is not None:
        return different
    block = _Block()
    block.seconds = telemetry.uptime_s
    for cell in telemetry.cells:
        block.add_cell(cell)
    return block.fault(method.lower()) if block.is_full else None


class Soundness:
    """Of one target, over the starts of its engine.

    ``fault``: of the last block; None: sound, or not known.
    """

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self._served: tuple[str, str] | None = None
        self._boot_id: str | None = None
        self._begin(None)

    def _begin(self, before: float | None) -> None:
        """``before``: the usual acceptance of the last start."""
        self._block, self._before = _Block(), before
        self._usual, self._blocks = 0.0, 0

    def update(self, observation: Observation) -> bool:
        """Take in a poll, once; whether it has shown another cause, or none any more."""
        if observation.boot_id != self._boot_id:
            self._restarted(observation)
        self._count(observation)
        was, different = self.fault, _different(observation.self_checks)
        if self._block.is_full:
            self._judge("" if self._served is None else self._served[1])
        # It outlasts every block: one answer is one too many.
        self.fault = different or self.fault
        return (was and was.cause) is not (self.fault and self.fault.cause)

    def _restarted(self, observation: Observation) -> None:
        capabilities, before = observation.capabilities, self._before
        serves = None if capabilities is None else (capabilities.model, capabilities.method.lower())
        if self._blocks and self.fault is None:
            before = self._usual
        if serves is None or serves != self._served or _forgets(serves[1]):
            before = None
        self._begin(before)
        self._boot_id, self._served, self.fault = observation.boot_id, serves, None

    def _count(self, observation: Observation) -> None:
        block, before, stock = self._block, self._block.drafts, observation.stock
        if observation.cells is not None:
            for cell in observation.cells:
                block.add_cell(cell)
        elif stock is not None and stock.drafts and stock.accepted_at:
            # Which drafts were shorter is not reported: they count as long as all.
            block.add((stock.drafts,) * len(stock.accepted_at), stock.accepted_at)
        if block.drafts > before:
            block.seconds += observation.interval_s or 0.0

    def _judge(self, method: str) -> None:
        block, self._block = self._block, _Block()
        self.fault = block.fault(method, self._before)
        if self.fault is None:
            self._before = None
        self._blocks += 1
        self._usual += (block.first / block.drafts - self._usual) / min(self._blocks, USUAL_BLOCKS)


def _forgets(method: str) -> bool:
    """Suffix drafts have less to copy after a restart, so that less is accepted at first."""
    return _copies_text(method) or method == "specctl_hybrid"
