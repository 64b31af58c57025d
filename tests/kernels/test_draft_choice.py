"""The choice between suffix drafts and a head's, against its reference."""

from __future__ import annotations

import pytest
import torch
from specctl_kernels.draft_choice import HEAD, SUFFIX, DraftChoice, draft_choice
from specctl_kernels.draft_choice.reference import draft_choice_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-5
"""Sums of at most 40 float32 chances in another order."""


@pytest.mark.parametrize("width", [1, 3, 5, 8])
@pytest.mark.parametrize("slots", [1, 6, 40])
def test_choice_as_the_reference(width: int, slots: int) -> None:
    torch.manual_seed(width * 100 + slots)
    reference, choice = (DraftChoice(slots, width, device) for device in (torch.device("cpu"), DEVICE))
    for step in range(30):
        n = int(torch.randint(1, slots + 1, ()))
        requests = torch.randperm(slots)[:n]
        requests[torch.rand(n) < 0.1] = -1
        verified = torch.randint(0, width + 1, (n,))
        sampled = (torch.rand(n) * (verified + 1)).long() + 1
        sampled[torch.rand(n) < 0.1] = 0
        is_prompt = torch.rand(n) < 0.1
        verified[is_prompt], sampled[is_prompt] = 50, 1
        given = {
            "suffix_drafts": torch.randint(100, 200, (n, width)),
            "suffix_probs": torch.rand(n, width).cumprod(1),
            "suffix_counts": torch.randint(0, width + 1, (n,), dtype=torch.int32),
            "requests": requests,
            "num_sampled": sampled.to(torch.int32),
            "starts": torch.cat([torch.zeros(1, dtype=torch.int64), (verified + 1).cumsum(0)]).to(
                torch.int32
            ),
        }
        drafts = torch.randint(1, 100, (n, width))
        got = drafts.clone().to(DEVICE)
        flags = {"wanted": int(torch.randint(1, width + 1, ())), "has_head": step % 3 > 0}
        draft_choice_reference(reference, drafts, **given, **flags)
        draft_choice(choice, got, **{name: value.to(DEVICE) for name, value in given.items()}, **flags)
        assert torch.equal(got.cpu(), drafts)
        assert torch.equal(choice.sources.cpu(), reference.sources)
        for name in ("reached", "accepted", "gain"):
            torch.testing.assert_close(
                getattr(choice, name).cpu(), getattr(reference, name), rtol=TOLERANCE, atol=TOLERANCE
            )


def test_a_head_that_is_never_accepted_loses_to_any_suffix() -> None:
    choice = DraftChoice(1, 2, DEVICE)
    one = torch.ones(1, dtype=torch.int32, device=DEVICE)
    probs = torch.full((1, 2), 0.2, device=DEVICE)
    source = []
    for _ in range(400):
        drafts = torch.full((1, 2), 9, device=DEVICE)
        draft_choice(
            choice, drafts, drafts + 1, probs, one, torch.zeros(1, dtype=torch.int64, device=DEVICE), one,
            torch.tensor([0, 3], dtype=torch.int32, device=DEVICE), wanted=2, has_head=True,
        )  # fmt: skip
        source.append(int(choice.sources[0]))
    assert source[0] == HEAD
    assert source[-1] == SUFFIX
