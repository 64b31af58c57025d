"""The routes before one, two or three engine cores, without vLLM's own client and without a network."""

import asyncio
import json
import logging
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from specctl_vllm.control.endpoint import SpecctlEndpointPlugin
from specctl_vllm.options import OPTIONS_ENV, Options

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import uniform_rows
from specctl.engine import rank_calls
from specctl.engine.live_table import LiveTable
from specctl.engine.request_classes import EngineTelemetry
from specctl.engine.service import handle

LEGAL = (0, 1, 2, 3, 4)


class Rank:
    """One engine core's side of the control path, with the real table."""

    def __init__(self, boot_id, clock, **more):
        self.is_active = True
        self.log = logging.getLogger("test")
        known = Capabilities(
            contract_version=1, engine="vllm", engine_version="0", plugin_version="0", boot_id=boot_id,
            model="m", method="ngram", controllable=True, num_speculative_tokens_legal=LEGAL,
            decode_batch_max=8, context_max_tokens=4096, decode_batch_buckets=(1, 8), rows_max=8,
            lease_max_s=60.0, has_shadow_acceptance=False,
        )  # fmt: skip
        self.capabilities = known.model_copy(update=more)
        self.table = LiveTable(self.capabilities, uniform_rows(4), clock)

    def telemetry(self):
        return EngineTelemetry(
            contract_version=1, boot_id=self.capabilities.boot_id, uptime_s=1.0, running=1, waiting=0,
            table_version=self.table.version, table_state=self.table.state, num_speculative_tokens=4,
            decoding=1, kv_cache_used_ratio=0.5, cells=(),
        )  # fmt: skip


class Client:
    """The parts of vLLM's AsyncMPClient that are relied on, and faults by rank."""

    def __init__(self, steered):
        self.now_s = 0.0
        self.steered = steered
        self.engine_ranks_managed = list(range(len(steered)))
        self.core_engines = [rank.to_bytes(2, "little") for rank in self.engine_ranks_managed]
        self.faults = {}
        self.calls = []
        self.outputs_queue = asyncio.Queue()

    async def _call_utility_async(self, method, operation, payload, *, engine):
        assert method == "specctl_call"
        rank = self.core_engines.index(engine)
        self.calls.append((rank, operation))
        fault = self.faults.get((rank, operation))
        if fault is not None:
            await fault()
        return handle(self.steered[rank], operation, payload)


class Server:
    """``api_servers`` of one engine, each with routes and a client of its own."""

    def __init__(self, ranks=2, api_servers=1, **of_last_rank):
        self.now_s = 100.0
        more = [{}] * (ranks - 1) + [of_last_rank]
        self.ranks = [Rank(f"boot-{i}", lambda: self.now_s, **more[i]) for i in range(ranks)]
        self.clients = [Client(self.ranks) for _ in range(api_servers)]
        self.apps = [self._app(client) for client in self.clients]

    @staticmethod
    def _app(client):
        plugin, app = SpecctlEndpointPlugin(), FastAPI()
        plugin.attach_router(app)
        asyncio.run(plugin.init_state(SimpleNamespace(engine_core=client), app.state, SimpleNamespace()))
        return app

    async def call(self, method, route, api_server=0, **more):
        transport = httpx.ASGITransport(app=self.apps[api_server])
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.request(method, f"/specctl/v1/{route}", **more)
            return answer.status_code, answer.json()

    def get(self, route):
        return asyncio.run(self.call("GET", route))

    def put(self, tokens, base_version=None, **more):
        return asyncio.run(self.call("PUT", "table", json=self.change(tokens, base_version, **more)))

    def change(self, tokens, base_version=None, owner="a", **more):
        return {
            "base_version": self.ranks[0].table.version if base_version is None else base_version,
            "rows": [{"decode_batch_from": 1, "num_speculative_tokens": tokens}],
            "fallback_num_speculative_tokens": 0,
            "owner": owner,
            **more,
        }

    def held(self):
        """Version and number of every rank."""
        return [(rank.table.version, rank.table.lookup(1)) for rank in self.ranks]


@pytest.fixture(autouse=True)
def _asked(monkeypatch):
    monkeypatch.setenv(OPTIONS_ENV, Options(method="ngram").model_dump_json())


async def lost():
    raise RuntimeError("Server shutting down")


def test_a_lone_engine_answers_for_itself():
    server = Server(ranks=1)
    assert server.get("capabilities")[1]["boot_id"] == "boot-0"
    status, body = server.put(2)
    assert (status, body["version"], body["ranks_behind"]) == (200, 1, [])
    assert server.get("table")[1]["version"] == 1
    assert (0, "adopt_table") not in server.clients[0].calls


def test_a_put_reaches_every_rank():
    server = Server(ranks=3)
    status, body = server.put(2, lease_s=10)
    assert (status, body["version"], body["ranks_behind"]) == (200, 1, [])
    assert server.held() == [(1, 2)] * 3
    table = server.get("table")[1]
    assert table["boot_id"] == body["boot_id"] == server.get("capabilities")[1]["boot_id"]
    assert (table["version"], table["lease_remaining_s"], table["ranks_behind"]) == (1, 10.0, [])
    server.now_s += 11
    assert server.held() == [(1, 0)] * 3


def test_telemetry_is_that_of_all_ranks():
    status, body = Server().get("telemetry")
    assert (status, body["running"], body["decoding"], body["kv_cache_used_ratio"]) == (200, 2, 2, 0.5)


