"""Counters of acceptance: as their reference; snapshots that do not wait. ``test_twins`` runs this."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from specctl_kernels.acceptance_stats import AcceptanceCounts, AcceptanceStats, launch
from specctl_kernels.acceptance_stats.reference import add_reference
from specctl_kernels.verify_rejection import NOT_FINITE
from support.quick_interpreter import quick_interpreter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
FIELDS = ("steps", "not_finite", "reached", "accepted")


@pytest.fixture(autouse=True, scope="module")
def interpreted_in_time() -> Iterator[None]:
    with quick_interpreter():
        yield


def zeros(classes: int, positions: int) -> AcceptanceCounts:
    def of(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64)

    return AcceptanceCounts(of(classes), of(classes), of(classes, positions), of(classes, positions))


def step(requests: int, width: int, classes: int, seed: int) -> dict[str, torch.Tensor]:
    """Requests of 0 to ``width`` rows, of which a draft in ten is none; those behind it are never kept."""
    torch.manual_seed(seed)
    rows = torch.randint(0, width + 1, (requests,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    drafts = torch.randint(0, 2**31 - 1, (int(starts[-1]),), dtype=torch.int32)
    drafts = torch.where(torch.rand(len(drafts)) < 0.1, -1, drafts)
    counts = torch.zeros(requests, dtype=torch.int32)
    for req, (first, length) in enumerate(zip(starts.tolist(), rows.tolist(), strict=False)):
        if length:
            is_none = (drafts[first + 1 : first + length] < 0).tolist()
            most = is_none.index(True) if True in is_none else length - 1
            counts[req] = NOT_FINITE if torch.rand(()) < 0.1 else int(torch.randint(0, most + 1, ())) + 1
    # Some of classes that there are not.
    own = torch.randint(-1, classes + 1, (requests,), dtype=torch.int32)
    return {"counts": counts, "starts": starts, "drafts": drafts, "classes": own}


def on_device(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(DEVICE) for name, value in given.items()}


def read(stats: AcceptanceStats) -> AcceptanceCounts:
    """The sums as they are now: one look may still find the copy of an earlier one."""
    for _ in range(3):
        found = stats.snapshot()
        if IS_GPU:
            torch.cuda.synchronize()
    assert found is not None
    return found


def check(got: AcceptanceCounts, want: AcceptanceCounts) -> None:
    for name in FIELDS:
        assert getattr(got, name).tolist() == getattr(want, name).tolist(), name


SIZES = [
    (0, 4, 2, 3), (1, 1, 1, 0), (1, 2, 1, 1), (3, 1, 2, 2), (3, 8, 1, 7), (33, 8, 5, 7), (64, 6, 3, 5),
    (65, 17, 9, 16), (200, 8, 2, 3), (130, 4, 3, 12),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "width", "classes", "positions"), SIZES)
def test_sums_as_the_reference(requests: int, width: int, classes: int, positions: int) -> None:
    stats, want = AcceptanceStats(classes, positions, DEVICE), zeros(classes, positions)
    for seed in range(3):
        given = step(requests, width, classes, seed)
        stats.add(**on_device(given))
        add_reference(want, **given)
    check(read(stats), want)
    assert requests < 33 or int(want.accepted.sum()) > 0


@pytest.mark.parametrize("left_out", [{"drafts"}, {"classes"}, {"drafts", "classes"}], ids=sorted)
def test_what_is_not_given(left_out: set[str]) -> None:
    stats, want = AcceptanceStats(3, 4, DEVICE), zeros(3, 4)
    given = {k: v for k, v in step(40, 6, 3, 1).items() if k not in left_out}
    stats.add(**on_device(given))
    add_reference(want, **given)
    check(read(stats), want)


def test_by_hand() -> None:
    """Three drafts of which one was kept; no drafts; NaN; two drafts, all kept; no rows."""
    stats = AcceptanceStats(1, 3, DEVICE)
    starts = torch.tensor([0, 4, 5, 7, 10, 10], dtype=torch.int32, device=DEVICE)
    stats.add(torch.tensor([2, 1, NOT_FINITE, 3, 0], dtype=torch.int32, device=DEVICE), starts)
    found = read(stats)
    assert (found.steps.tolist(), found.not_finite.tolist()) == ([3], [1])
    assert found.reached.tolist() == [[2, 2, 0]]
    assert found.accepted.tolist() == [[2, 1, 0]]


def test_sums_beyond_32_bits() -> None:
    stats, want = AcceptanceStats(2, 3, DEVICE), zeros(2, 3)
    stats._sums += 2**40
    given = step(33, 4, 2, 5)
    stats.add(**on_device(given))
    add_reference(want, **given)
    got = read(stats)
    check(AcceptanceCounts(*(getattr(got, name) - 2**40 for name in FIELDS)), want)


class Copies:
    """Copies that are over when told to be: what the device has then reaches the host."""

    def __init__(self) -> None:
        self.started = 0
        self.is_over = False

    def start(self, source: torch.Tensor, goal: torch.Tensor) -> Callable[[], bool]:
        self.started += 1
        self.is_over = False
        held = source.clone()

        def is_done() -> bool:
            if self.is_over:
                goal.copy_(held)
            return self.is_over

        return is_done


def test_a_snapshot_is_the_last_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies()
    monkeypatch.setattr(launch, "_start_copy", copies.start)
    stats = AcceptanceStats(1, 1, "cpu")
    assert stats.snapshot() is None
    assert stats.snapshot() is None
    assert copies.started == 1
    stats._sums += 1  # behind the copy that was started
    copies.is_over = True
    first = stats.snapshot()
    assert first is not None
    assert first.steps.tolist() == [0]
    assert copies.started == 2
    stats._sums += 1
    again = stats.snapshot()
    assert again is not None
    assert again.steps.tolist() == [0]
    assert copies.started == 2
    copies.is_over = True
    second = stats.snapshot()
    assert second is not None
    assert second.steps.tolist() == [1]
    assert first.steps.tolist() == [0], "an earlier snapshot changed"


def test_without_a_gpu_a_snapshot_is_of_now() -> None:
    stats = AcceptanceStats(1, 2, "cpu")
    stats._sums += 7
    found = stats.snapshot()
    assert found is not None
    assert found.reached.tolist() == [[7, 7]]


@pytest.mark.skipif(not IS_GPU, reason="a CPU has no stream to run ahead of")
def test_a_snapshot_does_not_wait_for_the_device() -> None:
    stats = AcceptanceStats(1, 1, DEVICE)
    read(stats)
    torch.cuda._sleep(2_000_000_000)
    stats._sums += 1
    found = stats.snapshot()
    is_running = not torch.cuda.current_stream().query()
    assert is_running
    assert found is not None
    assert found.steps.tolist() == [0]
    assert read(stats).steps.tolist() == [1]


INT = torch.int32
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"counts": torch.zeros(2)}, r"counts: expected int32\[2\], contiguous, on cpu, got float32\[2\]"),
    ({"counts": torch.zeros(2, 2, dtype=INT)}, r"counts: expected int32\['requests'\].*got int32\[2, 2\]"),
    (
        {"starts": torch.zeros(2, dtype=INT)},
        r"starts: expected int32\[3\], contiguous, on cpu, got int32\[2\]",
    ),
    ({"drafts": torch.zeros(4)}, r"drafts: expected int32 or int64\[4\], contiguous, on cpu, got float32"),
    ({"classes": torch.zeros(2).long()}, r"classes: expected int32\[2\], contiguous, on cpu, got int64"),
    ({"counts": torch.zeros(2, dtype=INT, device="meta")}, "on cpu, got .* on meta"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], message: str) -> None:
    given = {"counts": torch.zeros(2, dtype=INT), "starts": torch.zeros(3, dtype=INT)}
    with pytest.raises(ValueError, match=message):
        AcceptanceStats(1, 1, "cpu").add(**given | wrong)


@pytest.mark.parametrize(("classes", "positions"), [(0, 3), (1, -1)])
def test_sizes_are_checked(classes: int, positions: int) -> None:
    with pytest.raises(ValueError, match=f"expected 1 and 0 at least, got {classes} and {positions}"):
        AcceptanceStats(classes, positions, "cpu")
