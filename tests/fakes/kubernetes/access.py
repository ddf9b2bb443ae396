"""Who may do what: tokens, and the rules of roles and role bindings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fakes.kubernetes.store import ROLE_BINDINGS, ROLES, ApiError, Object, Resource, Store

ADMIN, ANONYMOUS = "kubernetes-admin", "system:anonymous"


@dataclass(frozen=True)
class Action:
    """What a caller wants to do."""

    verb: str
    group: str
    plural: str
    namespace: str
    name: str = ""
    subresource: str = ""

    @classmethod
    def on(cls, verb: str, resource: Resource, namespace: str, name: str = "", subresource: str = "") -> Action:
        return cls(verb, resource.group, resource.plural, namespace, name, subresource)

    @property
    def target(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


def account_name(namespace: str, name: str) -> str:
    """Return the user name of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"


def check(store: Store, user: str, action: Action) -> None:
    """Raise 403 if no rule allows the action."""
    if allowed(store, user, action):
        return
    target = f"{action.plural}.{action.group}" if action.group else action.plural
    name = f' "{action.name}"' if action.name else ""
    where = f' in the namespace "{action.namespace}"' if action.namespace else " at the cluster scope"
    raise ApiError(
        403,
        f'{target}{name} is forbidden: User "{user}" cannot {action.verb} resource "{action.target}" '
        f'in API group "{action.group}"{where}',
        details={
            key: value
            for key, value in (("name", action.name), ("group", action.group), ("kind", action.plural))
            if value
        },
    )


def check_escalation(store: Store, user: str, resource: Resource, namespace: str, body: Object) -> None:
    """Raise 403 if a Role, or the Role of a RoleBinding, has rights that the user lacks.

    The verbs `escalate` and `bind` allow it nevertheless.
    """
    if user == ADMIN:
        return
    name, verb, rules = body["metadata"]["name"], "escalate", body.get("rules") or []
    if resource == ROLE_BINDINGS:
        verb, role = "bind", body["roleRef"]["name"]
        if body["roleRef"]["kind"] != ROLES.kind:
            raise ApiError(501, f"the fake has no {body['roleRef']['kind']}s")
        if allowed(store, user, Action.on("bind", ROLES, namespace, role)):
            return
        found = store.find(ROLES, namespace, role)
        if found is None:
            raise ApiError(404, f'{resource.full_name} "{name}" not found', details=resource.details(name))
        rules = found.get("rules") or []
    if resource not in (ROLES, ROLE_BINDINGS) or allowed(store, user, Action.on(verb, ROLES, namespace, name)):
        return
    missing = [text for rule in rules for text in _missing(store, user, namespace, rule)]
    if missing:
        known = _quoted(_groups(user))
        why = f'user "{user}" (groups={known}) is attempting to grant RBAC permissions not currently held:\n'
        message = f'{resource.full_name} "{name}" is forbidden: {why}' + "\n".join(sorted(missing))
        raise ApiError(403, message, details=resource.details(name))


def rules_of(store: Store, user: str, namespace: str) -> list[Object]:
    """Return the rules of the roles that are bound to the user in the namespace."""
    found = []
    for binding in store.all(ROLE_BINDINGS, namespace):
        if any(_is(user, subject, namespace) for subject in binding.get("subjects") or []):
            role = store.find(ROLES, namespace, binding["roleRef"]["name"])
            found += (role or {}).get("rules") or []
    return found


def allowed(store: Store, user: str, action: Action) -> bool:
    """Return whether a rule of a role that is bound to the user in the namespace allows the action."""
    return user == ADMIN or any(_allows(rule, action) for rule in rules_of(store, user, action.namespace))


def _groups(user: str) -> list[str]:
    if not user.startswith("system:serviceaccount:"):
        return ["system:authenticated"]
    return ["system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}", "system:authenticated"]


def _is(user: str, subject: Object, namespace: str) -> bool:
    """Return whether a subject of a binding is the user, or a group of theirs."""
    if subject["kind"] == "ServiceAccount":
        return user == account_name(subject.get("namespace") or namespace, subject["name"])
    return subject["name"] in (_groups(user) if subject["kind"] == "Group" else [user])


def _missing(store: Store, user: str, namespace: str, rule: Object) -> Iterator[str]:
    """Yield the rights of a rule that the user lacks, by group and resource."""
    for group, resource in itertools.product(rule.get("apiGroups") or [], rule.get("resources") or []):
        plural, _, subresource = resource.partition("/")
        names = rule.get("resourceNames") or [""]
        verbs = [
            verb
            for verb in rule.get("verbs") or []
            if not all(
                allowed(store, user, Action(verb, group, plural, namespace, name, subresource)) for name in names
            )
        ]
        if verbs:
            yield f"{{APIGroups:{_quoted([group])}, Resources:{_quoted([resource])}, Verbs:{_quoted(verbs)}}}"


def _quoted(values: list[str]) -> str:
    return f"[{' '.join(json.dumps(value) for value in values)}]"


def _allows(rule: Object, action: Action) -> bool:
    names = rule.get("resourceNames")
    return (
        _contains(rule.get("verbs"), action.verb)
        and _contains(rule.get("apiGroups"), action.group)
        and _contains(rule.get("resources"), action.target)
        and (not names or action.name in names)
    )


def _contains(values: list[str] | None, value: str) -> bool:
    return bool(values) and ("*" in values or value in values)
