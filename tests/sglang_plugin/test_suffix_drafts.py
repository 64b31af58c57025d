"""The host's proposer on requests as SGLang holds them."""

from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from specctl_sglang.proposers import suffix
from specctl_sglang.proposers.layout import Emitted
from specctl_sglang.proposers.suffix import SuffixDrafts
from specctl_sglang.proposers.weighing import Weighing
from specctl_sglang.terms import chain as chain_of

from specctl.engine.options import SuffixOptions

REPEATED = [5, 6, 7, 8, 9] * 6
EVERY = (0, 1, 2, 3, 4)


def request(rid, prompt, output=(), salt=None, own=None):
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        lora_id=None,
        extra_key=salt,
        sampling_params=SimpleNamespace(
            custom_params=own, json_schema=None, regex=None, ebnf=None, structural_tag=None, top_k=1
        ),
    )


@pytest.fixture
def drafts(monkeypatch):
    monkeypatch.setattr(suffix, "_RESTING_S", 0.0)
    return SuffixDrafts(SuffixOptions(index_bytes=2**20), 2, 256, 4)


def emitted(requests, last, behind=True):
    """By the last step: tokens that are not in output_ids yet, or are already."""
    most = max(map(len, last))
    tokens = np.array([[*one, *[0] * (most - len(one))] for one in last], np.int32)
    counts = np.array([len(one) for one in last], np.int64)
    held = np.array([len(one.origin_input_ids) + len(one.output_ids) - 1 for one in requests], np.int64)
    return Emitted(held + counts if behind else held, tokens, counts)


def chain(drafts, one, wanted=4, not_yet=None):
    drafts.prepare([one])
    pending = None if not_yet is None else emitted([one], not_yet)
    tokens, parents, sizes = drafts.draft([one], pending, chain_of(wanted))
    assert parents is None
    return tokens[0, : sizes[0]].tolist()


def test_a_chain_continues_the_requests_own_text(drafts):
    assert chain(drafts, request("a", REPEATED)) == [5, 6, 7, 8]
    assert chain(drafts, request("a", REPEATED, [5]), wanted=2) == [6, 7]


@pytest.mark.parametrize(
    ("own", "drafted"),
    [(None, [31, 32, 33, 34]), ({"specctl": {"share": False}}, []), ({"specctl": {"shared": 1}}, [])],
    ids=["shared", "not shared", "not understood"],
)
def test_an_output_that_is_not_shared_is_drafted_for_no_other_request(drafts, own, drafted):
    first = request("a", [1, 2, 3], range(20, 40), own=own)
    chain(drafts, first)
    drafts.finish("a")
    for turn in range(4):
        chain(drafts, request(f"b{turn}", [9, 9]))
        drafts.finish(f"b{turn}")
    assert chain(drafts, request("c", [4, *range(24, 31)])) == drafted


def test_tokens_that_are_not_in_the_output_yet_count(drafts):
    """The overlap scheduler: a step is drafted before the one before it is processed."""
    one = request("a", REPEATED)
    assert chain(drafts, one, not_yet=[[5, 6]]) == [7, 8, 9, 5]
    one.output_ids.extend([5, 6])
    assert chain(drafts, one, not_yet=[[7]]) == [8, 9, 5, 6]
    one.output_ids.append(7)
    assert chain(drafts, one) == [8, 9, 5, 6]


def test_tokens_that_the_output_holds_already_are_read_once(drafts):
    """Another request's prompt between two steps: the step before it was processed meanwhile."""
    one = request("a", REPEATED)
    assert chain(drafts, one, not_yet=[[5, 6]]) == [7, 8, 9, 5]
    one.output_ids.extend([5, 6, 7])
    for _ in range(2):
        drafts.prepare([one])
        tokens, _, sizes = drafts.draft([one], emitted([one], [[7]], behind=False), chain_of(4))
        assert tokens[0, : sizes[0]].tolist() == [8, 9, 5, 6]
    assert chain(drafts, one, not_yet=[[8, 9]]) == [5, 6, 7, 8]


