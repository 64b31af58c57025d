"""What a running server says that a recommendation needs."""

from __future__ import annotations

from dataclasses import dataclass

from specctl.doctor.quality_checks import first_token_acceptance
from specctl.doctor.seen import look
from specctl.engine_api.client import EngineClient
from specctl.errors import TargetError
from specctl.http_client import HttpClient

__all__ = ["Running", "read_server"]

WINDOW_S = 2.0
PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Running:
    """None: not reported. ``running``: requests at the time; ``acceptance``: of the first draft token."""

    engine: str | None
    engine_version: str | None
    model: str | None
    method: str | None
    gpu: str | None
    running: int | None
    requests_max: int | None
    acceptance: float | None

    @property
    def on_cpu(self) -> bool:
        return self.gpu is not None and "cpu" in self.gpu.lower()


async def read_server(target: str, token: str | None) -> Running:
    """Raises TargetError for a server that cannot be read."""
    async with HttpClient(target, token=token, timeout_s=PATIENCE_S) as http:
        seen = await look(EngineClient(http), http, WINDOW_S)
    if seen.trouble is not None and seen.capabilities is None:
        raise TargetError(seen.trouble)
    if not seen.is_engine:
        raise TargetError(f"{target}: not an engine: {seen.metrics_trouble}")
    capabilities = seen.capabilities
    acceptance, _, _ = first_token_acceptance(seen)
    load = None if seen.metrics is None else seen.metrics.load
    engine = None if capabilities is None else capabilities.engine
    if engine is None and seen.metrics_text:
        engine = "sglang" if "sglang:" in seen.metrics_text else "vllm"
    return Running(
        engine=engine,
        engine_version=seen.engine_version,
        model=None if capabilities is None else capabilities.model,
        method=None if capabilities is None else capabilities.method,
        gpu=None if capabilities is None else capabilities.gpu,
        running=None if load is None else load.running,
        requests_max=None if capabilities is None else capabilities.decode_batch_max,
        acceptance=acceptance,
    )
