"""Several ranks reported as one server."""

import pytest

from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TableState, uniform_rows
from specctl.contract.telemetry import AcceptanceGroup, ShadowAcceptance, TelemetryCell
from specctl.engine.ranks import merged_capabilities, merged_table, merged_telemetry
from specctl.engine.request_classes import EngineTelemetry, TrafficClass


def capabilities(boot_id, **more):
    return Capabilities(
        **{
            "contract_version": 1,
            "engine": "vllm",
            "engine_version": "0",
            "plugin_version": "0",
            "boot_id": boot_id,
            "model": "m",
            "method": "ngram",
            "controllable": True,
            "num_speculative_tokens_legal": (0, 1, 2),
            "decode_batch_max": 8,
            "context_max_tokens": 4096,
            "decode_batch_buckets": (1, 8),
            "rows_max": 8,
            "lease_max_s": 60.0,
            "has_shadow_acceptance": False,
            **more,
        }
    )


def table(boot_id, version=3, tokens=2, state=TableState.LIVE):
    return AppliedTable(
        contract_version=1,
        boot_id=boot_id,
        version=version,
        state=state,
        method="ngram",
        rows=uniform_rows(tokens),
        fallback_num_speculative_tokens=0,
        lease_s=None,
        lease_remaining_s=None,
        owner="a",
        reason="",
        age_s=1.0,
    )


def cell(batch, tokens, steps, has_prefill=False):
    return TelemetryCell(
        decode_batch_from=batch,
        decode_batch_to=batch,
        num_speculative_tokens=tokens,
        has_prefill=has_prefill,
        steps=steps,
        request_steps=steps * batch,
        emitted_tokens=2 * steps,
        verified_tokens=3 * steps,
        drafted_at=(steps, 1),
        accepted_at=(steps, 0),
        context_tokens=10 * steps,
        prefill_tokens=5 if has_prefill else 0,
        step_s=0.5 * steps,
        step_s_squared=0.25 * steps,
        verified_tokens_squared=9.0 * steps,
        step_s_by_verified_tokens=1.5 * steps,
        draft_s=0.125 * steps,
        verify_s=0.25 * steps,
    )


def telemetry(boot_id, **more):
    return EngineTelemetry(
        **{
            "contract_version": 1,
            "boot_id": boot_id,
            "uptime_s": 10.0,
            "table_version": 3,
            "table_state": TableState.LIVE,
            "num_speculative_tokens": 2,
            "running": 1,
            "waiting": 0,
            "decoding": 1,
            "kv_cache_used_ratio": 0.25,
            "cells": (),
            **more,
        }
    )


@pytest.mark.parametrize(
    "merge",
    [
        lambda *ids: merged_capabilities([capabilities(i) for i in ids]),
        lambda *ids: merged_table([table(i) for i in ids], range(len(ids))),
        lambda *ids: merged_telemetry([telemetry(i) for i in ids]),
    ],
    ids=["capabilities", "table", "telemetry"],
)
def test_the_boot_id_changes_with_any_rank(merge):
    boot_ids = [merge(*ids).boot_id for ids in (("a", "b"), ("a", "c"), ("c", "b"), ("b", "a"))]
    assert len(set(boot_ids)) == 4
    assert merge("a", "b").boot_id == boot_ids[0]
    assert merge("a").boot_id == "a"


def test_one_boot_id_in_every_message():
    merged = [
        merged_capabilities([capabilities("a"), capabilities("b")]),
        merged_table([table("a"), table("b")], [0, 1]),
        merged_telemetry([telemetry("a"), telemetry("b")]),
    ]
    assert len({message.boot_id for message in merged}) == 1


def test_capabilities_hold_for_every_rank():
    merged = merged_capabilities(
        [
            capabilities("a", context_max_tokens=4096, warnings=("w",)),
            capabilities("b", context_max_tokens=2048, warnings=("w", "v")),
        ]
    )
    assert merged.controllable
    assert merged.context_max_tokens == 2048
    assert merged.warnings == ("w", "v")


