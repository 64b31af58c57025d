"""specctl for vLLM: proposers by method name, the live speculation table, telemetry."""
