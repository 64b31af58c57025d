"""On PYTHONPATH of a server: its release is not in the table, but the one before it is."""

from specctl.engine import releases

releases.TESTED["vllm"] = ("0.31.0",)
