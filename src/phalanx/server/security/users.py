"""Names that mean something: groups that everybody is in, and how accounts and nodes are called."""

from __future__ import annotations

from phalanx.api.wire import User

MASTERS, AUTHENTICATED = "system:masters", "system:authenticated"
UNAUTHENTICATED, ANONYMOUS_NAME = "system:unauthenticated", "system:anonymous"
SERVICE_ACCOUNTS, NODES = "system:serviceaccounts", "system:nodes"
_ACCOUNT, _NODE = "system:serviceaccount:", "system:node:"

ADMIN = User("admin", (MASTERS, AUTHENTICATED))


def service_account_name(namespace: str, name: str) -> str:
    """The user that a service account is."""
    return f"{_ACCOUNT}{namespace}:{name}"


def service_account(namespace: str, name: str, uid: str = "") -> User:
    """A service account as a user, in the groups of all of them and of its namespace's."""
    groups = (SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}", AUTHENTICATED)
    return User(service_account_name(namespace, name), groups, uid)


def account_place(name: str) -> tuple[str, str] | None:
    """The namespace and name of the service account that a user's name means, if it means one."""
    if not name.startswith(_ACCOUNT):
        return None
    namespace, _, account = name.removeprefix(_ACCOUNT).partition(":")
    return (namespace, account) if namespace and account else None


def node(name: str) -> User:
    """A node as a user."""
    return User(f"{_NODE}{name}", (NODES, AUTHENTICATED))


def node_name(user: User) -> str:
    """The node that a user is; "" for everybody else."""
    is_node = NODES in user.groups and user.name.startswith(_NODE)
    return user.name.removeprefix(_NODE) if is_node else ""


def known(name: str, groups: tuple[str, ...] = ()) -> User:
    """Somebody who has shown who they are."""
    return User(name, tuple(dict.fromkeys((*groups, AUTHENTICATED))))
