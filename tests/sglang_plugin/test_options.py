"""What SPECCTL_SGLANG_OPTIONS may say, and SGLang's numbers in the contract's terms."""

import re
from pathlib import Path

import pytest
from specctl_sglang.methods import method_support
from specctl_sglang.options import OPTIONS_ENV, Options, options_from_env
from specctl_sglang.terms import (
    chain,
    checked_candidates,
    checked_tree,
    checked_trees,
    default_candidates,
    default_trees,
    drafts_of,
    method_of,
    setting_of,
    trees_without_passes,
    width_of,
    widths_by_tree,
)

from specctl.contract.setting import Setting


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
        ('{"trees": [[3, 3]]}', "trees.0.2: Field required"),
        ('{"tree_topks": [1]}', "there is no option 'tree_topks'"),
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
    assert checked_candidates([3, 0, 3], 8) == (0, 3)
    with pytest.raises(ValueError, match=r"expected at most 8 .* got 9, 12"):
        checked_candidates([12, 9, 1], 8)


def test_a_server_whose_trees_cannot_hold_its_drafts_is_refused():
    checked_tree((8, 2, 31))
    checked_tree((31, 1, 32))
    with pytest.raises(ValueError, match=r"expected at most 31, .* 8 and .* 2 have 30 nodes, got 32"):
        checked_tree((8, 2, 32))


def test_a_shape_is_a_setting_of_the_contract():
    assert setting_of(chain(5)) == Setting(num_speculative_tokens=5)
    tree = Setting(num_speculative_tokens=3, tree_topk=3, verify_width_tokens=8)
    assert setting_of((3, 3, 8)) == tree
    assert widths_by_tree([chain(3), (3, 3, 5), (3, 3, 8), (2, 3, 3), (2, 3, 5)]) == {
        (3, 1): 4, (3, 3): 8, (2, 3): 3,
    }  # fmt: skip


def test_trees_that_are_prepared_beside_the_servers_own():
    """Shallower, narrower and with fewer branches; few on a GPU."""
    assert default_trees((3, 3, 8), has_graphs=True) == ((2, 3, 5), (3, 2, 5), (3, 3, 5))
    on_a_cpu = default_trees((3, 3, 8), has_graphs=False)
    assert on_a_cpu == ((1, 3, 4), (2, 2, 5), (2, 3, 5), (2, 3, 8), (3, 2, 5), (3, 2, 8), (3, 3, 5))
    assert default_trees((7, 1, 8), has_graphs=False) == ()


def test_trees_that_take_no_passes_need_a_width_alone():
    found = trees_without_passes([1, 2, 3, 9], 4)
    assert found == ((1, 2, 3), (1, 4, 3), (2, 2, 3), (2, 4, 3), (4, 2, 9), (4, 4, 9), (8, 2, 9), (8, 4, 9))
    assert trees_without_passes([5, 9], 1) == ()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ((3, 1, 4), "at least 2 branches, got 1"),
        ((3, 5, 8), r"at most 4 branches \(--speculative-eagle-topk\), got 5"),
        ((3, 4, 17), r"at most 16 positions \(--speculative-num-draft-tokens\), got 17"),
        ((6, 4, 6), "at least 7 positions for a depth of 6, got 6"),
        ((2, 2, 8), "at most 7 positions, as such trees have 6 nodes, got 8"),
    ],
)
def test_a_named_tree_that_cannot_be_is_refused(tree, words):
    assert checked_trees([(3, 2, 8), (3, 2, 8)], (5, 4, 16), has_passes=True) == ((3, 2, 8),)
    with pytest.raises(ValueError, match=words):
        checked_trees([tree], (5, 4, 16), has_passes=True)


def test_options_of_each_algorithm():
    ours = method_support("SPECCTL_SUFFIX", (8, 1, 9), [chain(8), chain(0), chain(2)])
    assert ours.settings == tuple(Setting(num_speculative_tokens=number) for number in (0, 2, 8))
    assert ours.why_not_controllable is None
    assert "--speculative-eagle-topk 1" in ours.why_chains_only
    assert "a block" in method_support("DFLASH", chain(7), [chain(7)]).why_chains_only
    trees = method_support("EAGLE3", (3, 3, 8), [chain(0), (3, 3, 8)])
    assert trees.why_chains_only is None
    assert trees.settings[-1].verify_width_tokens == 8
    assert ours.warnings("cuda") == ()
    assert "nothing is drafted" in ours.warnings("cpu")[0]
    stock = method_support("DFLASH", (3, 1, 4), None, why_as_stock="its worker is one of its kind")
    assert stock.settings == (Setting(num_speculative_tokens=3),)
    why = stock.why_not_controllable or ""
    assert "DFLASH runs as stock: its worker is one of its kind; steered" in why
    assert method_support("EAGLE3", (3, 3, 8), None).settings == (setting_of((3, 3, 8)),)


def test_the_page_tells_every_option():
    page = (Path(__file__).parents[2] / "docs" / "sglang.md").read_text(encoding="utf-8")
    table = page.partition("\n## Options\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert documented == set(Options.model_fields)
