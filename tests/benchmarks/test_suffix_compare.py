import numpy as np
import pytest

from benchmarks.suffix_anchor import Own, filled_own
from benchmarks.suffix_compare import markdown
from benchmarks.suffix_replay import accepted_tokens, at_threshold, compare_budget, matching_threshold, replay
from benchmarks.suffix_schedule import MOST_TOKENS_OF_A_STEP, schedule
from benchmarks.suffix_stream import Request
from specctl.draft.suffix_index import SuffixIndexOptions
from testing.provenance import summary


class Oracle:
    """Drafts what comes next, with a wrong token at one place of every draft."""

    name = "oracle"
    digest = 0
    forgets = False

    def __init__(self, every, wrong_at):
        self.every, self.wrong_at = every, wrong_at
        self.seen = []

    def start(self, slot, prompt):
        self.seen = prompt.tolist()

    def given(self, tokens):
        return tokens.tolist()

    def update(self, slot, tokens):
        self.seen += tokens

    def settle(self):
        pass

    def forget_outcomes(self):
        pass

    def speculate(self, slot, known, budget):
        assert known.tolist() == self.seen
        draft = self.every[known.size : known.size + budget].tolist()
        if self.wrong_at < len(draft):
            draft[self.wrong_at] = -1
        return draft, [0.5] * len(draft)

    def discard(self, slot):
        assert self.seen == self.every.tolist()

    def set_min_token_prob(self, value):
        pass


def _request(prompt, output):
    ids = np.arange(prompt + output, dtype=np.int32)
    return ids, Request("code", ids[:prompt], ids[prompt:])


@pytest.mark.parametrize(
    ("draft", "truth", "expected"),
    [([], [1, 2], 0), ([1, 2], [1, 2], 2), ([1, 3, 2], [1, 2, 2], 1), ([5], [1], 0), ([1, 2], [1], 1)],
)
def test_accepted_tokens(draft, truth, expected):
    assert accepted_tokens(draft, truth) == expected


def test_a_replay_counts_the_token_of_the_target_in_each_step():
    every, request = _request(10, 1 + 12)
    result = replay(Oracle(every, wrong_at=2), [request], 4)
    assert (result.steps, result.emitted_tokens, result.tokens_per_step) == (4, 12, 3.0)
    assert result.by_kind() == {"code": 3.0}
    # The last step has room for two drafted tokens beside its own.
    assert result.drafted_tokens == 4 + 4 + 4 + 2


def test_a_replay_goes_to_the_end_without_drafts():
    every, request = _request(5, 4)
    result = replay(Oracle(every, wrong_at=0), [request], 1)
    assert (result.steps, result.emitted_tokens) == (3, 3)


def test_an_arm_that_does_not_forget_is_replayed_in_another_process():
    every, request = _request(10, 1 + 12)
    arm = Oracle(every, wrong_at=2)
    assert at_threshold(arm, [request], 4, 0.1).tokens_per_step == 3.0
    assert arm.seen == []


@pytest.mark.parametrize("wanted", [0.5, 2.0, 3.9])
def test_the_threshold_gives_as_many_drafted_tokens(wanted):
    def drafted_at(prob):
        return 4 * (1 - prob)

    assert drafted_at(matching_threshold(drafted_at, wanted)) == pytest.approx(wanted, rel=0.01)


def test_the_nearest_threshold_where_none_fits():
    assert matching_threshold(lambda prob: 1.0, 5.0) == pytest.approx(0.1)


def test_a_higher_threshold_drafts_less_and_a_replay_leaves_the_corpus_as_it_was():
    generator = np.random.default_rng(0)
    pool = [generator.integers(0, 40, 60).astype(np.int32) for _ in range(8)]
    own = filled_own(pool * 3)
    output = np.concatenate([pool[0][:30], pool[1][:30]])
    request = Request("code", pool[2], output)
    tokens = own.index.stats()["corpus_tokens"]
    drafted = [at_threshold(own, [request], 8, prob).drafted_per_step for prob in (0.01, 0.3, 0.9)]
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[0] > drafted[2]
    assert own.index.stats()["corpus_tokens"] == tokens
    compared = compare_budget(own, own, [request], 8)
    assert compared["ratio of tokens per step"] == 1
    assert "as many drafted tokens" in "\n".join(markdown({"replay": {"8 tokens": compared}}))


def test_both_arms_are_told_apart_by_a_digest_of_what_filled_them():
    parts = [np.arange(20, dtype=np.int32), np.arange(5, dtype=np.int32)]
    arms = [Own(SuffixIndexOptions(index_bytes=2**18)) for _ in range(3)]
    for arm, order in zip(arms, (parts, parts, parts[::-1]), strict=True):
        arm.fill(order)
    assert arms[0].digest == arms[1].digest != arms[2].digest


def test_a_schedule_replaces_requests_that_ended():
    text = [np.arange(200_000, dtype=np.int32)]
    first, *steps = schedule(text, 8, 300)
    assert [slot for slot, _ in first.started] == list(range(8))
    assert sum(len(step.started) for step in steps) > 0
    lengths = [prompt.size for _, prompt in first.started]
    for i, step in enumerate([first, *steps]):
        assert step.finished == ([] if i == 0 else [slot for slot, _ in step.started])
        for slot, prompt in step.started:
            lengths[slot] = prompt.size
        for slot, tokens in enumerate(step.token_lists()):
            assert 1 <= len(tokens) <= MOST_TOKENS_OF_A_STEP
            lengths[slot] += len(tokens)
            assert step.known[slot].size == lengths[slot]
            assert step.known[slot][-len(tokens) :].tolist() == tokens


def test_a_schedule_is_the_same_each_time():
    text = [np.arange(100_000, dtype=np.int32)]
    for one, other in zip(schedule(text, 4, 50), schedule(text, 4, 50), strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        assert one.finished == other.finished


def test_the_table_names_the_ratio_of_medians():
    figures = {"step": {"specctl": {"p50 us": summary([1, 2, 3])}, "anchor": {"p50 us": summary([8])}}}
    assert (
        list(markdown(figures))[-1] == "| step: p50 us | 2.00 (1.00 to 3.00) | 8.00 (8.00 to 8.00) | 4.00 |"
    )
