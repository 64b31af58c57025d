import pytest

from specctl.engine.auth import AccessDenied, AccessPolicy, Scope, load_tokens

READ = "r" * 16
CONTROL = "c" * 16
POLICY = AccessPolicy({READ: Scope.READ, CONTROL: Scope.CONTROL})


def check(policy, needed, authorization=None, client_host="127.0.0.1", has_origin=False):
    policy.check(needed, authorization=authorization, client_host=client_host, has_origin=has_origin)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", None])
def test_without_tokens_this_host_may_do_everything(host):
    check(AccessPolicy(None), Scope.CONTROL, client_host=host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "localhost", "testclient"])
def test_without_tokens_others_are_kept_out(host):
    with pytest.raises(AccessDenied, match="only loopback") as denied:
        check(AccessPolicy(None), Scope.READ, client_host=host)
    assert denied.value.status == 403


def test_a_browsers_cross_site_request_is_not_trusted():
    with pytest.raises(AccessDenied, match="browser"):
        check(AccessPolicy(None), Scope.READ, has_origin=True)


@pytest.mark.parametrize("authorization", [None, "Basic abc", "Bearer", "Bearer wrong-token-of-16-chars"])
def test_missing_and_wrong_tokens_are_401(authorization):
    with pytest.raises(AccessDenied) as denied:
        check(POLICY, Scope.READ, authorization)
    assert denied.value.status == 401


def test_scopes():
    check(POLICY, Scope.READ, f"Bearer {READ}", client_host="10.0.0.1")
    check(POLICY, Scope.CONTROL, f"bearer {CONTROL}", client_host="10.0.0.1")
    check(POLICY, Scope.READ, f"Bearer {CONTROL}")
    with pytest.raises(AccessDenied, match="read scope") as denied:
        check(POLICY, Scope.CONTROL, f"Bearer {READ}")
    assert denied.value.status == 403


def test_token_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# who\n\nread:{READ}\ncontrol:{CONTROL}\n")
    assert load_tokens(path) == {READ: Scope.READ, CONTROL: Scope.CONTROL}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one line"),
        ("admin:" + "x" * 20, ":1: expected read:TOKEN or control:TOKEN"),
        ("read:short", ":1: expected a token of at least 16"),
        ("read:" + "x" * 70_000, "at most 65536 bytes"),
    ],
)
def test_bad_token_files_name_the_line_and_never_the_token(tmp_path, text, message):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_tokens(path)
    assert "xxx" not in str(error.value)
    assert "short" not in str(error.value)
