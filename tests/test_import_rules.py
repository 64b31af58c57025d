"""Which part may import which. Reads the sources; nothing is imported but the commands themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Modules of specctl that every part may use.
SHARED = {
    "__version__",
    "clock",
    "contract",
    "errors",
    "http_client",
    "json_bounds",
    "local_file",
    "plain_text",
    "terminal",
    "types",
    "yaml_model",
    "yaml_text",
}
EXAMINES = {"checkpoints", "cli", "core", "engine", "engine_api", "policy", "simulate"}
# What each part of the daemon may use beside itself. Decisions are in core, and only the daemon's loop and
# the command line join it with input and output.
PARTS: dict[str, set[str]] = {
    "contract": {"errors", "plain_text"},
    "core": {"contract", "types"},
    "policy": SHARED | {"core"},
    "engine_api": SHARED,
    "watch": SHARED | {"core"},
    "metrics": SHARED | {"core", "watch"},
    "targets": SHARED,
    "daemon": SHARED | {"core", "metrics", "policy", "targets", "watch"},
    # The page lets callers in by the same rules as the engine's routes.
    "page": SHARED | {"engine", "watch"},
    "top": SHARED | {"core", "daemon", "engine_api", "metrics", "policy", "targets", "watch"},
    "record": SHARED | {"engine_api"},
    "cli": SHARED
    | {"core", "daemon", "engine_api", "metrics", "page", "policy", "record", "targets", "watch"},
    "engine": {"__version__", "contract", "draft", "errors", "metrics", "terminal"}
    | {"json_bounds", "local_file", "plain_text"},
    "bench": SHARED | {"core", "engine_api", "policy", "record"},
    "draft": {"contract", "engine", "errors", "terminal"},
    "checkpoints": {"engine", "errors", "json_bounds", "local_file"},
    # They measure and simulate where they are asked to, and import that then.
    "doctor": SHARED | EXAMINES,
    "recommend": SHARED | EXAMINES | {"doctor"},
}
ENGINES = {"torch", "vllm", "sglang", "triton"}
PLUGINS = {"specctl_vllm", "specctl_sglang", "specctl_kernels"}
HEAVY = ENGINES | {"numba", "scipy", "sklearn"}


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything imported, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(path: Path) -> set[str]:
    """The parts and modules of specctl that a file imports."""
    return {module.split(".")[1] for module in imports(path) if module.startswith("specctl.")}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sources("specctl"), ids=name)
def test_nothing_in_specctl_imports_a_plugin_or_an_engine(path: Path) -> None:
    tops = {module.split(".")[0] for module in imports(path)}
    assert not tops & (PLUGINS | ENGINES)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_uses_only_the_parts_below_it(part: str) -> None:
    for path in sources(f"specctl/{part}"):
        assert own(path) <= PARTS[part] | {part}, name(path)


def test_every_part_has_a_rule() -> None:
    folders = {path.parent.name for path in (ROOT / "specctl").glob("*/__init__.py")}
    assert folders == {*PARTS, "simulate"}, "the simulator may use everything, and nothing uses it"


@pytest.mark.parametrize("path", sources("specctl/core"), ids=name)
def test_the_decision_core_does_no_input_or_output(path: Path) -> None:
    banned = {"asyncio", "datetime", "logging", "os", "pathlib", "random", "socket", "sys", "time"}
    banned |= {"aiohttp", "prometheus_client"}
    assert not {module.split(".")[0] for module in imports(path)} & banned


@pytest.mark.parametrize("path", sources("specctl/simulate"), ids=name)
def test_the_simulator_takes_the_daemons_loop_and_nothing_of_its_decision(path: Path) -> None:
    taken = {module for module in imports(path) if module.startswith("specctl.core")}
    assert taken <= {"specctl.core.messages.Plan"}


@pytest.mark.parametrize("path", sources("plugins"), ids=name)
def test_plugins_never_import_the_daemon(path: Path) -> None:
    assert own(path) <= {"__version__", "contract", "draft", "engine", "errors", "plain_text"}


@pytest.mark.parametrize("path", sources("specctl/engine", "plugins"), ids=name)
def test_an_engine_takes_nothing_of_the_metrics_but_their_names(path: Path) -> None:
    taken = {module for module in imports(path) if module.startswith("specctl.metrics")}
    assert taken <= {"specctl.metrics.names"}


def test_kernels_import_torch_and_triton_only() -> None:
    allowed = {"torch", "triton", "specctl_kernels", "__future__"} | set(sys.stdlib_module_names)
    for path in sources("kernels"):
        extra = {module.split(".")[0] for module in imports(path)} - allowed
        assert not extra, f"{name(path)}: {extra}"


def loaded(code: str) -> set[str]:
    """Top-level modules that are there once ``code`` has run."""
    words = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_command_starts_without_its_commands() -> None:
    assert not loaded("import specctl.cli.main") & (HEAVY | {"aiohttp", "numpy", "pydantic", "rich"})


@pytest.mark.parametrize("command", ["cli.autotune", "cli.status", "cli.record", "cli.policy", "cli.freeze"])
def test_no_command_of_a_server_needs_an_engine_a_compiler_or_a_fit(command: str) -> None:
    assert not loaded(f"import specctl.{command}") & HEAVY


@pytest.mark.parametrize("command", ["simulate.command", "simulate.profiling.command", "draft.command"])
def test_options_of_commands_with_extras_are_known_without_its_libraries(command: str) -> None:
    assert not loaded(f"import specctl.{command}") & HEAVY


@pytest.mark.parametrize("plugin", ["specctl_vllm", "specctl_sglang"])
def test_a_plugin_is_registered_without_a_compiler(plugin: str) -> None:
    """vLLM's worker looks through all modules right after it has loaded its plugins, and llvmlite ends it."""
    assert not loaded(f"import {plugin}.register") & {"numba", "llvmlite"}


@pytest.mark.parametrize("routes", ["specctl.engine.routes", "specctl_vllm.control.endpoint"])
def test_routes_leave_it_to_the_engine_when_prometheus_client_is_imported(routes: str) -> None:
    """It chooses between one process and several then, and SGLang sets its folder after its plugins."""
    assert "prometheus_client" not in loaded(f"import {routes}")
