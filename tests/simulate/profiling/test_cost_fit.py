"""Seconds fitted to steps whose true costs are known."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from fakes.engine import FakeEngine
from fakes.observations import cell

from specctl.contract.telemetry import TelemetryCell
from specctl.errors import SpecctlError
from specctl.simulate.profiling.cost_fit import FittedCosts, fit_costs
from specctl.simulate.profiling.fitted import experts_of
from specctl.simulate.profiling.measure import combinations

CONSTANT_S, TOKEN_S, REQUEST_S = 0.02, 0.001, 0.0005


def rows(
    *, batches: tuple[int, ...] = (1, 2, 4, 7), noise: float = 0.02, times: int = 6, seed: int = 1
) -> list[TelemetryCell]:
    """Ten steps at each of some decode batches and numbers of drafts, over and over."""
    rng = random.Random(seed)
    made = []
    for _ in range(times):
        for batch in batches:
            for drafts in (0, 2, 4, 8):
                true_s = CONSTANT_S + TOKEN_S * batch * (1 + drafts) + REQUEST_S * batch
                seconds = tuple(true_s * (1 + noise * rng.gauss(0, 1)) for _ in range(10))
                made.append(
                    cell(
                        decode_batch=batch,
                        tokens=drafts,
                        verified=(batch * (1 + drafts),) * 10,
                        seconds=seconds,
                        accepted_at=(0,) * drafts,
                    )
                )
    return made


def seconds_at(costs: FittedCosts, tokens: float, batch: float) -> float:
    xs, ys = zip(*costs.forward, strict=True)
    return float(np.interp(tokens, xs, ys)) + costs.terms["request_s"] * batch


def test_known_costs_are_found() -> None:
    costs = fit_costs(rows())
    for batch, drafts in ((1, 0), (3, 3), (7, 8)):
        true_s = CONSTANT_S + TOKEN_S * batch * (1 + drafts) + REQUEST_S * batch
        assert seconds_at(costs, batch * (1 + drafts), batch) == pytest.approx(true_s, rel=0.04)
    assert costs.miss_ratio < 0.02
    assert costs.held_out_miss_ratio < 0.03
    assert costs.jitter_ratio == pytest.approx(0.02, abs=0.005)
    assert costs.stalled_steps == 0


@pytest.mark.parametrize("seed", range(5))
def test_seconds_are_never_negative_and_never_fall(seed: int) -> None:
    costs = fit_costs(rows(noise=0.2, seed=seed))
    tokens, seconds = zip(*costs.forward, strict=True)
    assert all(late > early for early, late in pairwise(tokens))
    assert all(late >= early > 0 for early, late in pairwise(seconds))
    assert min(costs.terms.values()) >= 0


def test_what_did_not_vary_is_not_identified() -> None:
    costs = fit_costs(rows(batches=(3,)))
    assert "request_s" in costs.unidentified
    assert costs.terms["request_s"] == 0.0


def test_what_a_draft_heads_passes_take_is_found() -> None:
    drafted = [
        row.model_copy(
            update={"step_s": row.step_s + row.steps * (0.002 + 0.0005 * row.num_speculative_tokens)}
        )
        if row.num_speculative_tokens
        else row
        for row in rows(noise=0.0, batches=(1, 2, 4, 7, 12, 20))
    ]
    costs = fit_costs(drafted)
    assert costs.terms["draft.pass_s"] == pytest.approx(0.0005, rel=0.05)
    assert costs.terms["draft.base_s"] == pytest.approx(0.002, rel=0.05)
    assert not {"draft.base_s", "draft.pass_s"} & set(costs.unidentified)


CONTEXT_S = 3e-8
"""An H200's, of a Llama of 8B in bf16: 131 KB of keys and values for each."""