def test_telemetry_tells_how_much_waits_in_the_api_server():
    server = Server(ranks=2)
    queue = server.clients[0].outputs_queue
    assert server.get("telemetry")[1]["front_end_waiting_pieces"] == 0
    for batch in (5, 2):
        queue.put_nowait(SimpleNamespace(outputs=[None] * batch))
    queue.put_nowait(RuntimeError("vLLM hands errors on in the same queue"))
    assert server.get("telemetry")[1]["front_end_waiting_pieces"] == 7


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        pytest.param({"base_version": 7}, 409, "version_conflict", id="version"),
        pytest.param({"owner": "b"}, 409, "lease_held", id="lease"),
        pytest.param({"lease_s": 61}, 422, "table_refused", id="lease too long"),
        pytest.param({"tokens": 9}, 422, "table_refused", id="illegal number"),
    ],
)
def test_a_refusal_changes_no_rank(change, status, error):
    server = Server()
    assert server.put(2, lease_s=30)[0] == 200
    answer, body = server.put(**{"tokens": 1, **change})
    assert (answer, body["error"]) == (status, error)
    assert server.held() == [(1, 2), (1, 2)]


def test_ranks_that_were_started_otherwise_take_no_table():
    server = Server(decode_batch_max=4)
    status, body = server.put(2)
    assert (status, body["error"]) == (422, "not_controllable")
    assert "decode_batch_max" in body["message"]
    assert server.held() == [(0, 4), (0, 4)]


def test_a_rank_that_missed_a_table_is_named_until_the_next_put(monkeypatch):
    server = Server(ranks=3)
    faults = server.clients[0].faults
    faults[2, "adopt_table"] = lost
    status, body = server.put(2, lease_s=30)
    assert (status, body["error"], body["ranks"], body["version"]) == (503, "ranks_apart", [2], 1)
    assert "rank 2: the engine did not answer" in body["message"]
    assert server.held() == [(1, 2), (1, 2), (0, 4)]
    table = server.get("table")[1]
    assert (table["version"], table["ranks_behind"]) == (1, [2])
    faults.clear()
    status, body = server.put(2, base_version=table["version"], lease_s=30)
    assert (status, body["version"], body["ranks_behind"]) == (200, 2, [])
    assert server.held() == [(2, 2)] * 3
    assert server.get("table")[1]["ranks_behind"] == []


def test_a_rank_that_answers_late_is_an_error(monkeypatch):
    monkeypatch.setattr(rank_calls, "_ENGINE_TIMEOUT_S", 0.01)
    server = Server()
    faults = server.clients[0].faults
    faults[1, "adopt_table"] = lambda: asyncio.sleep(30)
    status, body = server.put(2)
    assert (status, body["error"], body["ranks"]) == (503, "ranks_apart", [1])
    faults[1, "table"] = lambda: asyncio.sleep(30)
    status, body = server.get("table")
    assert (status, body["error"]) == (504, "engine_busy")
    assert body["message"].startswith("data-parallel rank 1: ")


def test_a_first_rank_that_is_lost_changes_nothing():
    server = Server()
    server.clients[0].faults[0, "put_table"] = lost
    assert server.put(2)[1]["error"] == "engine_unreachable"
    assert server.held() == [(0, 4), (0, 4)]


def test_a_rank_that_steers_no_more_is_named():
    server = Server()
    server.ranks[1].is_active = False
    status, body = server.get("telemetry")
    assert (status, body["error"]) == (503, "not_steered")
    assert body["message"].startswith("data-parallel rank 1: ")
    assert server.put(2)[1]["ranks"] == [1]


def test_a_rank_that_starts_anew_adopts_whatever_version_it_had():
    server = Server()
    for _ in range(3):
        assert server.put(2)[0] == 200
    for restarted in (1, 0):
        server.ranks[restarted] = server.clients[0].steered[restarted] = Rank("boot-x", lambda: server.now_s)
        assert server.get("table")[1]["ranks_behind"] == [1]
        assert server.put(3)[0] == 200
        assert len(set(server.held())) == 1


def test_an_older_table_that_arrives_late_is_left_alone():
    """Two API servers pass on what the first rank decided, and the older one is the slower."""
    server = Server(api_servers=2)
    go_on = asyncio.Event()
    server.clients[0].faults[1, "adopt_table"] = go_on.wait

    async def course():
        first = asyncio.create_task(server.call("PUT", "table", json=server.change(1)))
        while server.ranks[0].table.version == 0:
            await asyncio.sleep(0)
        second = await server.call("PUT", "table", api_server=1, json=server.change(3))
        go_on.set()
        return await first, second

    (status, body), (second_status, second_body) = asyncio.run(course())
    assert (status, body["version"]) == (200, 1)
    assert (second_status, second_body["version"]) == (200, 2)
    assert server.held() == [(2, 3), (2, 3)]
    assert server.get("table")[1]["ranks_behind"] == []


def test_two_writers_at_once_leave_one_table():
    server = Server(ranks=3, api_servers=2)

    async def course():
        writes = [
            server.call("PUT", "table", api_server=i % 2, json=server.change(i % 5, base_version=0))
            for i in range(10)
        ]
        return await asyncio.gather(*writes)

    statuses = sorted(status for status, _ in asyncio.run(course()))
    assert statuses == [200] + [409] * 9
    assert len(set(server.held())) == 1


def test_nothing_but_adoptions_is_adopted():
    answer = json.loads(handle(Server().ranks[1], "adopt_table", '{"version": 1}'))
    assert answer["status"] == 500
