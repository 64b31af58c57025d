"""Write the files under ``deploy/`` that follow from others: ``python -m tools.deploy_files``.

The Kustomize base is what the Helm chart renders with its default values. The chart and the sidecar carry
copies of the alert rules and of the shipped policy. Needs the extra ``dev``. A test holds them current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from helm_python.chart import Chart

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "specctl"


def rendered(values: dict[str, Any] | None = None, name: str = "specctl", namespace: str = "serving") -> str:
    """The chart's manifests as one YAML stream, as ``helm template`` prints them."""
    files = Chart.load(CHART).render(values or {}, name=name, namespace=namespace)
    parts = [text.strip() for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return "\n---\n".join(part.removeprefix("---\n") for part in parts if part) + "\n"


def derived() -> dict[Path, str]:
    """Every file that this tool writes, with what it should hold."""
    return {
        DEPLOY / "kustomize" / "base" / "specctl.yaml": rendered(),
        CHART / "rules.yaml": (DEPLOY / "observability" / "rules.yaml").read_text(encoding="utf-8"),
        DEPLOY / "kustomize" / "sidecar" / "policy.yaml": (ROOT / "policies" / "balanced.yaml").read_text(
            encoding="utf-8"
        ),
    }


def main() -> int:
    for path, text in derived().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
