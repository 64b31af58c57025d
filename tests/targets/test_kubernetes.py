from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes.kubernetes import FakeKubernetes, pod

from specctl.errors import TargetsError
from specctl.targets import kubernetes
from specctl.targets.base import Target
from specctl.targets.kubernetes import KubernetesSource
from specctl.targets.models import KubernetesEntry


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


LABELS = {"tier": "batch"}


def query(api: FakeKubernetes, token: Path, **changes: object) -> KubernetesEntry:
    made = KubernetesEntry(namespace="serving", selector="app=vllm", port=8000, api=api.url, token_file=token)
    return made.model_copy(update=changes)


def read(source: KubernetesSource) -> tuple[Target, ...]:
    async def course() -> tuple[Target, ...]:
        try:
            return await source.read()
        finally:
            await source.close()

    return asyncio.run(course())


def test_ready_pods_are_targets_with_their_labels(token: Path) -> None:
    pods = [
        pod("10.0.0.1", labels={"app": "vllm", "tier": "its own", "model": "m"}),
        pod("10.0.0.2", ready=False),
        pod("10.0.0.3", deleted=True),
        pod("10.0.0.4", phase="Pending"),
        pod(None),
        pod("10.0.0.5", labels={"app": "other"}),
        pod("fd00::6"),
    ]
    with FakeKubernetes(pods) as api:
        found = read(KubernetesSource(query(api, token), LABELS, interval_s=5))
        named = read(KubernetesSource(query(api, token, port="http"), LABELS, interval_s=5))
        assert read(KubernetesSource(query(api, token, port="grpc"), LABELS, interval_s=5)) == ()
    assert [target.url for target in found] == ["http://10.0.0.1:8000", "http://[fd00::6]:8000"]
    assert found[0].labels == (("app", "vllm"), ("model", "m"), ("tier", "batch"))
    assert named == found


def test_a_long_list_is_read_page_by_page_and_afresh_when_it_expires(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PAGE_PODS", 2)
    with FakeKubernetes([pod(f"10.0.0.{i}") for i in range(1, 6)]) as api:
        source = KubernetesSource(query(api, token), LABELS, interval_s=5)
        assert len(read(source)) == 5
        assert [asked.get("continue") for asked in api.requests] == [None, ["2"], ["4"]]
        api.statuses = [410]
        assert len(read(source)) == 5
        api.statuses = [410, 410]
        with pytest.raises(TargetsError, match="expired while it was read, twice"):
            read(source)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "does not take the token"),
        (403, "may not list pods"),
        (404, "no such namespace"),
        (500, "fails"),
    ],
)
def test_refusals_are_in_plain_words(token: Path, status: int, words: str) -> None:
    with FakeKubernetes([pod("10.0.0.1")]) as api:
        api.statuses = [status]
        with pytest.raises(TargetsError, match=words):
            read(KubernetesSource(query(api, token), LABELS, interval_s=5))


def test_a_replaced_token_is_read_again(token: Path) -> None:
    async def course() -> None:
        source = KubernetesSource(query(api, token), LABELS, interval_s=5)
        assert len(await source.read()) == 1
        api.token = "newer"
        await source.close()
        with pytest.raises(TargetsError, match="401"):
            await source.read()
        token.write_text("newer")
        assert len(await source.read()) == 1
        token.unlink()
        await source.close()
        with pytest.raises(TargetsError, match="token file"):
            await source.read()
        await source.close()

    with FakeKubernetes([pod("10.0.0.1")]) as api:
        asyncio.run(course())


@pytest.mark.parametrize(
    "body",
    [
        b"not JSON",
        b"[]",
        b'{"items": {}}',
        b'{"items": [3]}',
        b'{"items": [{"status": {}}]}',
        b'{"items": [{"metadata": {}, "status": {"podIP": "x y", "phase": "Running", '
        b'"conditions": [{"type": "Ready", "status": "True"}]}}]}',
    ],
)
def test_an_answer_that_is_no_list_of_pods(token: Path, body: bytes) -> None:
    with FakeKubernetes([]) as api:
        api.body = body
        with pytest.raises(TargetsError):
            read(KubernetesSource(query(api, token), LABELS, interval_s=5))


