"""Suffix drafts by the device's kernel, on a GPU or on CPU tensors."""

from __future__ import annotations

import numpy as np
import torch
from specctl_kernels.suffix_draft import DeviceCorpus, DeviceLessons, SuffixDraftRule, suffix_draft

from specctl.draft import device_rule
from specctl.draft.calibration import ENTRIES
from specctl.draft.chains import ROW_WORDS
from specctl.draft.lessons import ENTRY_WORDS
from specctl.draft.options import SuffixIndexOptions
from specctl.draft.outcomes import Outcomes
from specctl.draft.suffix_index import SuffixIndex

__all__ = ["WIDTH", "OnDevice"]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH = 6


class OnDevice:
    """The state that ``suffix_draft`` works on, for the texts of some requests."""

    def __init__(self, options: SuffixIndexOptions, texts: list[list[int]], outcomes: Outcomes) -> None:
        self.rule = SuffixDraftRule(**device_rule.rule_of(options))
        self.limits = torch.tensor(device_rule.limits_of(options), dtype=torch.float64, device=DEVICE)
        self.corpus = DeviceCorpus(2**20, ROW_WORDS, DEVICE)
        self.table = torch.from_numpy(outcomes.chances_of()).to(DEVICE)
        self.odds = torch.from_numpy(outcomes.tokens.odds).to(DEVICE, copy=True)
        self.lessons = DeviceLessons(len(texts), WIDTH, ENTRIES, DEVICE)
        self.prefills = int32([len(text) for text in texts])

    def assert_counted_as(self, index: SuffixIndex) -> np.ndarray:
        """The host's outcomes of a step, which are the device's, too: int32[2, ENTRIES, 2]."""
        counted = index.outcomes.counted.sum(axis=0)
        of_entries, of_tokens = counted[:ENTRY_WORDS].reshape(-1, ENTRIES, 2), counted[ENTRY_WORDS:]
        assert not of_entries[2:].any()
        np.testing.assert_array_equal(self.lessons.counted.cpu().numpy(), of_entries[:2])
        np.testing.assert_array_equal(self.lessons.of_tokens.cpu().numpy(), of_tokens.reshape(-1, 3))
        return of_entries[:2]

    def draft(self, texts: list[list[int]], slots: np.ndarray, budget: int) -> tuple[torch.Tensor, ...]:
        """drafts, probs and heads of requests in this order, as the kernel writes them."""
        tokens = torch.zeros((len(texts), 256), dtype=torch.int32)
        for slot, text in enumerate(texts):
            tokens[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)
        drafts = torch.zeros((slots.size, WIDTH), dtype=torch.int64, device=DEVICE)
        probs = torch.zeros((slots.size, WIDTH), dtype=torch.float32, device=DEVICE)
        heads = torch.zeros((3, slots.size), dtype=torch.int32, device=DEVICE)
        suffix_draft(
            tokens.to(DEVICE),
            int32([len(text) for text in texts]),
            torch.from_numpy(slots).to(DEVICE),
            int32([1] * slots.size),
            int32([1] * len(texts)),
            self.corpus,
            self.table,
            self.odds,
            self.prefills,
            self.lessons,
            self.rule,
            self.limits,
            budget,
            drafts,
            probs,
            heads,
        )
        return drafts.cpu(), probs.cpu(), heads.cpu()


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)
