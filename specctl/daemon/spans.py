"""OpenTelemetry spans of table changes, for operators who have a collector.

Spans are made where ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) names a collector, or where
the daemon runs under ``opentelemetry-instrument``. The other ``OTEL_*`` variables are OpenTelemetry's own.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from typing import Any

from specctl.errors import install_words

__all__ = ["export_spans", "record_change"]

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NAME = "specctl"


def export_spans() -> None:
    """Sends spans to the collector that the environment names, if it names one."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("no spans are sent: they need more packages; %s", install_words("otel"))
        return
    name = os.environ.get("OTEL_SERVICE_NAME", _NAME)
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def record_change(target: str, owner: str, record: dict[str, Any]) -> None:
    """One span, ``specctl.table_change``, with the fields of the audit log's record as attributes.

    Numbers, texts and booleans stay as they are, the rest is JSON. Nothing where the API is not installed.
    """
    if importlib.util.find_spec("opentelemetry") is None:
        return
    from opentelemetry import trace

    attributes = {f"specctl.{name}": _attribute(value) for name, value in record.items() if value is not None}
    attributes |= {"specctl.target": target, "specctl.owner": owner}
    with trace.get_tracer(_NAME).start_as_current_span("specctl.table_change", attributes=attributes):
        pass


def _attribute(value: Any) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else json.dumps(value)
