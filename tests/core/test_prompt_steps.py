from __future__ import annotations

import numpy as np
import pytest
from fakes.observations import cell

from specctl.contract.telemetry import TelemetryCell
from specctl.core.prompt_steps import PromptSteps, with_prompts

DRAFTS = np.array([1.0, 2.0, 4.0])
"""Tokens of a request in a decode step, by setting."""


def prompts(steps: int, tokens: int, step_s: float) -> TelemetryCell:
    """Steps of prompts alone: ``tokens`` and seconds of each."""
    made = cell(tokens=0, step_s=step_s, decode_batch=1, steps=steps, accepted_at=())
    return made.model_copy(
        update={
            "decode_batch_from": 0,
            "decode_batch_to": 0,
            "has_prefill": True,
            "request_steps": 0,
            "emitted_tokens": 0,
            "prefill_tokens": steps * tokens,
        }
    )


def decoding(steps: int, batch: int, emitted: int = 1) -> TelemetryCell:
    made = cell(tokens=0, step_s=0.01, decode_batch=batch, steps=steps, accepted_at=())
    return made.model_copy(update={"request_steps": steps * batch, "emitted_tokens": steps * batch * emitted})


def after(*intervals: tuple[TelemetryCell, ...]) -> PromptSteps:
    found = PromptSteps()
    for one in intervals:
        found.add(one, 1.0)
    return found


def test_without_steps_of_prompts_alone_they_take_nothing() -> None:
    found = after((decoding(100, 8),)).seconds(np.array([1.0, 8.0]), DRAFTS)
    assert found.tolist() == [[0.0] * 3] * 2


def test_one_request_pays_for_its_prompt_alone() -> None:
    """Answers of 50 tokens: whatever drafts do, a token carries the 50th part of a prompt's step."""
    found = after(*((decoding(50, 1), prompts(1, tokens, 0.01 + 1e-5 * tokens)) for tokens in (50, 500) * 9))
    by_token = found.seconds(np.array([1.0]), DRAFTS)[0] / DRAFTS
    assert by_token == pytest.approx([by_token[0]] * 3)
    assert by_token[0] == pytest.approx((0.01 + 1e-5 * 275) / 50, rel=0.1)


def test_many_requests_share_a_step_the_more_the_more_tokens_they_emit() -> None:
    """64 requests, answers of 64 tokens: after a step of one token each, none has ended at 36 %."""
    share = 1.0 - (1.0 - 1 / 64) ** 64
    steps = round(1000 * share)
    rows = [(decoding(1000, 64), prompts(steps, tokens, 0.02)) for tokens in (20, 400) * 9]
    found = after(*rows).seconds(np.array([64.0]), DRAFTS)[0]
    wanted = [0.02 * (1.0 - (1.0 - emitted / 64) ** 64) for emitted in DRAFTS]
    # The prior says that a token takes a 150th part of a step.
    assert found == pytest.approx(wanted, rel=0.05)


def test_prompts_that_compute_are_paid_by_the_token() -> None:
    rows = [(decoding(100, 64), prompts(50, tokens, 5e-5 * tokens)) for tokens in (2000, 4000) * 9]
    by_token = after(*rows).seconds(np.array([64.0]), DRAFTS)[0] / DRAFTS
    assert by_token == pytest.approx([by_token[0]] * 3, rel=0.02)


def test_more_prompt_steps_than_decode_steps_are_long_prompts() -> None:
    found = after((decoding(10, 4), prompts(90, 8192, 0.4))).seconds(np.array([4.0]), DRAFTS)
    assert np.isfinite(found).all()
    assert (np.diff(found[0]) > 0).all()


def test_a_step_that_stalls_counts_as_twice_the_usual() -> None:
    usual = [(decoding(100, 64), prompts(60, 100, 0.02))] * 10
    stalled = after(*usual, (decoding(100, 64), prompts(60, 100, 1.02)))
    found, wanted = (one.seconds(np.array([64.0]), DRAFTS)[0, 0] for one in (stalled, after(*usual)))
    assert found == pytest.approx(wanted, rel=0.1)


def test_each_decode_step_carries_its_part_of_the_prompts_seconds() -> None:
    found = with_prompts((decoding(30, 4), decoding(10, 8), prompts(5, 100, 0.08)))
    assert [one.step_s for one in found] == pytest.approx([0.3 + 0.3, 0.1 + 0.1])


def test_an_engine_that_mixes_them_keeps_its_cells() -> None:
    cells = (decoding(30, 4), decoding(10, 8))
    assert list(with_prompts(cells)) == list(cells)
