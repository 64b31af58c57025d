"""What the host knows of the steps before, and when it waits for one."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

STALE = 77


class FutureMap:
    """SGLang's, as far as it is relied on."""

    def __init__(self, rows):
        self.req_pool_size = rows
        self.publish_ready = SimpleNamespace(wait=lambda: None)
        self.new_seq_lens_buf = torch.arange(100, 100 + rows)
        self.asked = 0

    def resolve_seq_lens_cpu(self, batch):
        self.asked += 1


class Copies:
    """Those of a step's tokens to the host: garbage until somebody has waited."""

    def __init__(self, tokens, counts):
        self._come = torch.tensor(tokens, dtype=torch.int32), torch.tensor(counts, dtype=torch.int32)
        self.tokens, self.counts = (torch.full_like(one, STALE) for one in self._come)
        self.waits, self.is_there = 0, False

    def query(self):
        if self.is_there:
            self._bring()
        return self.is_there

    def synchronize(self):
        self.waits += not self.is_there
        self._bring()

    def _bring(self):
        self.is_there = True
        self.tokens.copy_(self._come[0])
        self.counts.copy_(self._come[1])

    def parts(self):
        return self, self.tokens.flatten(), self.counts


@pytest.fixture
def relay_map(monkeypatch):
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.overlap_utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(
        sys.modules["sglang.srt.managers.overlap_utils"], "FutureMap", FutureMap, raising=False
    )
    monkeypatch.delitem(sys.modules, "specctl_sglang.compat.host_relay", raising=False)
    module = importlib.import_module("specctl_sglang.compat.host_relay")
    monkeypatch.delitem(sys.modules, "specctl_sglang.compat.host_relay")
    return module.HostRelayMap(8)


@pytest.fixture
def relay(relay_map):
    return relay_map.specctl_relay


def prompt(relay, rows, lengths, tokens):
    copies = Copies(tokens, [1] * len(rows))
    relay.note(torch.tensor(rows), torch.tensor(lengths), copies.parts(), 1, is_verification=False)
    return copies


def verification(relay, rows, before, tokens, counts):
    copies = Copies(tokens, counts)
    relay.note(torch.tensor(rows), torch.tensor(before), copies.parts(), len(tokens[0]), is_verification=True)
    return copies


def batch(rows):
    indices = torch.tensor(rows)
    return SimpleNamespace(
        spec_info=SimpleNamespace(future_indices=indices),
        req_pool_indices_cpu=indices,
        seq_lens=None,
        seq_lens_cpu=None,
        seq_lens_sum=None,
    )


def test_after_prompts_and_plain_steps_the_lengths_are_known_without_waiting(relay_map, relay):
    copies = prompt(relay, [2, 5], [20, 50], [[1], [2]])
    one = batch([5, 2])
    relay_map.resolve_seq_lens_cpu(one)
    assert (relay_map.asked, copies.waits, relay.unfilled) == (0, 0, None)
    assert (one.seq_lens_cpu.tolist(), one.seq_lens_sum) == ([50, 20], 70)
    assert one.seq_lens.tolist() == [105, 102]


def test_after_a_verification_they_come_with_its_tokens(relay_map, relay):
    prompt(relay, [2, 5], [20, 50], [[1], [2]])
    copies = verification(relay, [2, 5], [20, 50], [[3, 4, 0], [6, 0, 0]], [2, 1])
    one = batch([5, 2])
    relay_map.resolve_seq_lens_cpu(one)
    assert (relay_map.asked, copies.waits) == (0, 0)
    emitted = relay.read(one.req_pool_indices_cpu)
    assert copies.waits == 1
    assert emitted.lengths.tolist() == one.seq_lens_cpu.tolist() == [51, 22]
    assert (emitted.last.tolist(), emitted.counts.tolist()) == ([6, 4], [1, 2])
    assert relay.unfilled is None
    relay.read(one.req_pool_indices_cpu)
    assert copies.waits == 1


def test_a_prompt_between_two_steps_changes_nothing_for_the_others(relay_map, relay):
    verification(relay, [2], [20], [[3, 4, 0]], [2])
    prompt(relay, [5], [50], [[9]])
    one = batch([2, 5])
    relay_map.resolve_seq_lens_cpu(one)
    emitted = relay.read(one.req_pool_indices_cpu)
    assert (emitted.lengths.tolist(), emitted.last.tolist()) == ([22, 50], [4, 9])


def test_a_step_that_comes_back_late_does_not_speak_for_the_next(relay_map, relay):
    """Its row was launched again, or given to another request, before anybody waited for it."""
    late = verification(relay, [2, 5], [20, 50], [[3, 4, 0], [6, 0, 0]], [2, 1])
    prompt(relay, [5], [7], [[9]])
    assert not late.is_there
    late.is_there = True
    verification(relay, [5], [7], [[1, 1, 1]], [3])
    assert relay.lengths(torch.tensor([2])).tolist() == [22]
    assert relay.lengths(torch.tensor([5])) is None
    emitted = relay.read(torch.tensor([5, 2]))
    assert (emitted.lengths.tolist(), emitted.last.tolist()) == ([10, 22], [1, 4])


def test_steps_that_are_never_waited_for_do_not_pile_up(relay):
    for step in range(50):
        copies = prompt(relay, [2], [20 + step], [[step]])
        copies.is_there = True
    assert len(relay._coming) == 1
    assert relay.lengths(torch.tensor([2])).tolist() == [69]
    assert relay.read(torch.tensor([2])).last.tolist() == [49]


@pytest.mark.parametrize("rows", [[2, 3], [3]], ids=["one of two", "all"])
def test_what_was_not_noted_the_device_is_asked_for(relay_map, relay, rows):
    prompt(relay, [2, 3], [20, 30], [[1], [1]])
    relay.forget(torch.tensor([3]))
    relay_map.resolve_seq_lens_cpu(batch(rows))
    assert relay_map.asked == 1
    assert not relay.knows(torch.tensor(rows))


def test_at_the_first_step_it_is_as_in_sglang(relay_map, relay):
    prompt(relay, [1], [9], [[1]])
    first = batch([1])
    first.spec_info = None
    relay_map.resolve_seq_lens_cpu(first)
    relay_map.publish_ready = None
    relay_map.resolve_seq_lens_cpu(batch([1]))
    assert relay_map.asked == 2
