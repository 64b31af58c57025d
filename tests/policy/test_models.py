"""What the kinds of policy ask of the core: bounds on knobs, settings by hand, objectives."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.observations import capabilities, chains, tree

from specctl.core.objective import LatencyBounds, Prices
from specctl.core.space import Space
from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy

CHAINS = Space.of(capabilities(chains(0, 1, 2, 4)))
TREES = Space.of(capabilities((*chains(0, 2, 4), tree(2, 2, 5), tree(4, 4, 9), tree(4, 4, 16))))


def policy(text: str) -> AnyPolicy:
    return parse_policy(text, "p.yaml")


def allowed(knobs: str, space: Space = TREES) -> list[tuple[int, int, int]]:
    may, _ = policy(f"kind: goodput\nknobs: {knobs}").eligible(space)
    settings = [one for one, is_in in zip(space.settings, may, strict=True) if is_in]
    return [(one.num_speculative_tokens, one.tree_topk, one.width_tokens) for one in settings]


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ("{}", [(0, 1, 1), (2, 1, 3), (2, 2, 5), (4, 1, 5), (4, 4, 9), (4, 4, 16)]),
        ("{num_speculative_tokens: {max: 2}}", [(0, 1, 1), (2, 1, 3), (2, 2, 5)]),
        ("{num_speculative_tokens: {min: 4, max: 4}}", [(4, 1, 5), (4, 4, 9), (4, 4, 16)]),
        ("{tree_topk: {min: 1, max: 1}}", [(0, 1, 1), (2, 1, 3), (4, 1, 5)]),
        ("{tree_topk: {min: 4, max: 4}}", [(0, 1, 1), (4, 4, 9), (4, 4, 16)]),
        ("{verify_width_tokens: {max: 9}}", [(0, 1, 1), (2, 1, 3), (2, 2, 5), (4, 1, 5), (4, 4, 9)]),
        ("{num_speculative_tokens: {max: 0}, tree_topk: {min: 9}}", [(0, 1, 1)]),
    ],
)
def test_only_settings_within_every_bound_may_be_chosen(
    knobs: str, expected: list[tuple[int, int, int]]
) -> None:
    assert sorted(allowed(knobs)) == sorted(expected)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ("{tree_topk: {min: 4, max: 4}}", "no prepared setting has tree_topk from 4 to 4"),
        (
            "{verify_width_tokens: {min: 8, max: 9}}",
            "no prepared setting has verify_width_tokens from 8 to 9",
        ),
        (
            "{num_speculative_tokens: {min: 3, max: 3}}",
            "no prepared setting has num_speculative_tokens from 3 to 3",
        ),
    ],
)
def test_a_fixed_knob_that_the_server_lacks_allows_nothing_and_is_named(knobs: str, words: str) -> None:
    may, why = policy(f"kind: goodput\nknobs: {knobs}").eligible(CHAINS)
    assert not may.any()
    assert why == words


def test_bounds_that_only_off_meets_allow_off() -> None:
    assert allowed("{num_speculative_tokens: {max: 1}}", TREES) == [(0, 1, 1)]


def test_bounds_that_no_setting_meets_together_allow_nothing() -> None:
    space = Space.of(capabilities((*chains(0, 4), tree(2, 2, 5))))
    text = "kind: goodput\nknobs: {num_speculative_tokens: {max: 2}, tree_topk: {max: 1}}"
    may, why = policy(text).eligible(space)
    assert not may.any()
    assert why == "no prepared setting is within the policy's bounds"


def test_off_is_not_allowed_where_the_server_has_not_prepared_it() -> None:
    space = Space.of(capabilities(chains(2, 4)))
    may, _ = policy("kind: goodput").eligible(space)
    assert may.tolist() == [False, True, True]
    may, why = policy("kind: off").eligible(space)
    assert not may.any()
    assert why == "off is not prepared on this server"


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ("num_speculative_tokens: 4", (4, 1, 5), ""),
        ("num_speculative_tokens: 3", (2, 1, 3), "3 tokens is not prepared on this server, 2 tokens is the"),
        ("num_speculative_tokens: 4\ntree_topk: 4", (4, 4, 16), ""),
        ("num_speculative_tokens: 4\ntree_topk: 4\nverify_width_tokens: 9", (4, 4, 9), ""),
        ("num_speculative_tokens: 4\ntree_topk: 4\nverify_width_tokens: 12", (4, 4, 9), "4 tokens, top-k 4"),
        ("num_speculative_tokens: 1", (0, 1, 1), "off is the nearest below"),
    ],
)
def test_a_fixed_setting_is_the_one_named_or_the_nearest_below(
    text: str, setting: tuple[int, int, int], words: str
) -> None:
    at, why = policy(f"kind: fixed\n{text}").wanted(1, TREES)
    found = TREES.settings[at]
    assert (found.num_speculative_tokens, found.tree_topk, found.width_tokens) == setting
    assert words in why
    assert bool(words) == bool(why)


def test_thresholds_by_decode_batch() -> None:
    low, high = (
        "{decode_batch_to: 2, num_speculative_tokens: 4}",
        "{decode_batch_to: null, num_speculative_tokens: 0}",
    )
    found = policy(f"kind: thresholds\nthresholds: [{low}, {high}]")
    assert [CHAINS.settings[found.wanted(b, CHAINS)[0]].num_speculative_tokens for b in (1, 2, 3, 99)] == [
        4, 4, 0, 0,
    ]  # fmt: skip


def test_policies_by_hand_weigh_nothing() -> None:
    for text in ("kind: off", "kind: fixed\nnum_speculative_tokens: 4"):
        assert policy(text).objective is None
        assert not policy(text).weighs_tokens
    assert policy("kind: goodput").weighs_tokens
    assert not policy("kind: goodput\nknobs: {min_token_prob: as_configured}").weighs_tokens


def test_milliseconds_and_percentiles_of_a_service_level() -> None:
    text = "kind: slo\nmax_tpot_ms: 50\nmax_ttft_ms: 900\nttft_at: mean\nmax_itl_ms: 200"
    objective = policy(text).objective
    assert objective is not None
    assert objective.bounds == LatencyBounds(0.05, 0.95, 0.9, None, 0.2)
    assert objective.prices is None


def test_prices_of_a_whole_server() -> None:
    text = (
        "kind: cost\nprice_per_gpu_hour: 3\ngpus: 2\nenergy_price_per_kwh: 0.36\nidle_power_w: 500\n"
        "joules_per_verified_token: 2"
    )
    objective = policy(text).objective
    assert objective is not None
    assert objective.prices == Prices(6.0, 0.36, 500.0, 2.0)
    found = objective.price(np.array([2.0]), np.array([10.0]))
    assert found == pytest.approx([6 / 3600 * 2 + 0.36 / 3.6e6 * (500 * 2 + 2 * 10)])
