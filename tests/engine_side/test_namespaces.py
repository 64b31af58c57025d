from specctl.engine.namespaces import namespace_of


def test_tenants_are_told_apart_without_their_secrets():
    assert namespace_of(None, None) == ""
    salted = namespace_of(None, "secret")
    assert salted.startswith("salt=")
    assert "secret" not in salted
    assert namespace_of("a", None) != namespace_of("b", None)
    assert namespace_of("a", "secret") not in (salted, namespace_of("a", None))


def test_no_adapters_name_passes_for_another_one_with_a_salt():
    salted = namespace_of("a", "secret")
    assert salted.startswith("adapter=a,salt=")
    names = [salted.removeprefix("adapter="), "a%2Csalt=1", "a,salt=1", "a%252Csalt=1", "a"]
    found = {namespace_of(name, None) for name in names}
    assert len(found) == len(names)
    assert salted not in found


def test_a_salt_that_is_no_text_has_a_namespace_of_its_own():
    assert namespace_of(None, "\ud800").startswith("salt=")
    assert namespace_of(None, "\ud800") != namespace_of(None, "\udfff")
