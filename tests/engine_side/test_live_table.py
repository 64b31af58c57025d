import pytest

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TablePut, TableRow, TableState, uniform_rows
from specctl.engine.live_table import LiveTable
from specctl.engine.ranks import Adoption
from specctl.errors import LeaseHeld, TableError, VersionConflict

CAPABILITIES = Capabilities(
    contract_version=1,
    engine="vllm",
    engine_version="0",
    plugin_version="0",
    boot_id="b",
    model="m",
    method="ngram",
    controllable=True,
    num_speculative_tokens_legal=(0, 1, 2, 3, 4),
    decode_batch_max=8,
    context_max_tokens=4096,
    decode_batch_buckets=(1, 8),
    rows_max=8,
    lease_max_s=60.0,
    has_shadow_acceptance=False,
)


SAMPLING = CAPABILITIES.model_copy(update={"sample_every_min_steps": 2})
BACK_TO_START = {"fallback_num_speculative_tokens": None}
CODE, EVERY = ClassLimit(kind="code", max_num_speculative_tokens=2), ClassLimit(max_num_speculative_tokens=0)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(clock):
    return LiveTable(CAPABILITIES, uniform_rows(4), clock)


def put(
    tokens: int, version: int, owner: str = "a", lease_s: float | None = None, fallback: int = 0
) -> TablePut:
    return TablePut(
        base_version=version,
        rows=uniform_rows(tokens),
        lease_s=lease_s,
        fallback_num_speculative_tokens=fallback,
        owner=owner,
    )


def test_starts_with_what_was_configured(table):
    assert table.lookup(3) == 4
    assert table.read().state is TableState.START
    assert table.read().version == 0


def test_a_put_swaps_the_whole_table_and_is_read_back(table):
    applied = table.put(put(2, version=0, fallback=1))
    assert (applied.version, applied.state, applied.owner) == (1, TableState.LIVE, "a")
    assert applied.rows == uniform_rows(2)
    assert applied == table.read()
    assert table.lookup(8) == 2


def test_a_stale_version_is_a_conflict_and_changes_nothing(table):
    table.put(put(2, version=0))
    with pytest.raises(VersionConflict, match=r"at version 1, .* against version 0"):
        table.put(put(3, version=0))
    assert table.lookup(1) == 2


def test_an_expired_lease_falls_back_and_frees_the_table(table, clock):
    table.put(put(4, version=0, lease_s=5.0, fallback=1))
    with pytest.raises(LeaseHeld, match=r"leased by 'a' for another 5\.0 s"):
        table.put(put(2, version=1, owner="b"))
    clock.now_s += 4.999
    assert table.lookup(1) == 4
    clock.now_s += 0.001
    assert table.lookup(1) == 1
    read = table.read()
    assert (read.state, read.owner, read.version) == (TableState.FALLBACK, None, 1)
    assert read.rows == uniform_rows(1)
    assert table.put(put(2, version=1, owner="b")).owner == "b"


def test_an_owner_renews_its_own_lease(table, clock):
    table.put(put(4, version=0, lease_s=5.0))
    clock.now_s += 3
    applied = table.put(put(4, version=1, lease_s=5.0))
    assert applied.lease_remaining_s == pytest.approx(5.0)


START = (
    TableRow(decode_batch_from=1, decode_batch_to=2, num_speculative_tokens=4),
    TableRow(decode_batch_from=3, context_to_tokens=99, num_speculative_tokens=2),
    TableRow(decode_batch_from=3, context_from_tokens=100, num_speculative_tokens=1),
    TableRow(decode_batch_from=1, decode_batch_to=2, context_from_tokens=100, num_speculative_tokens=3),
)


@pytest.fixture
def by_context(clock):
    first = START[0].model_copy(update={"context_to_tokens": 99})
    capabilities = CAPABILITIES.model_copy(update={"class_limits_max": 2})
    return LiveTable(capabilities, (first, *START[1:]), clock)


