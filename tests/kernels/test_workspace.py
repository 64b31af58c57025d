"""Memory kept between calls: what an earlier call left there changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from specctl_kernels import workspace
from specctl_kernels.row_argmax import row_argmax
from specctl_kernels.verify_block import verify_block
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import verify_rejection
from specctl_kernels.verify_tree import verify_greedy_linked_trees, verify_linked_trees
from support.tree_batches import tree_batch
from support.verify_batches import chain_batch, packed, with_draft_logits
from support.verify_tests import in_silence

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAIR = [((3, 4), torch.float32), ((5,), torch.int64)]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_of_thread", workspace._OfThread())


def kept() -> list[torch.Tensor]:
    return [one._memory for one in workspace._of_thread.kept.values() if one._memory is not None]


def greedy_of(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in ("logits", "drafts", *names)}


VERIFIERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "row_argmax": lambda given: (row_argmax(given["logits"]),),
    "verify_greedy": lambda given: verify_greedy(**greedy_of(given, "starts", "width")),
    "verify_greedy_linked_trees": lambda given: verify_greedy_linked_trees(
        **greedy_of(given, "first_child", "next_sibling", "depth")
    ),
    "verify_linked_trees": lambda given: verify_linked_trees(**packed(given)),
    "verify_rejection": lambda given: verify_rejection(**packed(given)),
    "verify_block": lambda given: verify_block(**packed(given)),
}


@in_silence
@pytest.mark.parametrize("name", VERIFIERS)
def test_what_an_earlier_call_left_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of several sizes, each twice; between two calls what is kept is made NaN, or -1."""
    batches = []
    for seed, (requests, vocabulary) in enumerate([(5, 60), (2, 60), (9, 61)]):
        if "trees" in name:
            given = tree_batch(requests, 5, vocabulary, torch.float32, "mixed", seed=seed, shape="star")
        else:
            given = chain_batch(requests, vocabulary, torch.float32, "mixed", seed=seed)
        if name == "verify_block":
            given = with_draft_logits(given, torch.float32, 60)
        batches.append({k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()})
    verify = VERIFIERS[name]
    with monkeypatch.context() as patched:
        patched.setattr(workspace, "_KEPT_BYTES_MOST", -1)
        want = [[one.tolist() for one in verify(given)] for given in batches]
        assert kept() == []
    for _ in range(2):
        for given, alone in zip(batches, want, strict=True):
            assert [one.tolist() for one in verify(given)] == alone
            assert kept() != []
            for memory in kept():
                memory.fill_(255)


def test_a_layout_has_one_memory_that_grows() -> None:
    like = torch.zeros(1)

    def layout(size: int) -> list[workspace.Part]:
        return [((size,), torch.float32), ((size, 2), torch.int64)]

    small, again = workspace.workspace(like, layout, 3), workspace.workspace(like, layout, 3)
    assert all(one is other for one, other in zip(small, again, strict=True))
    assert [(one.shape, one.dtype) for one in small] == [((3,), torch.float32), ((3, 2), torch.int64)]
    large = workspace.workspace(like, layout, 1000)
    assert workspace.workspace(like, layout, 3)[0].data_ptr() == large[0].data_ptr()
    assert len(kept()) == 1
    whole = large[0].untyped_storage()
    places = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in large)
    assert places[0][1] <= places[1][0]
    assert places[1][1] <= whole.data_ptr() + whole.nbytes()
    assert all((start - whole.data_ptr()) % 256 == 0 for start, _ in places)


def test_two_layouts_and_two_threads_share_nothing() -> None:
    like = torch.zeros(1)
    found = [workspace.workspace(like, lambda: PAIR), workspace.workspace(like, lambda: list(PAIR))]

    def layout() -> list[workspace.Part]:
        return PAIR

    found.append(workspace.workspace(like, layout))
    thread = threading.Thread(target=lambda: found.append(workspace.workspace(like, layout)))
    thread.start()
    thread.join()
    assert len({tensors[0].data_ptr() for tensors in found}) == 4


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.zeros(1)

    def layout(size: int) -> list[workspace.Part]:
        return [((size,), torch.uint8)]

    monkeypatch.setattr(workspace, "_KEPT_BYTES_MOST", 1024)
    monkeypatch.setattr(workspace, "_KEPT_SIZES_MOST", 3)
    assert workspace.workspace(like, layout, 2000)[0].shape == (2000,)
    assert kept() == [], "so large a call has memory of its own"
    for size in range(1, 9):
        workspace.workspace(like, layout, size)
    assert len(workspace._of_thread.kept[layout, like.device, 0].made) <= 3
    for _ in range(40):
        workspace.workspace(like, lambda: PAIR)
    assert len(workspace._of_thread.kept) <= workspace._KEPT_MOST


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_captured_graph_has_memory_of_its_own() -> None:
    logits = torch.randn(64, 5000, device=DEVICE)
    row_argmax(logits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = row_argmax(logits)
    for memory in kept():
        memory.fill_(255)
    graph.replay()
    row_argmax(logits + 1)
    assert torch.equal(found, logits.argmax(-1))
