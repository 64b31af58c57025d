import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TablePut, TableRow, uniform_rows
from specctl.engine.buckets import DecodeBatchBuckets
from specctl.engine.checked_table import SpeculationTable
from specctl.errors import TableError


def capabilities(**changes: object) -> Capabilities:
    values = {
        "contract_version": 1,
        "engine": "vllm",
        "engine_version": "0",
        "plugin_version": "0",
        "boot_id": "b",
        "model": "m",
        "method": "ngram",
        "controllable": True,
        "num_speculative_tokens_legal": (0, 1, 2, 4),
        "decode_batch_max": 64,
        "context_max_tokens": 4096,
        "decode_batch_buckets": (1, 64),
        "rows_max": 8,
        "lease_max_s": 60.0,
        "has_shadow_acceptance": False,
    }
    return Capabilities.model_validate({**values, **changes})


def row(start: int, end: int | None, tokens: int, **more: int | None) -> TableRow:
    return TableRow(decode_batch_from=start, decode_batch_to=end, num_speculative_tokens=tokens, **more)


def test_lookup_by_batch_and_context():
    table = SpeculationTable(
        [
            row(1, 4, 4, context_to_tokens=99),
            row(1, 4, 2, context_from_tokens=100),
            row(5, None, 0),
        ],
        capabilities(),
    )
    assert [table.lookup(1, 0), table.lookup(4, 99.9), table.lookup(4, 100), table.lookup(5, 1e9)] == [
        4,
        4,
        2,
        0,
    ]
    assert table.lookup(10_000_000) == 0
    assert not table.is_context_free


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([row(2, None, 1)], "hole: no row covers decode batch 1", id="hole at the start"),
        pytest.param([row(1, 4, 1), row(6, None, 1)], "hole: no row covers decode batch 5", id="hole inside"),
        pytest.param([row(1, 8, 1)], "hole: no row covers decode batch 9", id="no last row"),
        pytest.param([row(1, 4, 1), row(4, None, 1)], r"overlap: rows\[0\], rows\[1\]", id="overlap"),
        pytest.param([row(1, None, 1, context_to_tokens=9)], "context 10 tokens", id="hole in context"),
        pytest.param([row(1, None, 3)], "3 is not one of 0, 1, 2, 4", id="illegal value"),
        pytest.param([row(1, None, 1, tree_topk=2)], "2 is not one of 1 at a depth of 1", id="tree"),
        pytest.param(
            [row(1, None, 1, verify_width_tokens=5)], "5 is not one of 2 at a depth of 1", id="width"
        ),
        pytest.param([row(5, 4, 1), row(1, None, 1)], "4 is under decode_batch_from 5", id="reversed"),
        pytest.param(
            [row(i, i, 1) for i in range(1, 9)] + [row(9, None, 1)], "at most 8, got 9", id="too many"
        ),
    ],
)
def test_refusals_name_row_and_reason(rows, message):
    with pytest.raises(TableError, match=message):
        SpeculationTable(rows, capabilities())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7, unique=True), st.data())
def test_any_tiling_is_accepted_and_looked_up(cuts, data):
    starts = sorted({1, *cuts})
    values = data.draw(st.lists(st.sampled_from([0, 1, 2, 4]), min_size=len(starts), max_size=len(starts)))
    ends = [*(start - 1 for start in starts[1:]), None]
    rows = [row(s, e, v) for s, e, v in zip(starts, ends, values, strict=True)]
    table = SpeculationTable(data.draw(st.permutations(rows)), capabilities())
    for batch in range(1, 50):
        expected = next(v for s, e, v in zip(starts, ends, values, strict=True) if s <= batch <= (e or batch))
        assert table.lookup(batch) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"rows": []},
        {"lease_s": 0},
        {"lease_s": "NaN"},
        {"owner": ""},
        {"owner": "a\nb"},
        {"surplus": 1},
        {"base_version": "1"},
        {"rows": [{"decode_batch_from": 1, "num_speculative_tokens": 1.5}]},
        {"rows": [{"decode_batch_from": 1, "num_speculative_tokens": -1}]},
        {"rows": [{"decode_batch_from": True, "num_speculative_tokens": 1}]},
    ],
)
def test_malformed_puts_are_refused(change):
    good = {
        "base_version": 0,
        "rows": [{"decode_batch_from": 1, "num_speculative_tokens": 1}],
        "fallback_num_speculative_tokens": 0,
        "owner": "test",
    }
    TablePut.model_validate_json(json.dumps(good))
    with pytest.raises(ValidationError):
        TablePut.model_validate_json(json.dumps({**good, **change}))


