"""Roles: which includes which, for which application, and which claims of an identity provider give them."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.core.accounts import ROLES, Caller, ClaimRule, check_role, grants_of, read_claim_rule, role_in
from tidemill.core.errors import ConfigError, ForbiddenError


def test_each_role_includes_those_before_it() -> None:
    for at, role in enumerate(ROLES):
        for needed in ROLES[: at + 1]:
            check_role(Caller("ann", role), needed)
        for needed in ROLES[at + 1 :]:
            with pytest.raises(ForbiddenError, match=f"needs the role {needed}, and yours is {role}"):
                check_role(Caller("ann", role), needed)


@pytest.mark.parametrize(
    ("grants", "application", "found"),
    [
        ({"*": "viewer"}, "shop", ("viewer", None)),
        ({"shop": "admin"}, "shop", ("admin", "shop")),
        ({"shop": "admin"}, "mill", None),
        ({"*": "viewer", "shop": "operator"}, "shop", ("operator", "shop")),
        ({"*": "admin", "shop": "operator"}, "shop", ("admin", None)),
        ({}, "shop", None),
    ],
)
def test_the_highest_role_for_an_application_counts(grants: Any, application: str, found: Any) -> None:
    assert role_in(grants, application) == found


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("groups=ops:operator", ClaimRule("groups", "ops", "operator")),
        ("groups=/team/shop:admin@shop", ClaimRule("groups", "/team/shop", "admin", "shop")),
        ("email=ann@example.org:editor", ClaimRule("email", "ann@example.org", "editor")),
        ("https://example.org/roles=urn:a:b:viewer", ClaimRule("https://example.org/roles", "urn:a:b", "viewer")),
        ("sub=*:viewer@shop", ClaimRule("sub", "*", "viewer", "shop")),
    ],
)
def test_a_rule_is_read_from_its_text(text: str, rule: ClaimRule) -> None:
    assert read_claim_rule(text) == rule


@pytest.mark.parametrize(
    "text", ["", "groups", "groups=ops", "=ops:admin", "groups=:admin", "groups=ops:god", "a=b:admin@"]
)
def test_a_text_that_gives_no_role_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="CLAIM=VALUE:ROLE"):
        read_claim_rule(text)


@pytest.mark.parametrize(
    ("claims", "rule", "grants"),
    [
        ({"groups": ["dev", "ops"]}, "groups=ops:operator", {"*": "operator"}),
        ({"groups": "ops"}, "groups=ops:operator@shop", {"shop": "operator"}),
        ({"groups": ["operations"]}, "groups=ops:operator", {}),
        ({"groups": [["ops"], None, {"ops": 1}]}, "groups=ops:operator", {}),
        ({"realm_access": {"roles": ["ops"]}}, "realm_access.roles=ops:viewer", {"*": "viewer"}),
        ({"a.b": "x"}, "a.b=x:viewer", {"*": "viewer"}),
        ({"level": 3}, "level=3:viewer", {"*": "viewer"}),
        ({"staff": True}, "staff=True:viewer", {}),
        ({"sub": "7"}, "sub=*:viewer", {"*": "viewer"}),
        ({}, "groups=*:viewer", {}),
        ({"email": "ann@example.org", "email_verified": True}, "email=ann@example.org:admin", {"*": "admin"}),
        ({"email": "ann@example.org"}, "email=ann@example.org:admin", {}),
        ({"email": "ann@example.org", "email_verified": "true"}, "email=ann@example.org:admin", {}),
    ],
)
def test_claims_give_roles_by_their_exact_values(claims: dict[str, Any], rule: str, grants: Any) -> None:
    assert grants_of(claims, [read_claim_rule(rule)]) == grants


def test_of_several_rules_the_highest_role_for_each_application_counts() -> None:
    rules = [read_claim_rule(f"groups={each}") for each in ("a:admin", "b:viewer", "c:editor@shop", "a:viewer@shop")]
    assert grants_of({"groups": ["b", "a"]}, rules) == {"*": "admin", "shop": "viewer"}
    assert grants_of({"groups": ["a", "c"]}, rules) == {"*": "admin", "shop": "editor"}
