"""The device's table follows the outcomes of its drafts; on CPU tensors where there is no GPU."""

from __future__ import annotations

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from specctl_vllm.proposers.device_outcomes import DeviceOutcomes  # noqa: E402

from specctl.draft.lessons import ENTRY_WORDS  # noqa: E402
from specctl.draft.outcomes import Outcomes  # noqa: E402
from specctl.draft.token_odds import EXPECTED_UNIT  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENTRY, DRAFTED, ACCEPTED = 700, 400, 40
PLACE, OF_TOKENS = 5, (400, 40, 100 * EXPECTED_UNIT)


def learnt(is_learning: bool = True) -> DeviceOutcomes:
    found = DeviceOutcomes(2, 4, DEVICE, is_learning)
    found.lessons.counted[0, ENTRY] += torch.tensor([DRAFTED, ACCEPTED], dtype=torch.int32, device=DEVICE)
    found.lessons.of_tokens[PLACE] += torch.tensor(OF_TOKENS, dtype=torch.int32, device=DEVICE)
    return found


def polled(outcomes: DeviceOutcomes, before: torch.Tensor) -> None:
    deadline = time.monotonic() + 60
    while torch.equal(outcomes.chances, before):
        assert time.monotonic() < deadline
        outcomes.poll()


def test_the_table_follows_as_on_the_host() -> None:
    device, host = learnt(), Outcomes(1)
    address, built_in = device.chances.data_ptr(), device.chances.clone()
    polled(device, built_in)
    host.counted[0, 2 * ENTRY : 2 * ENTRY + 2] += (DRAFTED, ACCEPTED)
    host.counted[0, ENTRY_WORDS + 3 * PLACE :][:3] += OF_TOKENS
    assert host.is_due(10_000)
    host.learn_if_due()
    np.testing.assert_array_equal(device.chances.cpu().numpy(), host.chances_of())
    assert device.chances[0, ENTRY] < built_in[0, ENTRY]
    np.testing.assert_array_equal(device.odds.cpu().numpy(), host.tokens.odds)
    assert device.odds[PLACE] < 1
    assert (device.odds == 1).sum() == len(device.odds) - 1
    assert device.chances.data_ptr() == address


def test_each_outcome_counts_once() -> None:
    """The device's counts go on; a file gets what is new."""
    device = learnt()
    polled(device, device.chances.clone())
    assert device.outcomes.take()[""].tolist() == [[0, ENTRY, DRAFTED, ACCEPTED]]
    device.lessons.counted[0, ENTRY, 0] += 3
    polled(device, device.chances.clone())
    assert device.outcomes.take()[""].tolist() == [[0, ENTRY, 3, 0]]


def test_the_table_of_the_file_alone() -> None:
    device = learnt(is_learning=False)
    before = device.chances.clone()
    for _ in range(1000):
        device.poll()
    assert torch.equal(device.chances, before)


def test_a_refit_that_fails_is_the_last_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = learnt()

    def broken() -> None:
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(device.outcomes, "learn_if_due", broken)
    for _ in range(1000):
        device.poll()
        assert device.outcomes is not None
    assert caplog.text.count("no longer follow") == 1
