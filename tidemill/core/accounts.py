"""Accounts: the four roles, what a caller may do, and the roles that claims of an identity provider give. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast, get_args

import msgspec

from tidemill.core.errors import ConfigError, ForbiddenError

AccountRole = Literal["viewer", "operator", "editor", "admin"]

#: In ascending order: each role includes those before it.
ROLES: tuple[AccountRole, ...] = get_args(AccountRole)

#: The role that reads payloads which the application seals.
READS_PAYLOADS: AccountRole = "operator"

#: In grants: every application of the installation.
EVERY_APPLICATION = "*"

#: Roles by application; `*` stands for all applications.
Grants = dict[str, AccountRole]


class Caller(msgspec.Struct, frozen=True):
    """In whose name an operation is done, and what they may do."""

    name: str
    role: AccountRole
    application: str | None = None
    """The only application that the role is for; None for all of them."""
    token_id: int | None = None
    session: str | None = None
    """The value of the session cookie, if a browser asks."""
    session_id: int | None = None
    subject: str | None = None
    """The user at the identity provider, if they logged in there."""

    def may(self, role: AccountRole) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


def check_role(caller: Caller, needed: AccountRole) -> None:
    """Raise unless the caller has this role: the one check of all interfaces."""
    if not caller.may(needed):
        raise ForbiddenError(f"this needs the role {needed}, and yours is {caller.role}")


def role_in(grants: Grants, application: str) -> tuple[AccountRole, str | None] | None:
    """The highest role for an application, and its name unless the role is for all of them; None without a role."""
    everywhere, here = grants.get(EVERY_APPLICATION), grants.get(application)
    if here is not None and (everywhere is None or ROLES.index(here) > ROLES.index(everywhere)):
        return here, application
    return None if everywhere is None else (everywhere, None)


class ClaimRule(msgspec.Struct, frozen=True):
    """Gives a role to users whose claim has a value: `groups=ops:operator@shop`."""

    claim: str
    value: str
    """The value, also as one of a list; `*` for any value."""
    role: AccountRole
    application: str | None = None
    """The application that the role is for; None for all of them."""


def read_claim_rule(text: str) -> ClaimRule:
    """A rule from its text: `CLAIM=VALUE:ROLE`, or `CLAIM=VALUE:ROLE@APPLICATION`."""
    claim, equals, rest = text.strip().partition("=")
    value, colon, given = rest.rpartition(":")
    role, at, application = given.partition("@")
    if not (equals and colon and claim and value) or role not in ROLES or (at and not application):
        raise ConfigError(
            f"{text!r} gives no role: write CLAIM=VALUE:ROLE or CLAIM=VALUE:ROLE@APPLICATION, such as "
            f"groups=ops:operator; the roles are {', '.join(ROLES)}"
        )
    return ClaimRule(claim, value, cast(AccountRole, role), application or None)


def grants_of(claims: Mapping[str, Any], rules: Iterable[ClaimRule]) -> Grants:
    """The roles that a user's claims give; the highest for each application."""
    found: Grants = {}
    for rule in rules:
        if rule.claim == "email" and claims.get("email_verified") is not True:
            continue  # A provider may let users enter any address.
        values = _values(claims, rule.claim)
        if rule.value in values or (rule.value == "*" and values):
            place = rule.application or EVERY_APPLICATION
            if ROLES.index(rule.role) >= ROLES.index(found.get(place, ROLES[0])):
                found[place] = rule.role
    return found


def _values(claims: Mapping[str, Any], name: str) -> list[str]:
    """The values of a claim; `realm_access.roles` is `roles` within `realm_access`."""
    found: Any = claims.get(name)
    if found is None and "." in name:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    listed = found if isinstance(found, list) else [found]
    return [str(each) for each in listed if isinstance(each, str | int) and not isinstance(each, bool)]
