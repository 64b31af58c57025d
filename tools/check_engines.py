"""How the newest releases of vLLM and SGLang differ for the plugins, by their source.

    python -m tools.check_engines

For each release that was tested and for the newest two: what a plugin needs and does not find there. For the
newest one also which functions that a plugin replaces or extends have changed since the newest tested one
before it: those are to be read. Ends with 1 where a tested release does not fit, or a newest one is not in
the table (specctl/engine/releases.py). Wheels are fetched by pip; their sources are kept in the cache.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from specctl.engine.engine_check import Adapter, problems_of, relied_on
from specctl.engine.engine_source import Found
from specctl.engine.releases import TESTED

__all__ = ["adapter_of", "changed", "sources_of"]

CACHE = Path(os.environ.get("SPECCTL_CACHE", Path(__file__).parents[1] / ".cache"))
DOWNLOAD_MAX_S = 300
"""vLLM's wheel is 340 MB; a quick network takes 10 s."""
NEWEST = 2
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in range(17, 40)), "manylinux1_x86_64", "any")


def main() -> int:
    is_well = True
    for engine in TESTED:
        newest = newest_releases(engine)
        print(f"{engine}: newest {', '.join(newest) or 'not known'}; tested {', '.join(TESTED[engine])}")
        fits = [_checked(engine, release) for release in _in_order({*TESTED[engine], *newest})]
        is_well &= all(fits)
        for release in newest[:1]:
            _tell_changes(engine, release)
        is_well &= not newest or newest[0] in TESTED[engine]
    return 0 if is_well else 1


def newest_releases(engine: str) -> list[str]:
    """The newest first; empty where the package index does not tell."""
    command = [sys.executable, "-m", "pip", "index", "versions", engine]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"Available versions: (.*)", output)
    return found.group(1).split(", ")[:NEWEST] if found else []


def adapter_of(engine: str) -> Adapter:
    found: Adapter = importlib.import_module(f"specctl_{engine}.adapter").ADAPTER
    return found


def sources_of(engine: str, release: str) -> Path:
    """The folder that holds the engine's package. Raises RuntimeError where no wheel can be had."""
    kept = CACHE / "engine-sources" / f"{engine}-{release}"
    if not kept.is_dir():
        partial = kept.with_name(f"{kept.name}.{os.getpid()}")
        try:
            _unpack(_wheel(engine, release, partial), partial / "sources")
            (partial / "sources").rename(kept)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return kept


def _wheel(engine: str, release: str, folder: Path) -> Path:
    # A wheel for Linux is unpacked on any host, because nothing of it runs.
    options = ["-qq", "--no-deps", "--no-cache-dir", "--retries=1", "--timeout=15", "--only-binary=:all:"]
    options += [*(f"--platform={one}" for one in PLATFORMS), "-d", str(folder), f"{engine}=={release}"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_MAX_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{engine} {release} was not downloaded within {DOWNLOAD_MAX_S} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"the package index gives no wheel of {engine} {release}: {last}")
    return next(folder.glob(f"{engine}-*.whl"))


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if name.endswith(".py")])


def _checked(engine: str, release: str) -> bool:
    """Whether a release fits, printed with what it lacks."""
    try:
        problems = problems_of(adapter_of(engine), sources_of(engine, release))
    except RuntimeError as error:
        print(f"  {release}: not checked: {error}")
        return True
    print(f"  {release}: {f'{len(problems)} problems' if problems else 'has all that the plugin needs'}")
    for one in problems:
        print(f"    {', '.join(sorted(one.methods)) or 'every method'}: {one.words}")
    return not problems or release not in TESTED[engine]


def _tell_changes(engine: str, release: str) -> None:
    before = [one for one in _in_order(set(TESTED[engine])) if one != release][-1:]
    try:
        found = list(changed(engine, before[0], release)) if before else []
    except RuntimeError as error:
        print(f"  changes are not known: {error}")
        return
    print(f"  functions that the plugin replaces or extends, changed since {before[0]}: {len(found)}")
    for target in found:
        print(f"    {target}")


def changed(engine: str, before: str, after: str) -> Iterator[str]:
    """Replaced or extended functions that are not the same in both releases, by their code."""
    adapter = adapter_of(engine)
    old, new = (relied_on(adapter, sources_of(engine, release)) for release in (before, after))
    for target in sorted({*old, *new}):
        if target not in old or target not in new or _code(old[target]) != _code(new[target]):
            yield target


def _code(found: Found) -> str:
    node = found.node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
        node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(node)


def _in_order(releases: set[str]) -> list[str]:
    return sorted(releases, key=lambda release: [int(part) for part in re.findall(r"\d+", release)])


if __name__ == "__main__":
    raise SystemExit(main())