def listing(items: list[object], rest: str = "") -> bytes:
    return json.dumps({"items": items, "metadata": {"continue": rest}}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (listing([], "more"), "does not end"),
        (listing([pod("10.0.0.1")], "more"), "does not end"),
        (b'{"items": ' + b"[" * 100_000, "recursion limit"),
        (b'{"items": [' + b"{}," * 500_000 + b"{}]}", "over 200000 objects and lists"),
        (b'{"items": [' + b"{}," * 100_000 + b"{}]}", r"items.0.metadata: Field required"),
        (listing([{**pod("10.0.0.1"), "status": {"conditions": [{}] * 100_000}}]), "conditions"),
        (listing([pod("10.0.0.1", labels={f"l{i}": "x" for i in range(300)})]), "labels"),
        (listing([pod("10.0.0.1", labels={"app": "x" * 5000})]), "labels"),
        (listing([pod("10.0.0.1\n")]), "does not appear to be"),
        (b'{"items": [], "metadata": {"continue": "' + b"x" * 20_000 + b'"}}', "metadata.continue"),
    ],
)
def test_lists_that_lie_end_with_a_refusal(token: Path, body: bytes, words: str) -> None:
    with FakeKubernetes([]) as api:
        api.body = body
        started_s = time.process_time()
        with pytest.raises(TargetsError, match=words) as caught:
            read(KubernetesSource(query(api, token), LABELS, interval_s=5))
        assert time.process_time() - started_s < 2.0
        assert len(api.requests) <= 2
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("bound", ["PAGES_MAX", "READ_TIMEOUT_S"])
def test_an_endless_list_ends(token: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    class Endless(FakeKubernetes):
        def respond(
            self, method: str, path: str, headers: Mapping[str, str], body: bytes
        ) -> tuple[int, bytes]:
            self.requests.append({})
            if bound == "READ_TIMEOUT_S":
                time.sleep(0.05)
            return 200, listing([pod("10.0.0.1")], str(len(self.requests)))

    monkeypatch.setattr(kubernetes, bound, 5 if bound == "PAGES_MAX" else 0.3)
    with Endless([]) as api:
        with pytest.raises(TargetsError, match=r"over 5 pages of pods|not read within 0\.3 s"):
            read(KubernetesSource(query(api, token), LABELS, interval_s=5))
        assert len(api.requests) < 10


def test_a_late_api_server(token: Path) -> None:
    with FakeKubernetes([]) as api:
        api.delay_s = 0.5
        with pytest.raises(TargetsError, match=r"no answer within 0\.1 s"):
            read(KubernetesSource(query(api, token), LABELS, interval_s=5, timeout_s=0.1))


def test_the_token_never_travels_in_the_open(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = KubernetesEntry(
        namespace="serving", selector="app=vllm", port=8000, api="http://10.0.0.1:6443", token_file=token
    )
    with pytest.raises(TargetsError, match="over https or to this machine only"):
        read(KubernetesSource(asked, LABELS, interval_s=5))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(TargetsError, match="not in a cluster"):
        read(KubernetesSource(asked.model_copy(update={"api": None}), LABELS, interval_s=5))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_over_https_with_the_clusters_own_authority(token: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=fake"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with FakeKubernetes([pod("10.0.0.1")], tls) as api:
        assert len(read(KubernetesSource(query(api, token, ca_file=certificate), LABELS, interval_s=5))) == 1
        with pytest.raises(TargetsError, match=r"TLS: .*certificate"):
            read(KubernetesSource(query(api, token), LABELS, interval_s=5))
        with pytest.raises(TargetsError, match="No such file"):
            read(KubernetesSource(query(api, token, ca_file=tmp_path / "none"), LABELS, interval_s=5))
