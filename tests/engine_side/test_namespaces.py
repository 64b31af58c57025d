from specctl.engine.namespaces import namespace_of


def test_tenants_are_told_apart_without_their_secrets():
    assert namespace_of(None, None) == ""
    salted = namespace_of(None, "secret")
    assert salted.startswith("salt=")
    assert "secret" not in salted
    assert namespace_of("a", None) != namespace_of("b", None)
    assert namespace_of("a", "secret") not in (salted, namespace_of("a", None))
