"""Every parser of bytes from outside, with sound inputs to begin from and the errors that it may raise."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fakes.engine import FakeEngine
from pydantic import BaseModel, ValidationError
from safetensors.numpy import save_file

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut, uniform_rows
from specctl.contract.telemetry import Telemetry
from specctl.draft.corpus_file import load, save
from specctl.draft.frozen_corpus import build_text
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions
from specctl.engine.auth import load_tokens
from specctl.engine.live_table import LiveTable
from specctl.engine.peagle_checkpoint import check_peagle_checkpoint
from specctl.engine_api.client import parsed
from specctl.engine_api.stock_metrics import parse_stock_metrics
from specctl.errors import (
    ContractError,
    CorpusFileError,
    PolicyError,
    SimulationInputError,
    TableError,
    TargetError,
    TargetsError,
    VersionConflict,
)
from specctl.http_client import HttpClient, Response
from specctl.policy.loader import parse_policy, shipped_policies
from specctl.record.lines import CapabilitiesLine, End, Header, Reading
from specctl.record.reader import read_lines
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.scenario import Scenario
from specctl.simulate.trace import load_trace
from specctl.targets.file import parse_targets
from specctl.targets.kubernetes import _Expired, _page
from specctl.watch.views import FrozenFile, FrozenFiles
from specctl.yaml_model import as_model
from specctl.yaml_text import Document

__all__ = ["PARSERS", "Parser"]

ENGINE = FakeEngine(start_tokens=4)
ENGINE.advance(2.0)
FOLDER = Path(tempfile.mkdtemp(prefix="specctl-fuzz-", dir="/dev/shm" if os.access("/dev/shm", 2) else None))
CONFIG = {
    "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 4, "vocab_size": 32,
    "draft_vocab_size": 32, "ptd_token_id": 6, "architectures": ["LlamaForCausalLMEagle3"],
}  # fmt: skip
TENSORS = {"fc.weight": (8, 24), "lm_head.weight": (32, 8), "mask_hidden": (1, 1, 24)}
PODS = {
    "metadata": {"continue": "next"},
    "items": [
        {
            "metadata": {"labels": {"app": "llm"}},
            "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
            "status": {
                "podIP": "10.0.0.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    ],
}  # fmt: skip
TARGETS = """policies: [{match: {app: llm}, policy: balanced}]
targets:
  - {url: 'http://10.0.0.1:8000', labels: {app: llm}}
  - {dns: 'llm.example:8000', interval_s: 5}
  - {kubernetes: {namespace: prod, selector: 'app=llm', port: http}}
"""


@dataclass(frozen=True)
class Parser:
    """``parse`` raises one of ``errors`` or nothing."""

    seeds: tuple[bytes, ...]
    parse: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _model(model: type[BaseModel]) -> Callable[[bytes], object]:
    return lambda data: as_model(Document(_text(data), "file", SimulationInputError, "a model"), model)


def _message(model: type[BaseModel]) -> Callable[[bytes], object]:
    return lambda data: parsed(model, data, "message")


def _in_file(name: str, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = FOLDER / name
    path.parent.mkdir(exist_ok=True)

    def parse_bytes(data: bytes) -> object:
        path.write_bytes(data)
        return parse(path)

    return parse_bytes


def _put(data: bytes) -> None:
    LiveTable(ENGINE.capabilities(), uniform_rows(1), lambda: 0.0).put(TablePut.model_validate_json(data))


def _log() -> bytes:
    header = Header(specctl_version="0", target="http://t:1", every_s=1.0, utc="2026-01-01T00:00:00+00:00")
    reading = Reading(
        time_s=1.0,
        telemetry=Telemetry.model_validate(ENGINE.telemetry()),
        load=parse_stock_metrics(ENGINE.metrics()).load,
        table=ENGINE.applied(),
    )
    lines = (
        header,
        CapabilitiesLine(time_s=0.5, capabilities=ENGINE.capabilities()),
        reading,
        End(time_s=2.0, reason="time"),
    )
    return b"".join(line.model_dump_json().encode() + b"\n" for line in lines)


def _corpus() -> bytes:
    index = SuffixIndex(SuffixIndexOptions(index_bytes=2**20), 1, 1024)
    text = np.array([*range(40), 2**32 - 1], np.uint32)
    outcomes = {"": np.array([[0, 700, 3, 1], [1, 700, 2, 2]])}
    save(FOLDER / "seed", replace(build_text(text, index.rungs), outcomes=outcomes), "", "f")
    return (FOLDER / "seed").read_bytes()


def _safetensors() -> bytes:
    save_file({name: np.zeros(shape, np.float32) for name, shape in TENSORS.items()}, FOLDER / "seed")
    return (FOLDER / "seed").read_bytes()


def _head(changes: str) -> Callable[[bytes], object]:
    """A draft head of which one file is replaced."""
    folder = FOLDER / f"head-{changes}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(_safetensors())

    def parse(_: Path) -> object:
        return check_peagle_checkpoint(
            folder, target_hidden_size=8, target_vocab_size=32, num_speculative_tokens=4
        )

    return _in_file(f"head-{changes}/{changes}", parse)


class _Replies:
    """Bytes of a server on a Unix socket -> the client's answer."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._data = b""
        path = FOLDER / "socket"
        self._loop.run_until_complete(asyncio.start_unix_server(self._serve, path))
        self._url = f"unix://{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._data)
            await writer.drain()
        writer.close()

    async def _ask(self) -> Response:
        async with HttpClient(self._url, timeout_s=0.5, body_max_bytes=65_536) as client:
            return await client.get("/x")

    def __call__(self, data: bytes) -> object:
        self._data = data
        return self._loop.run_until_complete(self._ask()).fields()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _read(*paths: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in paths)


