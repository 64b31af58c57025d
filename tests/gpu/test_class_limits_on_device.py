"""Rules for traffic classes on Model Runner V2: `pytest -m gpu tests/gpu`."""

import pytest
from gpu.test_methods_on_device import DRAFTS, TIE, engines_of, prompts

pytestmark = pytest.mark.gpu
REQUESTS = 16
LIMITS = [
    {"kind": "plain", "max_num_speculative_tokens": 0},
    {"kind": "few", "max_num_speculative_tokens": 2},
]


@pytest.fixture(scope="module")
def arms(shared_models, tmp_path_factory):
    asked = {"suffix": {"method": "specctl_suffix"}}
    with engines_of(asked, shared_models, tmp_path_factory.mktemp("arms")) as found:
        yield found


def drafted_at(answer):
    """Drafted tokens by position, of all that was verified so far."""
    by_cell = [cell["drafted_at"] for cell in answer["telemetry"]["cells"]]
    return [sum(values) for values in zip(*by_cell, strict=True)]


@pytest.mark.parametrize(
    ("kinds", "most"),
    [(("plain",), 0), (("few",), 2), (("code",), DRAFTS), (("plain", "code", "few", "code"), DRAFTS)],
)
def test_requests_keep_to_their_limits_and_to_their_output(arms, kinds, most):
    from support.gpu_arms import margins

    asked = prompts(REQUESTS)
    truth = arms["off"].run(asked, 96, wants_outputs=True)["outputs"]
    table = {"num_speculative_tokens": DRAFTS, "class_limits": LIMITS}
    before = drafted_at(arms["suffix"].run(asked[:1], 1, wants_telemetry=True, kinds=["plain"], **table))
    request_kinds = [kinds[place % len(kinds)] for place in range(REQUESTS)]
    answer = arms["suffix"].run(
        asked, 96, wants_outputs=True, wants_telemetry=True, kinds=request_kinds, **table
    )
    after = drafted_at(answer)
    drafted = [now - then for now, then in zip(after, before or [0] * len(after), strict=True)]
    assert sum(value > 0 for value in drafted) == most, drafted
    parted = margins(arms["off"], asked, answer["outputs"], truth)
    assert all(margin < TIE for margin in parted.values()), parted
    assert len(parted) <= 1 + REQUESTS // 16, parted
