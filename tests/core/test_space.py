from __future__ import annotations

from fakes.observations import capabilities, chains, tree

from specctl.contract.setting import Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.core.space import Space

TREES = (*chains(0, 2, 5), tree(2, 2, 5), tree(5, 3, 8), tree(5, 3, 16))


def space(*settings: object, buckets: tuple[int, ...] = (1, 2, 4)) -> Space:
    return Space.of(capabilities(settings or chains(0, 1, 2, 4), buckets))  # type: ignore[arg-type]


def test_settings_rise_by_width_then_depth_and_begin_with_off() -> None:
    found = space(*reversed(TREES))
    assert found.settings == (*chains(0, 2), tree(2, 2, 5), *chains(5), tree(5, 3, 8), tree(5, 3, 16))
    assert found.width.tolist() == [1, 3, 5, 6, 8, 16]
    assert found.depth.tolist() == [0, 2, 2, 5, 5, 5]
    assert found.topk.tolist() == [1, 1, 2, 1, 3, 3]
    assert found.buckets == ((1, 1), (2, 2), (3, 4))


def test_where_no_setting_is_listed_there_are_chains_of_the_legal_depths() -> None:
    without_settings = capabilities(chains(0, 3)).model_copy(update={"settings": ()})
    assert Space.of(without_settings).settings == chains(0, 3)


def test_off_is_known_but_not_prepared_where_the_server_does_not_list_it() -> None:
    found = space(*chains(2, 4))
    assert found.settings == chains(0, 2, 4)
    assert found.is_prepared.tolist() == [False, True, True]
    assert space().is_prepared.all()


def test_a_chain_s_own_width_may_be_written_out() -> None:
    written = chains(3)[0].model_copy(update={"verify_width_tokens": 4})
    found = space(*chains(0), written, *chains(3))
    assert found.settings == chains(0, 3)
    assert found.number_of(chains(3)[0]) == found.number_of(written) == 1


def test_a_tree_without_a_width_is_the_widest_that_is_prepared() -> None:
    found = space(*TREES)
    assert found.number_of(Setting(num_speculative_tokens=5, tree_topk=3)) == 5
    assert found.number_of(tree(5, 3, 8)) == 4
    assert found.number_of(tree(5, 3, 9)) is None
    assert found.number_of(Setting(num_speculative_tokens=5, tree_topk=4)) is None


def test_the_setting_in_force_of_every_bucket_is_that_of_no_context() -> None:
    rows = (
        TableRow(decode_batch_from=1, decode_batch_to=2, context_to_tokens=99, num_speculative_tokens=4),
        TableRow(decode_batch_from=1, decode_batch_to=2, context_from_tokens=100, num_speculative_tokens=1),
        TableRow(decode_batch_from=3, num_speculative_tokens=2),
    )
    assert space().in_force(rows).tolist() == [3, 3, 2]
    assert space().in_force(uniform_rows(7)).tolist() == [0, 0, 0], "7 is not prepared"
