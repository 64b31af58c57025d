"""The hybrid of Model Runner V2 beside a speculator of vLLM's, on CPU tensors: which head's passes run, and
whose drafts are handed on. The device's choice is the kernel's reference."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from specctl_kernels.draft_choice.reference import draft_choice_reference

hybrid_device = pytest.importorskip("specctl_vllm.compat.hybrid_device")

from specctl_vllm.proposers.head_pace import HeadPace, Reading  # noqa: E402

FULL, SLOTS = 3, 8
OF_SUFFIX, OF_HEAD = 5, 7


class Suffix:
    """Drafts for the first request of a batch only, and is sure of them."""

    def __init__(self, *_):
        self.drafts = torch.full((SLOTS, FULL), OF_SUFFIX)
        self.probs = torch.full((SLOTS, FULL), 0.95)
        self.counts = torch.zeros(SLOTS, dtype=torch.int32)
        self.noted = []

    def note_step(self, scheduler_output):
        self.noted.append(scheduler_output)

    def isolate(self, request_ids):
        self.noted += request_ids

    def find(self, slots, num_sampled, wanted):
        self.counts.zero_()
        self.counts[0] = wanted


class Readings:
    """What a device would have measured."""

    def __init__(self):
        self.waiting = []

    def begin(self):
        """Nothing to record."""

    def head(self):
        return nullcontext()

    def end(self, gain):
        """Nothing to copy."""

    def take(self):
        found, self.waiting = self.waiting, []
        return found


class Head(hybrid_device.TargetDependentARSpeculator):
    def __init__(self):
        self.max_num_reqs, self.num_speculative_steps = SLOTS, FULL
        self.device = torch.device("cpu")
        self.draft_tokens = torch.zeros(SLOTS, FULL, dtype=torch.int64)
        self.asked = []

    def load_draft_model(self, target_model, target_attn_layer_names):
        """Abstract in vLLM."""

    def capture(self):
        self.asked.append("capture")

    def propose(self, input_batch, *args, num_speculative_tokens=None, **kwargs):
        self.asked.append(num_speculative_tokens)
        self.draft_tokens[: input_batch.num_reqs] = OF_HEAD if num_speculative_tokens else -1
        return self.draft_tokens[: input_batch.num_reqs]


def made(monkeypatch, head, **sizes):
    for name, stand_in in (
        ("DeviceSuffixSource", Suffix),
        ("DeviceReadings", Readings),
        ("draft_choice", draft_choice_reference),
    ):
        monkeypatch.setattr(hybrid_device, name, stand_in)
    parallel = SimpleNamespace(**{"tensor_parallel_size": 1, "data_parallel_size": 1, **sizes})
    return hybrid_device.with_suffix(head, SimpleNamespace(parallel_config=parallel), None)


def step(speculator, wanted=FULL, requests=2, **more):
    batch = SimpleNamespace(
        num_reqs=requests,
        idx_mapping=torch.arange(requests, dtype=torch.int32),
        query_start_loc=torch.arange(requests + 1, dtype=torch.int32),
    )
    rest = [None, None, None, None, torch.ones(requests, dtype=torch.int32), None]
    return speculator.propose(batch, *rest, num_speculative_tokens=wanted, **more).tolist()


def test_each_request_has_the_drafts_of_whom_more_is_expected(monkeypatch):
    speculator = made(monkeypatch, Head())
    assert step(speculator) == [[OF_SUFFIX] * FULL, [OF_HEAD] * FULL]
    assert speculator.asked == [FULL]


def test_at_0_drafts_and_before_the_start_the_head_is_asked_as_ever(monkeypatch):
    speculator = made(monkeypatch, Head())
    step(speculator, 0)
    step(speculator, dummy_run=True)
    assert speculator.asked == [0, FULL]


def slow_head():
    pace = HeadPace()
    for _ in range(64):
        pace.observe(Reading(gain_tokens=0.01, base_tokens=2.0, step_ms=10.0, head_ms=5.0))
        pace.next_step()
    assert not pace.runs
    return pace


def test_a_head_that_costs_more_than_it_brings_rests_and_places_without_drafts_hold_a_token(monkeypatch):
    monkeypatch.setattr(hybrid_device, "HeadPace", slow_head)
    speculator = made(monkeypatch, Head())
    assert step(speculator) == [[OF_SUFFIX] * FULL, [0] * FULL]
    assert speculator.asked == [0]


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 2}, {"data_parallel_size": 2}], ids=str)
def test_ranks_run_their_head_in_every_step(monkeypatch, sizes):
    monkeypatch.setattr(hybrid_device, "HeadPace", slow_head)
    speculator = made(monkeypatch, Head(), **sizes)
    step(speculator)
    assert speculator.asked == [FULL]


@pytest.mark.parametrize(("ranks", "asked"), [(1, []), (2, [FULL])])
@pytest.mark.parametrize("fails", ["find", "choose"])
def test_what_fails_beside_a_head_leaves_no_other_rank_waiting(monkeypatch, ranks, asked, fails):
    """It raises before the head's passes, or behind them."""
    speculator = made(monkeypatch, Head(), data_parallel_size=ranks)
    beside = speculator.note_step.__self__

    def broken(*_args):
        raise RuntimeError("broken")

    if fails == "find":
        monkeypatch.setattr(beside._suffix, "find", broken)
    else:
        monkeypatch.setattr(beside, "_choose", broken)
        asked = [FULL]
    with pytest.raises(RuntimeError, match="broken"):
        step(speculator)
    assert speculator.asked == asked


def test_a_draft_model_that_drafts_whatever_is_wanted_runs_in_every_step(monkeypatch):
    monkeypatch.setattr(hybrid_device, "HeadPace", slow_head)
    monkeypatch.setattr(hybrid_device, "TargetDependentARSpeculator", type("Other", (), {}))
    speculator = made(monkeypatch, Head())
    step(speculator)
    assert speculator.asked == [FULL]


def test_what_the_scheduler_sends_along_reaches_the_index(monkeypatch):
    speculator = made(monkeypatch, Head())
    speculator.note_step("a step")
    speculator.isolate(["a"])
    beside = speculator.note_step.__self__
    assert beside._suffix.noted == ["a step", "a"]
