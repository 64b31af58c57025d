"""Tables in words."""

from __future__ import annotations

from specctl.bench.autotune_child import describe
from specctl.contract.table import AppliedTable, TableRow, uniform_rows


def test_neighbours_that_draft_alike_are_one() -> None:
    rows = (
        TableRow(decode_batch_from=1, decode_batch_to=1, num_speculative_tokens=8),
        TableRow(decode_batch_from=2, decode_batch_to=3, num_speculative_tokens=8, min_token_prob=0.2),
        TableRow(decode_batch_from=4, decode_batch_to=5, num_speculative_tokens=0, min_token_prob=0.2),
        TableRow(decode_batch_from=6, num_speculative_tokens=0),
    )
    words = "1: 8 tokens; 2-3: 8 tokens, probability >= 0.2; 4 and more: off"
    assert describe(AppliedTable.model_construct(rows=rows)) == words
    assert describe(AppliedTable.model_construct(rows=uniform_rows(3))) == "any number of requests: 3 tokens"
