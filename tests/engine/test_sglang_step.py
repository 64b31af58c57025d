"""How many torch operations a step of SPECCTL_SUFFIX takes beside the target's forward pass.

Real workers without an engine (support/sglang_step_run.py), where a step that is not prepared for the tokens
that came before it ends the run.
"""

import pytest
from support.sglang_control import NEEDS_SGLANG, ran_by_sglang

pytestmark = NEEDS_SGLANG
# The copy of what a verification reads, its mask included; the slots of the KV cache, and those as int64; and
# SGLang's own accept_lens.
BEFORE_MOST = 4
AFTER_MOST = 7


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    out = tmp_path_factory.mktemp("step") / "step.json"
    return ran_by_sglang("sglang_step_run.py", {"requests": [1, 5], "width": 9}, out)


@pytest.mark.parametrize("requests", ["1", "5"])
def test_a_step_takes_as_many_operations_for_any_number_of_requests(figures, requests):
    ours = figures[requests]["SPECCTL_SUFFIX"]
    assert ours["before the forward"] <= BEFORE_MOST
    assert ours["after it"] <= AFTER_MOST
    assert ours["tokens a step"] > 2


@pytest.mark.parametrize("requests", ["1", "5"])
def test_and_fewer_than_stock_ngrams(figures, requests):
    stock, ours = (figures[requests][arm] for arm in ("stock NGRAM", "SPECCTL_SUFFIX"))
    assert ours["before the forward"] < stock["before the forward"]
    assert ours["after it"] <= stock["after it"]
