"""Where outputs part: which margins are ties of bf16 logits."""

import math

import numpy as np
import pytest

from benchmarks.gpu.ties import (
    SAMPLED_TOKENS,
    Parting,
    Score,
    bf16_step,
    judged,
    partings,
    told,
    top_logit,
)

VOCABULARY = 16_384
FIRST, SECOND = 1, 2
"""Tokens that a test gives logits of its own; none of the sampled ones."""


def bf16(values):
    """Rounded to nearest, as float64."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def scored(first, second, seed=0, rounded=bf16):
    """As a server tells them: of logits around -6, as a trained model's are, and the two given ones."""
    logits = np.random.default_rng(seed).normal(-6.0, 3.0, VOCABULARY).clip(max=8.0)
    logits[[FIRST, SECOND]] = first, second
    logits = rounded(logits)
    told = (logits - np.log(np.exp(logits).sum())).astype(np.float32).astype(np.float64)
    asked = float(told[FIRST]), float(told[SECOND])
    return Score(asked, float(told.max()), tuple(told[list(SAMPLED_TOKENS)].tolist()))


class FakeJudge:
    def __init__(self, *scores):
        self.scores, self.asked = list(scores), []

    def score(self, contexts, tokens):
        self.asked += zip(contexts, tokens, strict=True)
        return None if None in self.scores else self.scores


def parting(mine=FIRST, other=SECOND):
    return Parting([5], (mine, other))


def test_outputs_part_behind_what_they_share():
    found = partings([[9], [9], [8, 7]], [[1, 2, 3], [4, 4], [1, 2]], [[1, 2, 3], [4, 5], [3, 2]])
    assert found == [Parting([9, 4], (4, 5)), Parting([8, 7], (1, 3))]


def test_an_output_that_ends_early_parts_at_its_end():
    assert partings([[9]], [[1]], [[1, 2]]) == [Parting([9, 1], (None, 2))]


@pytest.mark.parametrize(("value", "step"), [(1.0, 2**-7), (15.9, 2**-4), (16.0, 2**-3), (-40.0, 2**-2)])
def test_a_step_of_bf16(value, step):
    assert bf16_step(value) == step


@pytest.mark.parametrize("logit", [9.0625, 11.5, 15.9375, 16.0, 23.25, 35.5])
@pytest.mark.parametrize("seed", range(5))
def test_the_logits_behind_log_probabilities_are_found(logit, seed):
    score = scored(logit, logit - 1, seed)
    assert top_logit(score.best, score.sampled) == logit


def test_logits_of_float32_are_not_taken_for_bf16():
    score = scored(20.0, 19.9, rounded=lambda values: np.asarray(values, np.float32))
    assert top_logit(score.best, score.sampled) is None
    assert judged(FakeJudge(score), [parting()])["differences"] == 1


def test_too_few_tokens_tell_nothing():
    score = scored(12.0, 11.0)
    assert top_logit(score.best, score.sampled[:20]) is None
    assert top_logit(score.best, [-math.inf, *score.sampled]) is None


@pytest.mark.parametrize(
    ("second", "steps", "is_tie"),
    [(20.0, 0, True), (19.875, 1, True), (19.75, 2, True), (19.625, 3, False), (12.0, 64, False)],
)
def test_a_tie_is_at_most_two_steps(second, steps, is_tie):
    figures = judged(FakeJudge(scored(20.0, second)), [parting()])
    assert (figures["ties"], figures["differences"]) == (int(is_tie), int(not is_tie))
    [margin] = figures["margins"]
    assert margin["bf16 steps"] == pytest.approx(steps, abs=0.002)
    assert figures["largest margin"] == pytest.approx(20.0 - second, abs=1e-4)


@pytest.mark.parametrize(
    ("first", "second", "preferred"),
    [(20.0, 19.0, "the other output's"), (19.0, 20.0, "its own"), (20.0, 20.0, "neither")],
)
def test_which_of_both_the_judge_prefers_is_told(first, second, preferred):
    [margin] = judged(FakeJudge(scored(first, second)), [parting()])["margins"]
    assert margin["the judge prefers"] == preferred


def test_both_tokens_must_be_near_the_best_one():
    """Two tokens that lie together, far below what the judge itself would write."""
    near = scored(9.0, 9.0)
    best = near.best + 5.0
    figures = judged(FakeJudge(Score(near.asked, best, near.sampled)), [parting()])
    assert (figures["ties"], figures["differences"]) == (0, 1)


def test_both_tokens_are_asked_for_after_the_shared_beginning():
    judge = FakeJudge(scored(20.0, 20.0))
    judged(judge, [Parting([9, 4], (FIRST, SECOND))])
    assert judge.asked == [([9, 4], [FIRST, SECOND])]


def test_margins_are_told_from_the_smallest_on():
    judge = FakeJudge(scored(20.0, 18.0), scored(20.0, 19.875))
    figures = judged(judge, [parting(), parting()])
    assert [one["bf16 steps"] for one in figures["margins"]] == pytest.approx([1, 16], abs=0.01)
    words = "1 ties and 1 differences, at most 2 apart in log probability (16 bf16 steps)"
    assert told(figures) == words


def test_an_early_end_is_a_difference_that_needs_no_score():
    figures = judged(FakeJudge(), [parting(mine=None)])
    assert (figures["ties"], figures["differences"], figures["outputs of other lengths"]) == (0, 1, 1)


def test_a_judge_that_died_scores_nothing():
    assert judged(FakeJudge(None), [parting()]) == {"not scored": 1}
    assert told({"not scored": 1}) == "1 that part were not scored"
    assert told(judged(FakeJudge(), [])) == ""
