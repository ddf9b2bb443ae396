"""Who may do what: tokens, and the rules of roles and role bindings."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes.kubernetes.store import ROLE_BINDINGS, ROLES, ApiError, Object, Resource, Store

ADMIN = "kubernetes-admin"


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
    )


def allowed(store: Store, user: str, action: Action) -> bool:
    """Return whether a rule of a role that is bound to the user in the namespace allows the action."""
    if user == ADMIN:
        return True
    for binding in store.all(ROLE_BINDINGS, action.namespace):
        if any(_subject(subject, action.namespace) == user for subject in binding.get("subjects", [])):
            role = store.find(ROLES, action.namespace, binding["roleRef"]["name"])
            if any(_allows(rule, action) for rule in (role or {}).get("rules") or []):
                return True
    return False


def _subject(subject: Object, namespace: str) -> str:
    if subject["kind"] != "ServiceAccount":
        return str(subject["name"])
    return account_name(subject.get("namespace") or namespace, subject["name"])


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
