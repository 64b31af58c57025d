"""What SGLang's schedulers tell each other before a step, with what each wants to draft behind it."""

from types import SimpleNamespace

import pytest
import torch
from specctl_sglang.compat import rank_agreement
from specctl_sglang.compat.rank_agreement import AGREEMENT, Wish
from specctl_sglang.terms import OFF, chain

from specctl.engine.guard import GUARD

TREE = (3, 4, 8)
DECODE = SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: True))
PROMPTS = SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: False))


class Info:
    """MLPSyncBatchInfo, as far as the patches know it: three numbers a rank, and none of a third rank."""

    def __init__(self, rank, told):
        self.rank, self.told = rank, told

    def _get_local_tensor(self, device, dtype=torch.int64):
        return torch.tensor([self.rank, 7, 1], device=device, dtype=dtype)

    def _get_fallback_tensor(self, device, dtype=torch.int64):
        return torch.tensor([0, 0, 1], device=device, dtype=dtype)

    def all_gather(self, device, group):
        self.told[self.rank] = self._get_local_tensor(device=device)
        if len(self.told) == 2:
            rows = [*self.told.values(), self._get_fallback_tensor(device=device)]
            self.tp0_info_cpu = torch.stack(rows)
        else:
            self.tp0_info_cpu = torch.zeros(1, len(self.told[self.rank]), dtype=torch.int64)
        return "gathered"


@pytest.fixture
def told(monkeypatch):
    """The gathered table of two ranks, by their wishes, after the second's own gather."""
    monkeypatch.setattr(AGREEMENT, "ask", None)
    for name, wrap in (
        ("_get_local_tensor", rank_agreement.wrap_local_tensor),
        ("_get_fallback_tensor", rank_agreement.wrap_fallback_tensor),
        ("all_gather", rank_agreement.wrap_all_gather),
    ):
        monkeypatch.setattr(Info, name, wrap(getattr(Info, name)))

    def gathered(*wishes):
        rows = {}

        def prepare(batch, rank):
            info = Info(rank, rows)
            assert info.all_gather("cpu", None) == "gathered"
            return info

        prepared = rank_agreement.wrap_prepare_mlp_sync_batch_raw(prepare)
        for rank, wish in enumerate(wishes):
            AGREEMENT.ask = lambda _batch, wish=wish: wish
            info = prepared(None if wish is None else DECODE, rank=rank)
        return info.tp0_info_cpu

    yield gathered
    AGREEMENT.agreed = None


def test_what_sglang_reads_stays_where_it_was(told):
    table = told(Wish(chain(3), 2), None)
    assert table[:, :3].tolist() == [[0, 7, 1], [1, 7, 1], [0, 0, 1]]
    assert table.shape[1] == 3 + rank_agreement.ROWS
    assert not table[1:, 3:].any()


def test_the_busiest_rank_decides(told):
    told(Wish(TREE, 2, is_sample=True), Wish(chain(1), 5))
    assert AGREEMENT.agreed == Wish(chain(1), 5)
    told(Wish(TREE, 5, is_sample=True), Wish(chain(1), 2))
    assert AGREEMENT.agreed == Wish(TREE, 5, is_sample=True)
    told(Wish(OFF, 5), Wish(chain(1), 2))
    assert AGREEMENT.agreed == Wish(OFF, 5)


def test_of_two_as_busy_the_first_decides(told):
    told(Wish(chain(2), 4), Wish(chain(1), 4))
    assert AGREEMENT.agreed.shape == chain(2)


def test_no_rank_drafts_more_than_the_least_that_one_can_verify(told):
    told(Wish(chain(5), 9), Wish(chain(1), 2, most=2))
    assert AGREEMENT.agreed == Wish(chain(5), 9, most=2)
    told(Wish(chain(5), 9, most=3), Wish(OFF, 2, most=0))
    assert AGREEMENT.agreed.most == 0


def test_where_no_rank_decodes_nothing_is_agreed(told):
    told(Wish(chain(5), 9), None)
    told(None, None)
    assert AGREEMENT.agreed is None


def test_a_rank_that_cannot_say_what_it_wants_lets_no_rank_draft(told):
    def fails(_batch):
        raise RuntimeError("planted")

    AGREEMENT.ask = fails
    AGREEMENT.begin(DECODE)
    AGREEMENT.close([Wish(chain(5), 9).row(), AGREEMENT.row()])
    assert (AGREEMENT.agreed.shape, AGREEMENT.agreed.most) == (chain(5), 0)
    assert GUARD.failures.pop("draft") == 1


def test_prompts_and_servers_that_nothing_steers_say_nothing(told):
    AGREEMENT.ask = lambda _batch: pytest.fail("asked")
    AGREEMENT.begin(PROMPTS)
    assert AGREEMENT.row() == [0] * rank_agreement.ROWS
    AGREEMENT.ask = None
    AGREEMENT.begin(DECODE)
    assert AGREEMENT.row() == [0] * rank_agreement.ROWS
