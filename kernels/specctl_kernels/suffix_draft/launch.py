"""The public call of the device's suffix drafts, and the corpus that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from specctl_kernels.suffix_draft.kernel import suffix_draft_kernel
from specctl_kernels.suffix_draft.lessons import LESSON_HEAD
from specctl_kernels.suffix_draft.token_odds import PLACES

__all__ = ["DeviceCorpus", "DeviceLessons", "SuffixDraftRule", "suffix_draft"]

_BLOCK_TOKENS = 1024
_PIECE_WORDS = 2**22


@dataclass(frozen=True)
class SuffixDraftRule:
    """The numbers of ``specctl.draft``: options, sampling, and where a row of ``chains`` keeps what."""

    rungs: tuple[int, ...]
    min_match_tokens: int
    max_match_tokens: int
    visits: int
    own_visits: int
    enough: int
    most_match: int
    candidates: int  # a power of two
    long_match: int
    edit_tokens: int
    shift: int
    places: tuple[int, int, int, int, int]  # of CAP, NB, HEAD, POS_BITS, NB1 in a row


class DeviceCorpus:
    """Room for one frozen corpus at a fixed address, so that a captured graph goes on reading it.

    Two halves: a new corpus is copied into the one that nothing reads; a copy of its row makes it count.
    """

    def __init__(self, max_bytes: int, row_words: int, device: torch.device) -> None:
        """max_bytes of device memory, both halves together. ValueError: too few for any corpus."""
        self.half_words = max_bytes // 8
        if self.half_words < 1024:
            raise ValueError(f"max_bytes: expected at least 8192, got {max_bytes}")
        self.words = torch.zeros(2 * self.half_words, dtype=torch.int32, device=device)
        self.row = torch.zeros(row_words, dtype=torch.int64, device=device)
        self._next_half = 0

    def stage(self, mem: Any, row: Any) -> torch.Tensor:
        """Copy a frozen corpus, numpy's uint32[...] and int64[ROW_WORDS], beside the one in use.

        On the current stream.

        Returns what ``commit`` takes; one corpus at a time. ValueError: larger than half of max_bytes.
        """
        if mem.size > self.half_words:
            raise ValueError(f"corpus: expected at most {4 * self.half_words} bytes, got {mem.nbytes}")
        start = self._next_half * self.half_words
        staging = torch.empty(_PIECE_WORDS, dtype=torch.int32, pin_memory=self.words.is_cuda)
        for at in range(0, mem.size, _PIECE_WORDS):
            part = mem[at : at + _PIECE_WORDS].view("int32")
            staging.numpy()[: part.size] = part  # a mapped file is not writable, which torch asks for
            self.words[start + at : start + at + part.size].copy_(staging[: part.size])
        placed = row.copy()
        placed[0] = start
        return torch.from_numpy(placed).to(self.row.device)

    def commit(self, placed: torch.Tensor) -> None:
        """Draft from the staged corpus from now on, in the order of the current stream."""
        self.row.copy_(placed)
        self._next_half = 1 - self._next_half


class DeviceLessons:
    """Each slot's last draft, whose outcome is not known yet, and what became of all before it.

    counted: int32[2, entries, 2]; of a request's own text and of the corpus, by entry of ``chances``, drafted
    and accepted tokens. of_tokens: int32[..., 3]; by place of ``odds``, drafted, accepted and expected
    tokens. They are added to only, and begin anew behind 2**31.
    """

    def __init__(self, max_requests: int, drafts: int, entries: int, device: torch.device) -> None:
        """drafts: of a request, at most."""
        words = LESSON_HEAD.value + 2 * _width_of(drafts)
        self.waiting = torch.zeros((max_requests, words), dtype=torch.int32, device=device)
        self.counted = torch.zeros((2, entries, 2), dtype=torch.int32, device=device)
        self.of_tokens = torch.zeros((PLACES.value, 3), dtype=torch.int32, device=device)


def suffix_draft(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    is_drafting: torch.Tensor,
    reads_corpus: torch.Tensor,
    corpus: DeviceCorpus,
    chances: torch.Tensor,
    odds: torch.Tensor,
    prefills: torch.Tensor,
    lessons: DeviceLessons,
    rule: SuffixDraftRule,
    limits: torch.Tensor,
    budget: int,
    drafts: torch.Tensor,
    probs: torch.Tensor,
    heads: torch.Tensor,
) -> None:
    """Draft up to ``budget`` tokens for each of n requests, in one launch without a host synchronisation.

    tokens       int32[max_requests, max_tokens], the tokens of every slot
    lengths      int32[max_requests], how many of them are known
    slots        integer[n], the slot of each request; below 0: no draft
    is_drafting  int32[n], 0: no draft for this request
    reads_corpus int32[max_requests], 0: only from the slot's own tokens
    chances      float32[2, ...] of ``specctl.draft.calibration``, on the device
    odds         float32[...] of ``specctl.draft.token_odds``, on the device
    prefills     int32[max_requests], tokens that each request began with
    lessons      of as many slots and tokens; added to, also for requests without a draft
    limits       float64[3]: max_spec_factor, max_spec_offset, min_token_prob
    drafts       integer[n, width] out, width at least budget; places without a draft get the last token
    probs        float32[n, width] out, as in a DraftBatch
    heads        int32[3, n] out: drafted tokens, match tokens, source (0 none, 1 own, 3 corpus; 4 and 6 so
                 behind an edit)
    """
    places = rule.places
    longest = rule.rungs[-1]
    suffix_draft_kernel[(slots.shape[0],)](
        tokens, tokens.stride(0), slots, lengths, is_drafting, reads_corpus,
        corpus.words, corpus.row, chances, chances.stride(0), odds, prefills,
        lessons.waiting, lessons.counted, lessons.of_tokens,
        drafts, drafts.stride(0), probs, heads, heads.stride(0),
        budget, limits,
        LEAST_MATCH=rule.min_match_tokens, MATCH=rule.max_match_tokens,
        MATCH_2=triton.next_power_of_2(rule.max_match_tokens),
        VISITS=rule.visits, OWN_VISITS=rule.own_visits, ENOUGH=rule.enough,
        RUNG_MASK=sum(1 << (rung - 1) for rung in rule.rungs),
        LONGEST=longest, LONGEST_2=triton.next_power_of_2(longest),
        MOST_MATCH=rule.most_match, CANDIDATES=rule.candidates,
        WIDTH=_width_of(drafts.shape[1]), BLOCK=_BLOCK_TOKENS, ENTRIES=lessons.counted.shape[1],
        LONG_MATCH=rule.long_match, EDIT_TOKENS=rule.edit_tokens, SHIFT=rule.shift,
        SHIFTS_2=triton.next_power_of_2(2 * rule.shift + 1),
        CAP=places[0], NB=places[1], HEAD=places[2], POS_BITS=places[3], NB1=places[4],
        num_warps=4,
    )  # fmt: skip


def _width_of(drafts: int) -> int:
    width: int = max(2, triton.next_power_of_2(drafts))
    return width
