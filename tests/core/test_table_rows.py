"""Rows of a new table: what was decided, and the rest as it was."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fakes.observations import capabilities, chains
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.core.table_rows import DecidedSetting, row_at, rows_with
from specctl.engine.checked_table import SpeculationTable

UPPERS = (1, 2, 4, 8)
CAPABILITIES = capabilities(chains(0, 1, 2, 4), UPPERS, min_token_prob=0.0)
STARTS = (1, 2, 3, 5)


def decided(*tokens: int, sample: RowSample | None = None) -> list[DecidedSetting]:
    return [
        DecidedSetting(first, Setting(num_speculative_tokens=number), sample)
        for first, number in zip(STARTS, tokens, strict=True)
    ]


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 4]), min_size=4, max_size=4))
def test_rows_cover_every_batch_and_keep_every_value(tokens: list[int]) -> None:
    rows = rows_with(uniform_rows(0), decided(*tokens))
    table = SpeculationTable(rows, CAPABILITIES)
    for first, last, number in zip(STARTS, UPPERS, tokens, strict=True):
        assert {table.lookup(batch) for batch in range(first, last + 1)} == {number}
    assert table.lookup(1000) == tokens[-1]
    assert len(rows) == 1 + sum(a != b for a, b in pairwise(tokens))


def test_samples_and_probabilities_keep_rows_apart() -> None:
    one = decided(2, 2, 2, 2)
    sample = RowSample(setting=Setting(num_speculative_tokens=0), every_steps=9)
    one[1] = one[1]._replace(sample=sample)
    one[3] = one[3]._replace(setting=Setting(num_speculative_tokens=2, min_token_prob=0.2))
    rows = rows_with(uniform_rows(0), one)
    assert [(row.decode_batch_from, row.sample, row.min_token_prob) for row in rows] == [
        (1, None, None), (2, sample, None), (3, None, None), (5, None, 0.2),
    ]  # fmt: skip


LONG = TableRow(decode_batch_from=1, context_from_tokens=1000, num_speculative_tokens=1, min_token_prob=0.3)
BY_CONTEXT = (TableRow(decode_batch_from=1, context_to_tokens=999, num_speculative_tokens=4), LONG)


def test_rules_for_long_contexts_are_carried_over() -> None:
    rows = rows_with(BY_CONTEXT, decided(2, 2, 0, 0))
    SpeculationTable(rows, CAPABILITIES)
    for batch, number in ((1, 2), (2, 2), (3, 0), (8, 0)):
        assert row_at(rows, batch, 999).num_speculative_tokens == number  # type: ignore[union-attr]
        assert row_at(rows, batch, 1000).setting == LONG.setting  # type: ignore[union-attr]


def test_rules_for_long_contexts_are_not_cut_by_decode_batch() -> None:
    """An engine takes 64 rows: 17 ranges of batches with 4 rules each would be more."""
    bounds = (0, 1000, 2000, 4000, 8000)
    in_force = tuple(
        TableRow(
            decode_batch_from=1,
            context_from_tokens=low,
            context_to_tokens=None if high is None else high - 1,
            num_speculative_tokens=4,
        )
        for low, high in pairwise([*bounds, None])
        if low is not None
    )
    rows = rows_with(in_force, decided(4, 2, 1, 0))
    SpeculationTable(rows, CAPABILITIES)
    assert len(rows) == 4 + 4
    assert set(in_force[1:]) <= set(rows)


def test_rules_for_long_contexts_of_some_batches_only() -> None:
    in_force = (
        TableRow(decode_batch_from=1, decode_batch_to=3, num_speculative_tokens=4),
        BY_CONTEXT[0].model_copy(update={"decode_batch_from": 4}),
        LONG.model_copy(update={"decode_batch_from": 4}),
    )
    rows = rows_with(in_force, decided(4, 4, 4, 4))
    table = SpeculationTable(rows, CAPABILITIES)
    found = [table.lookup(batch, 2000) for batch in (1, 3, 4, 8)]
    assert found == [4, 4, 1, 1]
    assert table.lookup(4, 10) == 4


def test_a_decision_that_changes_nothing_gives_the_rows_in_force() -> None:
    assert rows_with(BY_CONTEXT, decided(4, 4, 4, 4)) == BY_CONTEXT
    assert rows_with(uniform_rows(2), decided(2, 2, 2, 2)) == uniform_rows(2)


@pytest.mark.parametrize(
    ("batch", "context", "found"), [(1, 0, 0), (2, 999, 0), (2, 1000, 1), (3, 5000, None), (4, 0, None)]
)
def test_the_row_of_a_batch_and_a_context(batch: int, context: int, found: int | None) -> None:
    rows = (
        TableRow(decode_batch_from=1, decode_batch_to=3, context_to_tokens=999, num_speculative_tokens=0),
        TableRow(decode_batch_from=1, decode_batch_to=2, context_from_tokens=1000, num_speculative_tokens=1),
    )
    row = row_at(rows, batch, context)
    assert (None if row is None else row.num_speculative_tokens) == found