CHANGE = TablePut(base_version=0, rows=uniform_rows(2), owner="me", reason="why", lease_s=10.0)
PARSERS: dict[str, Parser] = {
    "policy": Parser(
        _read(*shipped_policies()), lambda data: parse_policy(_text(data), "file"), (PolicyError,)
    ),
    "targets": Parser(
        (TARGETS.encode(),), lambda data: parse_targets(_text(data), "file"), (TargetsError,)
    ),
    "profile": Parser(
        _read(*shipped_policies("profiles")[:2]), _model(EngineProfile), (SimulationInputError,)
    ),
    "scenario": Parser(
        _read(*shipped_policies("scenarios")[:2]), _model(Scenario), (SimulationInputError,)
    ),
    "put": Parser(
        (CHANGE.model_dump_json().encode(),), _put, (ValidationError, TableError, VersionConflict)
    ),
    "table": Parser(
        (ENGINE.applied().model_dump_json().encode(),), _message(AppliedTable), (ContractError,)
    ),
    "telemetry": Parser((_json(ENGINE.telemetry()),), _message(Telemetry), (ContractError,)),
    "capabilities": Parser(
        (ENGINE.capabilities().model_dump_json().encode(),), _message(Capabilities), (ContractError,)
    ),
    "metrics": Parser(
        (ENGINE.metrics().encode(),), lambda data: parse_stock_metrics(_text(data)), (TargetError,)
    ),
    "record": Parser(
        (_log(),),
        _in_file("log", lambda path: list(read_lines(path, Counter()))),
        (SimulationInputError,),
    ),
    "trace": Parser(
        (b"timestamp_s,input_tokens,output_tokens\n1,374,44\n1.5,8,9\n",),
        _in_file("trace.csv", load_trace),
        (SimulationInputError,),
    ),
    "corpus": Parser((_corpus(),), _in_file("corpus", load), (CorpusFileError,)),
    "checkpoint": Parser((_json(CONFIG),), _head("config.json"), (ValueError,)),
    "safetensors": Parser((_safetensors(),), _head("model.safetensors"), (ValueError,)),
    "kubernetes": Parser(
        (_json(PODS),), lambda data: _page(Response(200, data)), (TargetsError, _Expired)
    ),
    "http": Parser(
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ),
        _Replies(),
        (TargetError,),
    ),
    "frozen": Parser(
        (FrozenFiles(files=(FrozenFile(path="/p", frozen=True, targets=3),)).model_dump_json().encode(),),
        FrozenFiles.model_validate_json,
        (ValidationError,),
    ),
    "tokens": Parser(
        (b"# who\nread:0123456789abcdef\ncontrol:fedcba9876543210\n",),
        _in_file("tokens", load_tokens),
        (ValueError,),
    ),
}  # fmt: skip
