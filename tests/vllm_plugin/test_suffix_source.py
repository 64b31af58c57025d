"""Suffix drafts on Model Runner V2 under tensor parallelism: what the first rank found is everyone's."""

from types import SimpleNamespace

import pytest
import torch

suffix_source = pytest.importorskip("specctl_vllm.compat.suffix_source")

from specctl_vllm.options import OPTIONS_ENV, parse_speculative_config  # noqa: E402

REQUESTS, WIDTH = 4, 3


class Group:
    """The other rank has found something else."""

    world_size = 2

    def __init__(self):
        self.broadcasts = 0

    def broadcast(self, found, src):
        self.broadcasts += 1
        found.copy_(self.of_first_rank)


def source_of(monkeypatch, group, **asked):
    _, options = parse_speculative_config({"method": "specctl_suffix", **asked}, on_device=True)
    monkeypatch.setenv(OPTIONS_ENV, options.model_dump_json())
    feeder = SimpleNamespace(half_bytes=0, poll=lambda: None, corpus=None)
    monkeypatch.setattr(suffix_source, "get_tp_group", lambda: group)
    monkeypatch.setattr(suffix_source, "DeviceCorpusFeeder", lambda *_: feeder)
    monkeypatch.setattr(suffix_source, "kept_by_rank_0", lambda *_: None)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=WIDTH),
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS),
    )
    tokens = SimpleNamespace(gpu=None)
    states = SimpleNamespace(all_token_ids=tokens, total_len=tokens, prefill_len=tokens, req_id_to_index={})
    return suffix_source.DeviceSuffixSource(config, torch.device("cpu"), states)


def found(monkeypatch, source, value):
    """A step on this rank."""

    def drafted(*given):
        *_, drafts, probs, heads = given
        drafts.fill_(value)
        probs.fill_(value / 10)
        heads.fill_(value)

    monkeypatch.setattr(suffix_source, "suffix_draft", drafted)
    source.find(torch.arange(2), torch.ones(2, dtype=torch.int32), WIDTH)
    return source.drafts[:2].tolist(), source.probs[:2].tolist(), source.counts[:2].tolist()


def test_one_broadcast_brings_the_first_ranks_drafts_with_their_chances_and_counts(monkeypatch):
    group = Group()
    first, other = (source_of(monkeypatch, SimpleNamespace(world_size=1)), source_of(monkeypatch, group))
    expected = found(monkeypatch, first, 5)
    group.of_first_rank = first._found
    assert found(monkeypatch, other, 7) == expected
    assert group.broadcasts == 1


def test_drafts_from_a_requests_own_text_need_none(monkeypatch):
    group = Group()
    source = source_of(monkeypatch, group, use_global=False)
    drafts, *_ = found(monkeypatch, source, 7)
    assert drafts == [[7] * WIDTH] * 2
    assert group.broadcasts == 0


@pytest.mark.parametrize(
    ("ranks", "use_global", "learns"), [(1, False, True), (2, True, True), (2, False, False)]
)
def test_ranks_that_draft_for_themselves_keep_the_same_table(monkeypatch, ranks, use_global, learns):
    source = source_of(monkeypatch, SimpleNamespace(world_size=ranks), use_global=use_global)
    assert source._outcomes.outcomes.is_learning is learns