def test_one_rank_that_cannot_be_steered_refuses_for_all():
    merged = merged_capabilities(
        [capabilities("a"), capabilities("b", controllable=False, why_not_controllable="because")]
    )
    assert (merged.controllable, merged.why_not_controllable) == (False, "because")


@pytest.mark.parametrize(("gpus", "gpu"), [(("A", "A"), "A"), (("A", "B"), "A + B"), (("A", None), None)])
def test_what_ranks_tell_of_their_devices_does_not_part_them(gpus, gpu):
    ranks = [
        capabilities("a", gpu=gpus[0], kv_cache_tokens=9),
        capabilities("b", gpu=gpus[1], kv_cache_tokens=7),
    ]
    merged = merged_capabilities(ranks)
    assert merged.controllable
    assert (merged.gpu, merged.kv_cache_tokens) == (gpu, 7)


def test_ranks_that_were_started_otherwise_are_not_steered():
    merged = merged_capabilities([capabilities("a"), capabilities("b", decode_batch_max=4)])
    assert not merged.controllable
    assert "decode_batch_max" in merged.why_not_controllable


@pytest.mark.parametrize(
    ("other", "behind"),
    [
        pytest.param(table("b"), (), id="alike"),
        pytest.param(table("b", version=2), (5,), id="older"),
        pytest.param(table("b", version=4), (5,), id="newer"),
        pytest.param(table("b", tokens=1), (5,), id="other rows under one version"),
        pytest.param(table("b", tokens=0, state=TableState.FALLBACK), (), id="a lease that has just ended"),
    ],
)
def test_ranks_that_hold_another_table_are_named(other, behind):
    merged = merged_table([table("a"), other], [4, 5])
    assert merged.ranks_behind == behind
    assert (merged.version, merged.rows) == (3, uniform_rows(2))


def test_cells_are_added_by_their_key():
    ranks = [
        telemetry("a", cells=(cell(1, 2, 3), cell(2, 2, 1), cell(2, 2, 1, has_prefill=True))),
        telemetry("b", cells=(cell(1, 0, 7), cell(1, 2, 4))),
    ]
    cells = merged_telemetry(ranks).cells
    keys = [(c.decode_batch_from, c.num_speculative_tokens, c.has_prefill) for c in cells]
    assert keys == [(1, 0, False), (1, 2, False), (2, 2, False), (2, 2, True)]
    assert cells[0] == cell(1, 0, 7)
    assert cells[1] == cell(1, 2, 7).model_copy(update={"drafted_at": (7, 2)})
    assert cells[3] == cell(2, 2, 1, has_prefill=True)


def test_trees_widths_and_rests_are_keys_of_cells_and_ranks_are_added_by_depth():
    def of(steps, *by_rank, **more):
        return cell(1, 2, steps).model_copy(update={"accepted_rank_at": by_rank, "sampled_steps": 1, **more})

    first = (of(3, (2, 1), (1,)), of(1, tree_topk=3), of(1, after_rest=True))
    second = (of(4, (1, 0, 5)), of(5), of(2, tree_topk=3, verify_width_tokens=8))
    cells = merged_telemetry([telemetry("a", cells=first), telemetry("b", cells=second)]).cells
    keys = [(one.tree_topk, one.verify_width_tokens, one.after_rest, one.steps) for one in cells]
    assert keys == [(1, None, False, 12), (1, None, True, 1), (3, None, False, 1), (3, 8, False, 2)]
    assert cells[0].accepted_rank_at == ((3, 1, 5), (1,))
    assert cells[0].sampled_steps == 3


def test_ranks_of_which_one_was_started_with_other_trees_share_no_table():
    trees = (Setting(num_speculative_tokens=2, tree_topk=2, verify_width_tokens=5),)
    merged = merged_capabilities([capabilities("a"), capabilities("b", settings=trees)])
    assert not merged.controllable
    assert "settings" in merged.why_not_controllable