def at_levels_of_a_profile(long_tokens: int, short_tokens: int) -> list[TelemetryCell]:
    rng = random.Random(2)
    levels, numbers = [2**i for i in range(9)], [0, 2, 4, 8]
    made = []
    for level, number, is_long in combinations(levels, numbers):
        for _ in range(4):
            context = level * (long_tokens if is_long else short_tokens) * rng.uniform(0.9, 1.1)
            true_s = 0.005 + 1.6e-5 * level * (1 + number) + CONTEXT_S * context
            made.append(
                cell(
                    decode_batch=level,
                    tokens=number,
                    seconds=tuple(true_s * (1 + 0.02 * rng.gauss(0, 1)) for _ in range(10)),
                    verified=(level * (1 + number),) * 10,
                    accepted_at=(0,) * number,
                    context_tokens=round(10 * context),
                )
            )
    return made


def test_long_and_short_prompts_separate_a_context_token_from_a_request() -> None:
    costs = fit_costs(at_levels_of_a_profile(400, 80))
    assert "context_token_s" not in costs.unidentified
    assert costs.terms["context_token_s"] == pytest.approx(CONTEXT_S, rel=0.2)
    alike = fit_costs(at_levels_of_a_profile(240, 240))
    assert "context_token_s" in alike.unidentified
    assert alike.terms["request_s"] > 0


def test_steps_of_prompts_alone_price_prompts() -> None:
    """As SGLang runs them. Decoding has 72 tokens at most, and its line says nothing of hundreds."""
    prompt_s = {tokens: 0.1 + 0.0002 * tokens for tokens in (50, 100, 200, 400, 800)}
    prompts = [
        cell(
            steps=2, decode_batch=0, tokens=0, accepted_at=(), step_s=seconds, has_prefill=True,
            bucket=(0, 0), prefill_tokens=2 * tokens,
        )
        for tokens, seconds in prompt_s.items()
    ]  # fmt: skip
    made = rows()
    costs = fit_costs([*made, *prompts * 4])
    for tokens in (100, 400, 800):
        assert seconds_at(costs, tokens, 0) + costs.terms["prefill_step_s"] == pytest.approx(
            prompt_s[tokens], rel=0.1
        )
    assert costs.miss_ratio < 0.02
    assert costs.forward[-1][0] == 800
    assert fit_costs(made).forward[-1][0] < 100


def test_a_stall_of_the_machine_is_left_out() -> None:
    slow = cell(decode_batch=2, tokens=4, verified=(10,) * 10, seconds=(2.0,) * 10, accepted_at=(0,) * 4)
    costs = fit_costs([*rows(), slow])
    assert costs.stalled_steps == 10
    assert costs.miss_ratio < 0.02


@pytest.mark.parametrize(
    "made", [[], rows(batches=(1,), times=1), [cell(decode_batch=2, tokens=0, accepted_at=())] * 20]
)
def test_too_little_is_refused(made: list[TelemetryCell]) -> None:
    with pytest.raises(SpecctlError, match="too little was measured"):
        fit_costs(made)


