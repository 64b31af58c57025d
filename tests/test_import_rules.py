"""Which part may import which. Reads the sources; nothing is imported but the command itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = {"observe", "estimate", "policy", "controller", "actuate", "metrics", "targets"}
SHARED = {"types", "errors", "clock", "contract", "engine_profile", "http_client", "yaml_text"}
# controller/loop.py joins the stages; the command line may build anything.
JOINERS = {"specctl/controller/loop.py"}
ENGINES = {"torch", "vllm", "sglang", "triton"}
PLUGINS = {"specctl_vllm", "specctl_sglang", "specctl_kernels"}


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything imported, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sources("specctl"), ids=name)
def test_nothing_in_specctl_imports_a_plugin_or_an_engine(path: Path) -> None:
    tops = {module.split(".")[0] for module in imports(path)}
    assert not tops & (PLUGINS | ENGINES)


STAGE_FILES = [path for stage in sorted(STAGES) for path in sources(f"specctl/{stage}")]


@pytest.mark.parametrize("path", [p for p in STAGE_FILES if name(p) not in JOINERS], ids=name)
def test_stages_meet_only_in_shared_modules_and_base_protocols(path: Path) -> None:
    own = path.relative_to(ROOT).parts[1]
    for module in imports(path):
        parts = module.split(".")
        if parts[0] != "specctl" or parts[1] == own or parts[1] in SHARED:
            continue
        is_protocol = parts[1] in STAGES and parts[2:] == ["base"]
        assert is_protocol, f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", sources("specctl/contract"), ids=name)
def test_the_contract_knows_neither_side(path: Path) -> None:
    for module in imports(path):
        parts = module.split(".")
        assert parts[0] != "specctl" or parts[1] in {"contract", "errors"}, module


PURE = [
    "canary",
    "core",
    "explain",
    "forecast",
    "freeze",
    "probe",
    "recommend",
    "regret",
    "rest",
    "restart_advice",
    "rollout",
    "state",
    "ttft",
]


@pytest.mark.parametrize("module", PURE)
def test_the_decision_core_does_no_input_or_output(module: str) -> None:
    banned = {
        "asyncio",
        "time",
        "logging",
        "os",
        "pathlib",
        "httptools",
        "prometheus_client",
        "datetime",
        "random",
    }
    seen = set(imports(ROOT / f"specctl/controller/{module}.py"))
    assert not {part.split(".")[0] for part in seen} & banned
    assert not {part for part in seen if part.endswith((".http_client", ".http_connection", ".clock"))}


@pytest.mark.parametrize("path", sources("specctl/simulate"), ids=name)
def test_the_simulator_takes_the_daemons_loop_and_nothing_of_its_decision(path: Path) -> None:
    allowed = {"specctl.controller.loop", "specctl.controller.audit"}
    taken = {module for module in imports(path) if module.startswith("specctl.controller")}
    assert taken <= allowed
    assert not {module for module in imports(path) if module.startswith("specctl.estimate")}


@pytest.mark.parametrize(
    "path", [p for p in sources("specctl") if p.parts[-2] not in ("simulate", "cli")], ids=name
)
def test_only_the_command_line_knows_the_simulator(path: Path) -> None:
    assert not {module for module in imports(path) if module.startswith("specctl.simulate")}


@pytest.mark.parametrize("path", sources("specctl/targets"), ids=name)
def test_targets_know_no_other_stage(path: Path) -> None:
    allowed = SHARED | {"targets"}
    assert {m.split(".")[1] for m in imports(path) if m.startswith("specctl.")} <= allowed


@pytest.mark.parametrize("path", sources("plugins"), ids=name)
def test_plugins_never_import_the_daemon(path: Path) -> None:
    banned = STAGES | {"cli", "types", "http_client", "http_connection"}
    for module in imports(path):
        parts = module.split(".")
        assert parts[0] != "specctl" or len(parts) == 1 or parts[1] not in banned, f"{name(path)}: {module}"


def test_kernels_import_torch_and_triton_only() -> None:
    allowed = {"torch", "triton", "specctl_kernels", "__future__"} | set(sys.stdlib_module_names)
    for path in sources("kernels"):
        extra = {module.split(".")[0] for module in imports(path)} - allowed
        assert not extra, f"{name(path)}: {extra}"


def test_the_command_starts_without_torch_engines_or_compilers() -> None:
    code = (
        "import sys, specctl.cli.main; heavy = 'torch vllm numba sglang triton scipy httptools'; "
        "print([m for m in heavy.split() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_daemon_runs_without_torch_engines_or_compilers() -> None:
    code = (
        "import sys, specctl.cli.autotune, specctl.estimate.pooled_fit; "
        "print([m for m in ('torch', 'vllm', 'numba', 'sglang', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