def test_a_request_that_was_not_drafted_for_meanwhile_is_read_from_its_output(drafts):
    """Of two requests one lags behind by more than the last step: both texts come up to date."""
    pair = [request("a", REPEATED), request("b", REPEATED)]
    for one, more in zip(pair, ([], [5, 6, 7]), strict=True):
        chain(drafts, one)
        one.output_ids.extend(more)
    drafts.prepare(pair)
    tokens, _, sizes = drafts.draft(pair, emitted(pair, [[5], [8]]), chain_of(4))
    assert [tokens[i, : sizes[i]].tolist() for i in range(2)] == [[6, 7, 8, 9], [9, 5, 6, 7]]


def test_outputs_of_finished_requests_are_drafted_from(drafts):
    one = request("a", [1, 2, 3], range(50, 80))
    chain(drafts, one)
    drafts.finish("a")
    # Indexed in slices beside the steps.
    for turn in range(4):
        chain(drafts, request(f"b{turn}", [9, 9]))
        drafts.finish(f"b{turn}")
    assert chain(drafts, request("c", [4, 60, 61, 62]))[:1] == [63]
    assert chain(drafts, request("d", [4, 60, 61, 62], salt="tenant")) == []


def test_requests_that_left_unannounced_give_their_place_away(drafts):
    for number in range(20):
        assert chain(drafts, request(f"r{number}", REPEATED)) == [5, 6, 7, 8]


def test_more_requests_than_places_go_without(drafts):
    batch = [request(f"r{number}", REPEATED) for number in range(6)]
    drafts.prepare(batch)
    tokens, _, sizes = drafts.draft(batch, emitted(batch, [[5]] * 6), chain_of(3))
    assert sizes.tolist() == [3] * 4 + [0] * 2
    assert tokens.shape[0] == 6
    nodes, parents, sizes = drafts.draft(batch, None, (3, 2, 4))
    assert parents is not None
    assert nodes.shape == parents.shape
    assert sizes.tolist()[4:] == [0, 0]


def test_a_tree_branches_where_the_text_did(drafts):
    text = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]
    drafts.prepare([request("a", text)])
    nodes, parents, sizes = drafts.draft([request("a", text)], None, (4, 2, 5))
    firsts = [nodes[0, i] for i in range(sizes[0]) if parents[0, i] == -1]
    assert sorted(firsts) == [3, 5]
    _, parents, sizes = drafts.draft([request("a", text)], None, chain_of(4))
    assert parents is None


def test_a_tree_is_as_deep_and_as_wide_as_it_is_asked_for(drafts):
    text = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]
    drafts.prepare([request("a", text)])
    _, parents, sizes = drafts.draft([request("a", text)], None, (1, 2, 5))
    assert parents[0, : sizes[0]].tolist() == [-1, -1]
    _, parents, sizes = drafts.draft([request("a", text)], None, (4, 2, 3))
    assert 0 < sizes[0] <= 2


def test_near_the_end_of_the_context_drafts_are_shorter(drafts):
    text = (REPEATED * 10)[:253]
    assert len(chain(drafts, request("a", text))) == 2


def test_the_shadow_follows_while_nothing_is_drafted(drafts):
    one = request("a", REPEATED)
    for token in (5, 6, 7, 8, 9, 5, 6, 7, 8, 9):
        drafts.rest([one])
        one.output_ids.append(token)
    drafts.rest([one])
    counts = drafts.shadow_counts()
    assert counts.drafts >= 2
    assert counts.accepted_at == counts.drafted_at


def test_a_step_drafts_what_pays_for_all_of_it(drafts):
    """One request repeats itself, the other three have nothing: their places are verified too."""
    batch = [request("a", REPEATED), *(request(f"b{n}", [90 + n, 80 + n, 70 + n]) for n in range(3))]
    drafts.prepare(batch)
    sizes = [
        drafts.draft(batch, None, chain_of(4), weighing)[2].tolist()
        for weighing in (None, Weighing(0.05, EVERY), Weighing(0.5, EVERY))
    ]
    assert sizes == [[4, 0, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0]]
    alone = [request("c", REPEATED)]
    drafts.prepare(alone)
    assert drafts.draft(alone, None, chain_of(2), Weighing(0.1, EVERY))[2].tolist() == [2]
    sizes = drafts.draft(alone, None, (4, 2, 5), Weighing(1.0, EVERY))[2]
    assert sizes.tolist() != [0], "trees are not weighed"
