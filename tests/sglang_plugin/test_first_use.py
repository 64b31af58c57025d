"""What SGLang compiles in its first steps of a kind is compiled at start."""

from types import SimpleNamespace

import pytest
from support.stand_ins import imported_alone, with_names_alone

LARGEST = 256
"""SGLang's parts of a longer move."""


@pytest.fixture
def first_use(monkeypatch):
    (module,) = with_names_alone(monkeypatch, "sglang.kernels.ops.attention.clamp_position")
    module.clamp_position = None
    (ours,) = imported_alone(monkeypatch, "specctl_sglang.compat.first_use")
    return ours


def kernel(places):
    """Which one SGLang's Triton makes for so many."""
    return 1 << (places - 1).bit_length(), places % 16 == 0


@pytest.mark.parametrize(("requests", "tokens"), [(1, 3), (1, 5), (8, 5), (32, 5), (256, 9)])
def test_every_move_of_accepted_tokens_finds_its_kernel(first_use, requests, tokens):
    moved = []

    def move(to, start):
        assert not to.any()
        assert to.equal(start)
        moved.append(len(to))

    pool = SimpleNamespace(device="cpu", move_kv_cache=move)
    allocator = SimpleNamespace(get_kvcache=lambda: pool)
    runner = SimpleNamespace(max_running_requests=requests, token_to_kv_pool_allocator=allocator)
    first_use.compile_moves(runner, tokens)
    parts = (part for n in range(1, requests + 1) for part in divided(n * tokens))
    assert {*map(kernel, parts)} <= {*map(kernel, moved)}
    assert max(moved) <= LARGEST


def divided(places):
    return [LARGEST] * (places // LARGEST) + ([places % LARGEST] if places % LARGEST else [])
