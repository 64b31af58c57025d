"""What the engine is told of suffix drafts, where it verifies the likeliest of all requests."""

import pytest
import torch
from specctl_vllm.options import parse_speculative_config
from specctl_vllm.proposers.confidence import confidences


def test_confidences_multiply_up_to_the_survival_and_end_with_the_drafts():
    survival = torch.tensor([[0.9, 0.45, 0.45, 0.2], [0.5, 0.4, 0.3, 0.9], [0.7, 0.7, 0.7, 0.7]])
    counts = torch.tensor([4, 3, 0], dtype=torch.int32)
    found = confidences(survival, counts)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cumprod(1)[0], survival[0])
    torch.testing.assert_close(found.cumprod(1)[1, :3], survival[1, :3])
    assert found[1, 3] == 0
    assert found[2].tolist() == [0.0] * 4


def test_a_survival_of_nothing_gives_a_chance_all_the_same():
    found = confidences(torch.tensor([[0.0, 0.0]]), torch.tensor([2]))
    assert found.isfinite().all()
    assert (found <= 1).all()


def test_the_option_is_vllms_and_needs_its_device():
    asked = {"method": "specctl_suffix", "enable_adaptive_verification": True}
    parsed = parse_speculative_config(asked, on_device=True)
    assert parsed is not None
    assert parsed[0]["enable_adaptive_verification"] is True
    with pytest.raises(ValueError, match="enable_adaptive_verification expects a GPU"):
        parse_speculative_config(asked)