def test_sums_never_fall_while_a_rank_rises():
    """The daemon takes a counter that fell for a restart."""
    still = telemetry("b", cells=(cell(1, 2, 4),), guarded_steps=1)
    before = merged_telemetry([telemetry("a"), still])
    after = merged_telemetry([telemetry("a", cells=(cell(1, 2, 1),), guarded_steps=2), still])
    assert (before.cells[0].steps, after.cells[0].steps) == (4, 5)
    assert (before.guarded_steps, after.guarded_steps) == (1, 3)


def test_positions_that_one_rank_has_not_are_zero_there():
    short = ShadowAcceptance(drafts=1, drafted_at=(1,), accepted_at=(1,))
    long = ShadowAcceptance(drafts=2, drafted_at=(2, 1), accepted_at=(1, 1))
    merged = merged_telemetry([telemetry("a", shadow=short), telemetry("b", shadow=long)]).shadow
    assert merged == ShadowAcceptance(drafts=3, drafted_at=(3, 1), accepted_at=(2, 1))


def test_a_shadow_that_no_rank_has_stays_unmeasured():
    shadow = ShadowAcceptance(drafts=1, drafted_at=(1,), accepted_at=(1,))
    assert merged_telemetry([telemetry("a"), telemetry("b")]).shadow is None
    assert merged_telemetry([telemetry("a"), telemetry("b", shadow=shadow)]).shadow == shadow


def test_groups_of_requests_are_added_in_their_order():
    def groups(*steps):
        return [AcceptanceGroup(request_steps=n, reached_at=(n,), accepted_at=()) for n in steps]

    merged = merged_telemetry(
        [telemetry("a", acceptance_groups=groups(1, 2)), telemetry("b", acceptance_groups=groups(10, 20))]
    )
    assert [(one.request_steps, one.reached_at) for one in merged.acceptance_groups] == [
        (11, (11,)),
        (22, (22,)),
    ]


def test_gauges():
    merged = merged_telemetry(
        [
            telemetry("a", uptime_s=9.0, waiting=1, kv_cache_used_ratio=0.5, steering_s=0.25),
            telemetry("b", running=5, decoding=4, num_speculative_tokens=0, steering_s=0.5, table_version=2),
        ]
    )
    assert (merged.uptime_s, merged.running, merged.waiting, merged.decoding) == (9.0, 6, 1, 5)
    assert (merged.kv_cache_used_ratio, merged.steering_s) == (0.5, 0.75)
    assert merged.num_speculative_tokens == 0
    assert (merged.table_version, merged.table_state) == (3, TableState.LIVE)


def test_the_proposers_own_counters():
    merged = merged_telemetry(
        [
            telemetry("a", proposer={"hits": 1.0, "mean_match_tokens": 2.0}),
            telemetry("b", proposer={"hits": 2.0, "mean_match_tokens": 4.0, "late": 1.0}),
            telemetry("c"),
        ]
    ).proposer
    assert merged == {"hits": 3.0, "mean_match_tokens": 3.0, "late": 1.0}


def traffic(kind, steps):
    return TrafficClass(
        namespace="",
        kind=kind,
        context_to_tokens=1024,
        decoding=1,
        request_steps=steps,
        watched_at=(steps,),
        drafted_at=(steps,),
        reached_at=(steps,),
        accepted_at=(1,),
    )


def test_classes_of_ranks_are_added_by_their_key():
    ranks = [
        telemetry("a", classes=(traffic("code", 3),)),
        telemetry("b", classes=(traffic("chat", 4), traffic("code", 5))),
    ]
    merged = merged_telemetry(ranks).classes
    assert [(one.kind, one.decoding, one.request_steps, one.accepted_at) for one in merged] == [
        ("chat", 1, 4, (1,)),
        ("code", 2, 8, (2,)),
    ]
    assert merged_telemetry([ranks[0], telemetry("b")]).classes is None
