"""The hybrid of the V1 runner on a batch as vLLM lays it out, without a server."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specctl_vllm.compat.model_runner import wrap_propose_draft_token_ids
from specctl_vllm.options import OPTIONS_ENV, parse_speculative_config
from specctl_vllm.proposers.hybrid import HybridProposer

from specctl.engine.guard import GUARD

FULL = 4
REPEATED = [5, 6, 7, 8, 9] * 8
"""The suffix index is sure of what comes next."""
NEW = list(range(100, 140))
"""Nothing in it has been seen before."""
OF_HEAD = 77


def config(**parallel):
    sizes = {"tensor_parallel_size": 1, "data_parallel_size": 1, "rank": 0, **parallel}
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=128, tokenizer=None, tokenizer_revision=None),
        speculative_config=SimpleNamespace(num_speculative_tokens=FULL),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(**sizes),
    )


class Runner:
    """What of vLLM's runner a step reads; its head drafts OF_HEAD."""

    def __init__(self, hybrid, prompts):
        self.specctl_hybrid = hybrid
        self.speculative_config = SimpleNamespace(
            num_speculative_tokens=FULL, method="eagle3", parallel_drafting=False
        )
        self.specctl_clock = SimpleNamespace(mark=lambda: None, seconds=lambda **_: 0.001)
        self.drafter, self.specctl_resting_head = SimpleNamespace(), None
        tokens = np.zeros((len(prompts), 128), np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        lengths = np.array(list(map(len, prompts)))
        self.input_batch = SimpleNamespace(
            req_ids=[f"r{row}" for row in range(len(prompts))],
            num_prompt_tokens=lengths.copy(),
            num_tokens_no_spec=lengths,
            token_ids_cpu=tokens,
            vocab_size=1000,
        )
        self.discard_request_mask = SimpleNamespace(np=np.zeros(4, bool))
        self.asked = []

    def step(self, sampled, wanted=FULL, verified=None):
        def stock(runner, scheduler_output, sampled_token_ids):
            asked = scheduler_output.num_spec_tokens_to_schedule
            self.asked.append(asked)
            return torch.full((len(sampled), asked), OF_HEAD)

        output = SimpleNamespace(
            num_spec_tokens_to_schedule=wanted, scheduled_spec_decode_tokens=verified or {}
        )
        drafts = wrap_propose_draft_token_ids(stock)(self, output, torch.tensor(sampled))
        assert output.num_spec_tokens_to_schedule == wanted
        return drafts

    def book(self, row, tokens):
        """As vLLM does after the drafts are made."""
        at = self.input_batch.num_tokens_no_spec[row]
        self.input_batch.token_ids_cpu[row, at : at + len(tokens)] = tokens
        self.input_batch.num_tokens_no_spec[row] += len(tokens)


@pytest.fixture
def hybrid(monkeypatch):
    _, options = parse_speculative_config({"method": "specctl_hybrid", "head": "eagle3", "model": "m"})
    monkeypatch.setenv(OPTIONS_ENV, options.model_dump_json())
    made = HybridProposer(config())
    made.load_model()
    return made


def test_both_sources_draft_in_one_step(hybrid):
    runner = Runner(hybrid, [REPEATED, NEW])
    # The head is thought to bring the whole of its draft until it has missed.
    for _ in range(300):
        hybrid._choice.verified([], [], [])
        hybrid._choice._of_head = {"r1"}
        hybrid._choice.verified(["r1"], [FULL], [2])
    drafts = runner.step([[5, -1], [140, -1]])
    assert drafts == [[6, 7, 8, 9], [OF_HEAD] * FULL]
    assert runner.asked == [FULL]
    stats = hybrid.stats()
    assert [stats[name] for name in ("drafts_of_suffix", "drafts_of_head", "steps_of_head")] == [1, 1, 1]


def test_the_head_only_reads_where_suffix_drafts_bring_more(hybrid):
    runner = Runner(hybrid, [REPEATED])
    hybrid._choice._accepted[:] = 0.2
    assert runner.step([[5, -1]]) == [[6, 7, 8, 9]]
    assert runner.asked == [0]
    runner.book(0, [5])
    assert runner.step([[6, 7]], wanted=2, verified={"r0": [6, 7, 8, 9]}) == [[8, 9]]


def test_a_head_asleep_drafts_for_nobody_until_new_requests_come(hybrid):
    runner = Runner(hybrid, [REPEATED, NEW])
    dropped = []
    runner.specctl_resting_head = SimpleNamespace(begin=lambda *_: None, drop=dropped.extend)
    hybrid._sleep.is_asleep = True
    assert runner.step([[5, -1], [140, -1]]) == [[6, 7, 8, 9], []]
    hybrid._sleep.is_asleep = False
    runner.book(0, [5])
    runner.book(1, [140])
    assert runner.step([[6, -1], [141, -1]]) == [[7, 8, 9, 5], []]
    assert runner.asked == [0]
    assert dropped == ["r0", "r1"]
    assert hybrid._counts["steps_head_asleep"] == 1
    hybrid.finish(["r1"])
    runner.book(0, [6])
    runner.book(1, [141])
    assert runner.step([[7, -1], [142, -1]]) == [[8, 9, 5, 6], [OF_HEAD] * FULL]


@pytest.mark.parametrize("cached_tokens", [0, 16])
def test_a_prompt_from_the_prefix_cache_wakes_the_head(hybrid, cached_tokens):
    hybrid._sleep.is_asleep = True
    new = SimpleNamespace(req_id="r0", sampling_params=None, num_computed_tokens=cached_tokens)
    hybrid.note_requests({}, [], [new])
    assert hybrid._sleep.is_asleep is not bool(cached_tokens)


def test_tokens_are_read_once(hybrid):
    runner = Runner(hybrid, [REPEATED])
    for sampled in ([5, 6, 7], [8, -1, -1], [9, 5, 6]):
        runner.step([sampled])
        runner.book(0, [token for token in sampled if token >= 0])
        slot = hybrid._slots.get("r0")
        assert hybrid._index.length(slot) == runner.input_batch.num_tokens_no_spec[0]


def test_rows_that_sampled_nothing_get_no_draft(hybrid):
    runner = Runner(hybrid, [REPEATED, NEW])
    runner.discard_request_mask.np[1] = True
    assert runner.step([[5, -1], [3, -1]])[1] == []
    assert runner.step([[-1, -1], [1000, -1]]) == [[], []]


def test_at_0_nothing_is_drafted(hybrid):
    runner = Runner(hybrid, [REPEATED, NEW])
    assert runner.step([[5, -1], [140, -1]], wanted=0) == [[], []]
    assert runner.asked == [0]


@pytest.mark.parametrize(("unshared", "learnt"), [([], [141, 142]), (["r0"], [])])
def test_what_a_request_does_not_share_is_not_learnt(hybrid, unshared, learnt):
    runner = Runner(hybrid, [NEW])
    hybrid.note_requests({}, unshared, [])
    runner.step([[141, 142]])
    hybrid.finish(["r0"])
    hybrid._index.flush()
    outputs, _ = hybrid._index.outputs_since(0)
    assert outputs[:-1].tolist() == learnt


@pytest.mark.parametrize("fails", ["find", "merged", "timed"])
def test_a_failure_costs_the_choice_alone(hybrid, monkeypatch, fails):
    runner = Runner(hybrid, [NEW])
    monkeypatch.setattr(hybrid, fails, lambda *_: 1 / 0)
    drafts = runner.step([[140, -1]])
    assert (drafts.tolist() if fails == "find" else drafts) == [[OF_HEAD] * FULL]
    assert GUARD.failures == {f"hybrid.{fails}": 1}
    GUARD.failures.clear()


def test_ranks_never_disagree_on_a_pass(monkeypatch):
    made = HybridProposer(config(tensor_parallel_size=2))
    made.load_model()
    runner = Runner(made, [REPEATED])
    made._choice._accepted[:] = 0.2
    assert runner.step([[5, -1]]) == [[6, 7, 8, 9]]
    assert runner.asked == [FULL]


def test_ranks_never_disagree_on_a_head_asleep():
    made = HybridProposer(config(tensor_parallel_size=2))
    made.load_model()
    made._choice._accepted[:] = 0.2
    runner = Runner(made, [REPEATED])
    runner.specctl_resting_head = SimpleNamespace(begin=lambda *_: None)
    for _ in range(600):
        made._sleep.start(0)
        made._sleep.drafted(0.0)
        made._sleep.timed(0.03, 0.01)
    assert runner.step([[5, -1]]) == [[6, 7, 8, 9]]
    assert runner.asked == [FULL]