def test_without_a_number_the_start_table_is_the_fallback(by_context, clock):
    start = by_context.read().rows
    applied = by_context.put(put(0, version=0, lease_s=5.0).model_copy(update=BACK_TO_START))
    assert (applied.fallback_num_speculative_tokens, applied.start_rows) == (None, start)
    clock.now_s += 5.0
    read = by_context.read()
    assert (read.state, read.rows, read.owner) == (TableState.FALLBACK, start, None)
    assert [by_context.lookup(batch, context) for batch in (1, 8) for context in (99, 100)] == [4, 3, 2, 1]


def test_rules_for_classes_stay_when_the_start_table_is_back(by_context, clock):
    change = put(0, version=0, lease_s=5.0).model_copy(update={**BACK_TO_START, "class_limits": (CODE,)})
    by_context.put(change)
    clock.now_s += 5.0
    assert by_context.read().state is TableState.FALLBACK
    assert by_context.class_limits == (CODE,)


def test_a_rank_that_adopted_a_table_falls_back_to_the_start_too(by_context, clock):
    change = put(0, version=6, lease_s=5.0).model_copy(update=BACK_TO_START)
    by_context.adopt(Adoption(decider="d", version=7, change=change))
    assert by_context.lookup(1) == 0
    clock.now_s += 5.0
    assert (by_context.lookup(1), by_context.read().version) == (4, 7)


def sampled(number, every_steps, base=1, version=0):
    sample = RowSample(setting=Setting(num_speculative_tokens=number), every_steps=every_steps)
    row = TableRow(decode_batch_from=1, num_speculative_tokens=base, sample=sample)
    return put(base, version).model_copy(update={"rows": (row,)})


def steps(table, count):
    return [table.next_step(1) for _ in range(count)]


def test_every_so_many_steps_run_the_rows_sample(clock):
    table = LiveTable(SAMPLING, uniform_rows(4), clock)
    assert [is_sample for _, is_sample in steps(table, 5)] == [False] * 5
    table.put(sampled(3, every_steps=3))
    # Five steps have passed since the last sample, which there never was.
    found = steps(table, 7)
    assert [is_sample for _, is_sample in found] == [True, False, False, True, False, False, True]
    assert [one.num_speculative_tokens for one, _ in found] == [3, 1, 1, 3, 1, 1, 3]


def test_a_table_that_is_replaced_does_not_start_counting_anew(clock):
    """Else one that comes every second would never be sampled by a slow server."""
    table = LiveTable(SAMPLING, uniform_rows(4), clock)
    table.put(sampled(3, every_steps=4))
    assert [is_sample for _, is_sample in steps(table, 6)] == [False] * 3 + [True, False, False]
    table.put(sampled(0, every_steps=4, version=1))
    assert [is_sample for _, is_sample in steps(table, 4)] == [False, True, False, False]


def test_to_look_a_row_up_counts_no_step(clock):
    table = LiveTable(SAMPLING, uniform_rows(4), clock)
    table.put(sampled(3, every_steps=2))
    for _ in range(10):
        assert table.lookup_row(1).sample is not None
    assert [is_sample for _, is_sample in steps(table, 2)] == [False, True]


def test_samples_end_with_the_lease(clock):
    table = LiveTable(SAMPLING, uniform_rows(4), clock)
    table.put(sampled(3, every_steps=2).model_copy(update={"lease_s": 5.0, **BACK_TO_START}))
    assert steps(table, 2)[1][1]
    clock.now_s += 5.0
    assert [(one.num_speculative_tokens, is_sample) for one, is_sample in steps(table, 3)] == [(4, False)] * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (sampled(9, 10), r"rows\[0\].sample.setting.num_speculative_tokens: 9 is not one of"),
        (sampled(1, 3), r"sample.every_steps: at least 4, got 3"),
    ],
)
def test_a_sample_that_the_engine_cannot_run_is_refused(clock, change, words):
    table = LiveTable(SAMPLING.model_copy(update={"sample_every_min_steps": 4}), uniform_rows(4), clock)
    with pytest.raises(TableError, match=words):
        table.put(change)
    assert table.version == 0


