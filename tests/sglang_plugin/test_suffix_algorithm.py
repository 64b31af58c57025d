"""How many branches a tree of SPECCTL_SUFFIX may have, by SGLang's own flags."""

import pytest
from support.stand_ins import imported_alone, with_names_alone


@pytest.fixture
def branches_asked(monkeypatch):
    (registry,) = with_names_alone(monkeypatch, "sglang.srt.speculative.spec_registry")
    registry.CustomSpecAlgo = object
    (module,) = imported_alone(monkeypatch, "specctl_sglang.compat.suffix_algorithm")
    return module.branches_asked


@pytest.mark.parametrize(
    ("topk", "breadth", "branches"),
    [(None, 10, 1), (None, 1, 1), (None, 4, 4), (1, 10, 1), (3, 10, 3), (10, 10, 10)],
)
def test_drafts_are_chains_unless_trees_are_asked_for(branches_asked, topk, breadth, branches):
    assert branches_asked(topk, breadth) == branches