@pytest.mark.parametrize("decode_batch_max", [1, 2, 3, 5, 8, 12, 100, 256, 1000])
def test_buckets_tile_every_decode_batch(decode_batch_max):
    buckets = DecodeBatchBuckets(decode_batch_max)
    bounds = [buckets.bounds(index) for index in range(len(buckets))]
    assert bounds[0][0] == 1
    assert bounds[-1][1] == decode_batch_max
    assert all(lower == upper + 1 for (_, upper), (lower, _) in pairwise(bounds))
    for batch in range(1, decode_batch_max + 1):
        lower, upper = buckets.bounds(buckets.index(batch))
        assert lower <= batch <= upper
    assert buckets.index(decode_batch_max * 10) == len(buckets) - 1


def test_uniform_rows_tile():
    assert SpeculationTable(uniform_rows(2), capabilities()).lookup(7) == 2


def test_a_setting_that_was_not_prepared_is_refused_with_those_that_were():
    prepared = [(0, 1, None), (2, 1, None), (2, 4, 7), (2, 4, 9)]
    legal = tuple(
        Setting(num_speculative_tokens=depth, tree_topk=topk, verify_width_tokens=width)
        for depth, topk, width in prepared
    )
    engine_capabilities = capabilities().model_copy(update={"settings": legal})
    assert SpeculationTable([row(1, None, 2, tree_topk=4)], engine_capabilities).rows[0].tree_topk == 4
    assert SpeculationTable([row(1, None, 2, tree_topk=4, verify_width_tokens=7)], engine_capabilities).rows
    with pytest.raises(TableError, match=r"tree_topk: 2 is not one of 1, 4 at a depth of 2"):
        SpeculationTable([row(1, None, 2, tree_topk=2)], engine_capabilities)
    with pytest.raises(TableError, match=r"verify_width_tokens: 8 is not one of 7, 9"):
        SpeculationTable([row(1, None, 2, tree_topk=4, verify_width_tokens=8)], engine_capabilities)
    with pytest.raises(TableError, match=r"num_speculative_tokens: 1 is not one of 0, 2"):
        SpeculationTable([row(1, None, 1)], engine_capabilities)


def test_a_sample_is_refused_where_the_engine_takes_none_or_not_that_one():
    def sampled(every_steps: int, number: int) -> TableRow:
        other = Setting(num_speculative_tokens=number)
        return row(1, None, 1, sample=RowSample(setting=other, every_steps=every_steps))

    with pytest.raises(TableError, match=r"rows\[0\].sample: steps of ngram cannot be sampled"):
        SpeculationTable([sampled(100, 0)], capabilities())
    engine_capabilities = capabilities().model_copy(update={"sample_every_min_steps": 10})
    assert SpeculationTable([sampled(10, 0)], engine_capabilities).rows[0].sample is not None
    with pytest.raises(TableError, match=r"sample\.every_steps: at least 10, got 9"):
        SpeculationTable([sampled(9, 0)], engine_capabilities)
    with pytest.raises(TableError, match=r"sample\.setting\.num_speculative_tokens: 3 is not one of"):
        SpeculationTable([sampled(10, 3)], engine_capabilities)