def test_seconds_of_the_step_beside_it_bend_no_line() -> None:
    rng = random.Random(4)
    made = rows(batches=(1, 2, 4, 7, 12), times=10)
    wrong = set(rng.sample(range(1, len(made)), len(made) // 10))
    moved = [
        row.model_copy(update={"step_s": made[i - 1].step_s}) if i in wrong else row
        for i, row in enumerate(made)
    ]
    costs = fit_costs(moved)
    for batch, drafts in ((1, 0), (4, 3), (12, 8)):
        true_s = CONSTANT_S + TOKEN_S * batch * (1 + drafts) + REQUEST_S * batch
        assert seconds_at(costs, batch * (1 + drafts), batch) == pytest.approx(true_s, rel=0.03)


def test_slow_steps_that_are_no_stalls_are_in_the_sum() -> None:
    made = []
    for place, row in enumerate(rows(noise=0.02)):
        slow = (
            2.0 if place % 10 == 3 else 1.0
        )  # each tenth ten of steps, as a neighbour of the machine makes them
        more = {"step_s": slow * row.step_s, "step_s_squared": slow**2 * row.step_s_squared}
        made.append(row.model_copy(update=more))
    costs = fit_costs(made)
    fitted_s = sum(
        row.steps * seconds_at(costs, row.verified_tokens / row.steps, row.request_steps / row.steps)
        + row.steps * bool(row.num_speculative_tokens) * costs.terms["draft.base_s"]
        + row.steps * row.num_speculative_tokens * costs.terms["draft.pass_s"]
        for row in made
    )
    assert fitted_s == pytest.approx(sum(row.step_s for row in made), rel=0.01)
    usual = CONSTANT_S + (TOKEN_S + REQUEST_S) * 4
    assert seconds_at(costs, 4, 4) / usual == pytest.approx(1.1, abs=0.03)  # the shape stays


def test_tokens_of_prompts_do_not_make_one_line_of_decoding() -> None:
    """Verifying is flat up to 64 tokens and steep from there; most tokens met are a prompt's thousands."""

    def true_s(tokens: float) -> float:
        return 0.005 + 1e-6 * min(tokens, 64) + 1e-4 * max(tokens - 64, 0.0)

    rng, made = random.Random(5), []
    for _ in range(6):
        for batch in (1, 4, 16, 32):
            for drafts in (0, 1, 3, 7):
                verified = batch * (1 + drafts)
                prompt = rng.randint(1000, 8000)
                common = {"decode_batch": batch, "tokens": drafts, "accepted_at": (0,) * drafts}
                made.append(cell(**common, step_s=true_s(verified)))
                mixed_s = true_s(verified + prompt)
                made += [cell(**common, step_s=mixed_s, has_prefill=True, prefill_tokens=10 * prompt)] * 3
    costs = fit_costs(made)
    xs, _ = zip(*costs.forward, strict=True)
    assert sum(tokens <= 256 for tokens in xs) > 3
    for tokens in (1, 8, 64, 128, 256):
        assert seconds_at(costs, tokens, 0) == pytest.approx(true_s(tokens), rel=0.1)


def test_a_measurement_that_contradicts_itself_is_refused() -> None:
    changing = []
    for place, row in enumerate(rows()):
        factor = 1.0 if place % 2 else 2.6
        changing.append(row.model_copy(update={"step_s": row.step_s * factor}))
    with pytest.raises(SpecctlError, match="contradicts itself"):
        fit_costs(changing)


@pytest.mark.parametrize(("experts", "expert_s"), [((128, 8), 0.0001), ((8, 2), 0.0015), ((256, 8), 0.00006)])
def test_experts_of_a_mixture_bend_the_line(experts: tuple[int, int], expert_s: float) -> None:
    """Between the batches that were measured too: without their term it is off by 18 % with 8 experts."""

    def true_s(tokens: float) -> float:
        total, each = experts
        return 0.004 + expert_s * total * (1.0 - (1.0 - each / total) ** tokens) + 0.000005 * tokens

    rng = random.Random(4)
    made = [
        cell(
            decode_batch=batch,
            tokens=drafts,
            verified=(batch * (1 + drafts),) * 10,
            seconds=tuple(true_s(batch * (1 + drafts)) * (1 + 0.01 * rng.gauss(0, 1)) for _ in range(10)),
            accepted_at=(0,) * drafts,
        )
        for batch in (1, 2, 4, 8, 16, 32, 64, 128)
        for drafts in (0, 1, 3, 5, 8)
    ]
    costs = fit_costs(made, experts)
    for tokens in (1, 2, 3, 5, 7, 12, 21, 60, 300, 1000):
        assert seconds_at(costs, tokens, 1) == pytest.approx(true_s(tokens), rel=0.03)
    assert len(costs.forward) <= 256, "as many as a profile holds"


def test_a_mixture_that_uses_all_of_its_experts_is_dense() -> None:
    server = FakeEngine().capabilities()

    def of(experts: int | None, each: int | None) -> tuple[int, int] | None:
        return experts_of(server.model_copy(update={"experts": experts, "experts_per_token": each}))

    assert of(8, 2) == (8, 2)
    assert of(8, 8) is of(8, None) is of(None, None) is None
