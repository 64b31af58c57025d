"""What SPECCTL_SGLANG_OPTIONS may say, and SGLang's numbers in the contract's terms."""

import re
from pathlib import Path

import pytest
from specctl_sglang.methods import method_support
from specctl_sglang.options import OPTIONS_ENV, Options, options_from_env
from specctl_sglang.terms import (
    checked_candidates,
    checked_topks,
    checked_tree,
    default_candidates,
    drafts_of,
    method_of,
    namespace_of,
    steps_of,
    width_of,
)


def test_without_the_variable_nothing_is_asked(monkeypatch):
    monkeypatch.delenv(OPTIONS_ENV, raising=False)
    assert options_from_env() is None


@pytest.mark.parametrize("text", ["", "{}"])
def test_an_empty_value_asks_for_the_defaults(monkeypatch, text):
    monkeypatch.setenv(OPTIONS_ENV, text)
    assert options_from_env() == Options()


def test_options_are_read(monkeypatch):
    monkeypatch.setenv(
        OPTIONS_ENV, '{"candidates": [0, 3], "suffix": {"use_global": false}, "lease_max_s": 5}'
    )
    options = options_from_env()
    assert options is not None
    assert (options.candidates, options.suffix.use_global, options.lease_max_s) == ((0, 3), False, 5.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Invalid JSON"),
        ('{"candidate": [1]}', "did you mean 'candidates'"),
        ('{"suffix": {"max_match_token": 3}}', "did you mean 'max_match_tokens'"),
        ('{"candidates": [-1]}', "greater than or equal to 0"),
        ('{"lease_max_s": "long"}', "lease_max_s"),
    ],
)
def test_a_wrong_option_is_named(monkeypatch, text, words):
    monkeypatch.setenv(OPTIONS_ENV, text)
    with pytest.raises(ValueError, match=OPTIONS_ENV) as error:
        options_from_env()
    assert words in str(error.value)


def test_a_width_counts_the_targets_own_token():
    assert [width_of(0), width_of(7)] == [1, 8]
    assert drafts_of(width_of(5)) == 5
    assert method_of("SPECCTL_SUFFIX") == "specctl_suffix"


def test_candidates():
    assert default_candidates(4, has_graphs=False) == (0, 1, 2, 3, 4)
    assert default_candidates(11, has_graphs=True) == (0, 1, 2, 3, 5, 7, 11)
    assert default_candidates(8, has_graphs=True) == (0, 1, 2, 3, 5, 7, 8)
    assert checked_candidates([3, 0, 3], 8) == (0, 3, 8)
    with pytest.raises(ValueError, match=r"expected at most 8 .* got 9, 12"):
        checked_candidates([12, 9, 1], 8)


@pytest.mark.parametrize(
    ("drafts", "topk", "at_start", "steps"),
    [
        (0, 1, 3, 0),
        (7, 1, 3, 7),
        (7, 4, 3, 3),
        (2, 4, 3, 2),
        (20, 4, 2, 2),
        (21, 4, 2, 3),
        (15, 2, 2, 5),
    ],
)
def test_how_many_passes_a_draft_takes(drafts, topk, at_start, steps):
    assert steps_of(drafts, topk, at_start) == steps
    if topk > 1:
        assert topk + (steps - 1) * topk**2 >= drafts


def test_a_server_whose_trees_cannot_hold_its_drafts_is_refused():
    checked_tree(30, 2, 8)
    checked_tree(31, 1, 31)
    with pytest.raises(ValueError, match=r"expected at most 31, .* 8 and .* 2 have 30 nodes, got 32"):
        checked_tree(31, 2, 8)


def test_branches_to_prepare():
    assert checked_topks(None, 1) == (1,)
    assert checked_topks(None, 4) == (1, 4)
    assert checked_topks([2], 4) == (1, 2, 4)
    with pytest.raises(ValueError, match=r"expected at most 4 .* got 5"):
        checked_topks([5, 2], 4)


def test_tenants_are_told_apart_without_their_secrets():
    assert namespace_of(None, None) == ""
    salted = namespace_of(None, "secret")
    assert salted.startswith("salt=")
    assert "secret" not in salted
    assert namespace_of("a", None) != namespace_of("b", None)
    assert namespace_of("a", "secret") not in (salted, namespace_of("a", None))


def test_what_an_algorithm_can_be_told():
    ours = method_support("SPECCTL_SUFFIX", 9, (0, 2, 8))
    assert (ours.legal, ours.why_not_controllable, ours.tree_topks) == ((0, 2, 8), None, (1,))
    assert method_support("SPECCTL_SUFFIX", 9, (0, 2, 8), ()).tree_topks == tuple(range(1, 9))
    narrow = method_support("SPECCTL_SUFFIX", 9, (0, 2, 8), (), speculative_eagle_topk=1)
    assert narrow.tree_topks == (1,), "fa3 reads no mask then"
    assert method_support("EAGLE3", 9, (0, 2, 8), (1, 4)).tree_topks == (1, 4)
    assert ours.warnings("cuda") == ()
    assert "nothing is drafted" in ours.warnings("cpu")[0]
    stock = method_support("DFLASH", 4, None, why_as_stock="its worker is one of its kind")
    assert stock.legal == (3,)
    why = stock.why_not_controllable or ""
    assert "DFLASH runs as stock: its worker is one of its kind; steered" in why


def test_the_page_tells_every_option():
    page = (Path(__file__).parents[2] / "docs" / "sglang.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) - {"SPECCTL_SUFFIX", "SPECCTL_PEAGLE"}
    assert told == set(Options.model_fields)
