"""Drafts that are on the host come with the tokens of their step; others are asked for, as by stock vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from specctl_vllm.compat.engine_process import wrap_post_step  # noqa: E402
from specctl_vllm.compat.model_runner import wrap_sample_tokens  # noqa: E402

from specctl.engine.guard import GUARD  # noqa: E402

TAKEN = object()


class Runner:
    """What the wrapper reads of vLLM's; ``made``: the drafts that this step makes, None for none."""

    def __init__(self, made: Any, output: Any = None) -> None:
        self.device = torch.device("cpu")
        self._draft_token_ids: Any = [["of the step before"]]
        self._made, self._output = made, output or SimpleNamespace()

    def sample(self) -> Any:
        if self._made is not None:
            self._draft_token_ids = self._made
        return self._output

    def take_draft_token_ids(self) -> Any:
        return TAKEN


def carried(runner: Runner) -> Any:
    return getattr(wrap_sample_tokens(Runner.sample)(runner), "specctl_drafts", "none")


@pytest.mark.parametrize("made", [[[1, 2], []], [[], []], torch.zeros(2, 3, dtype=torch.int64)])
def test_drafts_on_the_host_are_carried(made: Any) -> None:
    assert carried(Runner(made)) is TAKEN


def test_drafts_that_a_device_still_makes_are_not_waited_for() -> None:
    assert carried(Runner(SimpleNamespace(device=SimpleNamespace(type="cuda")))) == "none"


def test_the_drafts_of_an_earlier_step_are_not_carried_again() -> None:
    assert carried(Runner(None)) == "none"


def test_an_output_that_is_still_on_its_way_carries_none() -> None:
    assert carried(Runner([[1]], SimpleNamespace(get_output=lambda: None))) == "none"


def test_where_carrying_fails_the_engine_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GUARD, "call", lambda name, default, *_: default)
    assert carried(Runner([[1]])) == "none"


@pytest.mark.parametrize("drafts", [TAKEN, None])
def test_the_engine_takes_what_came_once_and_asks_otherwise(drafts: Any) -> None:
    calls: list[Any] = []
    scheduler = SimpleNamespace(specctl_drafts=drafts, update_draft_token_ids=calls.append)
    post_step = wrap_post_step(lambda self, model_executed: calls.append(model_executed))
    core = SimpleNamespace(scheduler=scheduler)
    post_step(core, True)
    post_step(core, False)
    assert calls == ([TAKEN, False] if drafts is TAKEN else [True, False])
    assert scheduler.specctl_drafts is None
