"""specctl_peagle on a real vLLM, on the V1 runner: one server, and one start that is refused."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.daemon_beside import assert_daemon_is_harmless, run_daemon
from support.doctor_codes import doctor_codes_of_launch
from support.engine_control import controlled_server, wait_for
from support.sampled_steps import assert_chains_are_sampled

from specctl.contract.telemetry import Telemetry
from testing.lossless import compare
from testing.servers import vllm_server

pytestmark = pytest.mark.engine

FULL = 5
PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "Once upon a time, in a small town by the sea, there was a",
    '{"name": "x", "value": 1}\n{"name": "y", "value": 2}\n{"name":',
]
LONG_TOKENS = 400
STARTS_TO_LOAD = "Starting to load model"
"""vLLM's log, before it reads any weight."""


def config(shared_models, head):
    model = str(shared_models / head)
    return {"method": "specctl_peagle", "model": model, "num_speculative_tokens": FULL}


@pytest.fixture(scope="module")
def peagle(shared_models, logs):
    asked = config(shared_models, "reference-peagle")
    with controlled_server(shared_models / "reference-target", logs / "peagle.log", asked) as control:
        yield control


@pytest.fixture(scope="module")
def reference(peagle):
    """Greedy output of the same server without speculation."""
    assert peagle.put(peagle.change(0)).status_code == 200
    return [peagle.complete(prompt) for prompt in PROMPTS]


def counted(control):
    """Drafted tokens, accepted tokens and request-steps so far, by the table's value."""
    telemetry = Telemetry.model_validate(control.get("telemetry"))
    return {
        value: sum_of(cell for cell in telemetry.cells if cell.num_speculative_tokens == value)
        for value in range(FULL + 1)
    }


def sum_of(cells):
    numbers = [(cell.drafted_tokens, cell.accepted_tokens, cell.request_steps) for cell in cells]
    return tuple(map(sum, zip(*numbers, strict=True))) or (0, 0, 0)


def grown(after, before):
    """What came in between, the values that did not run left out."""
    rise = {value: tuple(a - b for a, b in zip(after[value], before[value], strict=True)) for value in after}
    return {value: numbers for value, numbers in rise.items() if any(numbers)}


def test_capabilities(peagle):
    capabilities = peagle.get("capabilities")
    assert capabilities["method"] == "specctl_peagle"
    assert capabilities["controllable"]
    assert capabilities["num_speculative_tokens_legal"] == list(range(FULL + 1))
    assert STARTS_TO_LOAD in peagle.server.log.read_text()


@pytest.mark.parametrize("value", [5, 3, 1, 0])
def test_a_value_is_obeyed_and_changes_no_token(peagle, reference, value):
    assert peagle.put(peagle.change(value)).status_code == 200
    before = counted(peagle)
    assert [peagle.complete(prompt) for prompt in PROMPTS] == reference
    rise = grown(counted(peagle), before)
    assert list(rise) == [value]
    drafted, accepted, request_steps = rise[value]
    assert drafted <= value * request_steps
    assert (0 < accepted < drafted) if value else (drafted == accepted == 0)


@pytest.mark.parametrize("concurrency", [4, 8])
def test_greedy_output_is_the_same_while_the_table_changes(peagle, reference, concurrency):
    async def run():
        async with httpx.AsyncClient(base_url=peagle.server.url, timeout=300) as client:
            return await compare(
                client, "model", PROMPTS * 6, reference * 6,
                max_tokens=32, concurrency=concurrency, every_s=0.05,
            )  # fmt: skip

    result = asyncio.run(run())
    assert result.differing == ()
    assert result.tables > FULL
    # Of all steps so far, those around a change of the table included.
    for cell in Telemetry.model_validate(peagle.get("telemetry")).cells:
        assert not any(cell.drafted_at[cell.num_speculative_tokens :])
        assert cell.accepted_tokens <= cell.drafted_tokens


def test_samples_of_off_and_of_drafts(peagle):
    assert_chains_are_sampled(peagle, PROMPTS * 2, FULL)


def test_a_request_drafts_again_after_off(peagle):
    """Off and on again while it decodes."""
    long = {"max_tokens": LONG_TOKENS, "ignore_eos": True}
    assert peagle.put(peagle.change(0)).status_code == 200
    expected = peagle.complete(PROMPTS[2], **long)
    assert peagle.put(peagle.change(FULL)).status_code == 200
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(peagle.complete, PROMPTS[2], **long)
        for value in (FULL, 0, FULL):
            assert peagle.put(peagle.change(value)).status_code == 200
            before = counted(peagle)
            wait_for(lambda value=value, before=before: goes_on(grown(counted(peagle), before), value))
            assert not request.done()
        assert request.result() == expected


def goes_on(rise, value):
    """Whether steps of this value ran, with tokens accepted where it is over 0."""
    _, accepted, request_steps = rise.get(value, (0, 0, 0))
    return request_steps >= 5 and (accepted > 0 or value == 0)


def test_the_stock_metrics_tell_the_same_acceptance(peagle):
    assert peagle.put(peagle.change(FULL)).status_code == 200
    before, stock_before = counted(peagle), stock_counted(peagle)
    for prompt in PROMPTS:
        peagle.complete(prompt)
    drafted, accepted, _ = grown(counted(peagle), before)[FULL]
    assert accepted > 0
    stock = [a - b for a, b in zip(stock_counted(peagle), stock_before, strict=True)]
    assert stock == [drafted, accepted]


def stock_counted(control):
    """Drafted and accepted tokens by vLLM's own /metrics."""
    text = control.client.get("/metrics").raise_for_status().text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [
        sum(sample.value for sample in samples if sample.name == f"vllm:spec_decode_num_{what}_tokens_total")
        for what in ("draft", "accepted")
    ]


def test_the_daemon_beside_it(peagle, reference, tmp_path):
    assert peagle.put(peagle.change(0)).status_code == 200
    assert_daemon_is_harmless(run_daemon(peagle, tmp_path, PROMPTS), reference)


def test_a_plain_eagle3_head_stops_the_start_before_weights_are_read(shared_models, logs):
    log = logs / "eagle3-as-peagle.log"
    asked = config(shared_models, "reference-eagle3")
    server = vllm_server(shared_models / "reference-target", log, asked)
    command = ["vllm", "serve", str(shared_models / "reference-target"), "--speculative-config"]
    assert doctor_codes_of_launch(*command, json.dumps(asked)) == {"draft-format"}
    with pytest.raises(RuntimeError, match="expected a P-EAGLE head") as refused:
        server.__enter__()
    assert 'a plain EAGLE-3 head: "method": "eagle3" is the one to use for it' in str(refused.value)
    assert STARTS_TO_LOAD not in log.read_text()