def test_an_engine_that_samples_nothing_refuses_samples(table):
    with pytest.raises(TableError, match="steps of ngram cannot be sampled on this engine"):
        table.put(sampled(1, 10))


def test_a_table_without_a_lease_stays_and_is_not_locked(table, clock):
    table.put(put(3, version=0))
    clock.now_s += 1e6
    assert table.lookup(1) == 3
    assert table.put(put(2, version=1, owner="b")).version == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(5, version=0), "5 is not one of 0, 1, 2, 3, 4"),
        (put(2, version=0, lease_s=61.0), "lease_s: at most 60.0 s, got 61.0"),
        (put(2, version=0, fallback=9), "fallback_num_speculative_tokens: 9 is not one of"),
    ],
)
def test_refused_tables_leave_the_last_good_one(table, change, message):
    table.put(put(3, version=0))
    with pytest.raises(TableError, match=message):
        table.put(change.model_copy(update={"base_version": 1}))
    assert table.lookup(1) == 3
    assert table.version == 1


def test_an_adopted_table_counts_whatever_is_in_force(table, clock):
    table.put(put(1, version=0, owner="b", lease_s=30.0))
    applied = table.adopt(Adoption(decider="d", version=7, change=put(3, version=6, lease_s=5.0, fallback=2)))
    assert (applied.version, applied.owner, applied.lease_remaining_s) == (7, "a", 5.0)
    assert table.lookup(1) == 3
    clock.now_s += 6
    assert (table.lookup(1), table.read().version) == (2, 7)


def test_only_a_newer_table_of_one_decider_is_adopted(table):
    table.adopt(Adoption(decider="d", version=7, change=put(3, version=6)))
    for version in (6, 7):
        assert table.adopt(Adoption(decider="d", version=version, change=put(1, version=5))).version == 7
        assert table.lookup(1) == 3
    assert table.adopt(Adoption(decider="e", version=1, change=put(1, version=0))).version == 1
    assert table.lookup(1) == 1


def test_a_refused_adoption_changes_nothing(table):
    with pytest.raises(TableError):
        table.adopt(Adoption(decider="d", version=7, change=put(9, version=6)))
    assert (table.lookup(1), table.version) == (4, 0)


@pytest.fixture
def by_class(clock):
    return LiveTable(CAPABILITIES.model_copy(update={"class_limits_max": 2}), uniform_rows(4), clock)


def limited(version: int, *limits: ClassLimit, lease_s: float | None = None) -> TablePut:
    return put(4, version, lease_s=lease_s).model_copy(update={"class_limits": limits})


def test_rules_for_classes_come_and_go_with_the_table(by_class):
    assert by_class.put(limited(0, CODE, EVERY)).class_limits == (CODE, EVERY)
    assert by_class.class_limits == (CODE, EVERY)
    assert by_class.put(limited(1)).class_limits == ()


def test_rules_for_classes_outlive_the_lease(by_class, clock):
    by_class.put(limited(0, CODE, lease_s=5.0))
    clock.now_s += 6.0
    assert by_class.read().state is TableState.FALLBACK
    assert by_class.class_limits == (CODE,)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ((CODE, EVERY, ClassLimit(kind="chat", max_num_speculative_tokens=1)), "at most 2, got 3"),
        (
            (CODE, ClassLimit(kind="code", max_num_speculative_tokens=0)),
            r"class_limits\[1\]: the classes of an",
        ),
    ],
)
def test_rules_for_classes_are_refused_whole(by_class, limits, words):
    by_class.put(limited(0, EVERY))
    with pytest.raises(TableError, match=words):
        by_class.put(limited(1, *limits))
    assert (by_class.version, by_class.class_limits) == (1, (EVERY,))


def test_an_engine_that_bounds_no_classes_refuses_rules_for_them(table):
    with pytest.raises(TableError, match="does not bound classes"):
        table.put(limited(0, CODE))
