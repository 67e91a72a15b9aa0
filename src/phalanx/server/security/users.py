"""Names that mean something: groups that everybody is in, and how accounts and nodes are called."""

from __future__ import annotations

from phalanx.api.wire import UserInfo

MASTERS, AUTHENTICATED = "system:masters", "system:authenticated"
UNAUTHENTICATED, ANONYMOUS_NAME = "system:unauthenticated", "system:anonymous"
SERVICE_ACCOUNTS, NODES = "system:serviceaccounts", "system:nodes"
_SERVICE_ACCOUNT_PREFIX, _NODE_PREFIX = "system:serviceaccount:", "system:node:"

ADMIN = UserInfo("admin", (MASTERS, AUTHENTICATED))


def service_account_name(namespace: str, name: str) -> str:
    """The user that a service account is."""
    return f"{_SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"


def service_account_user(namespace: str, name: str, uid: str = "") -> UserInfo:
    """A service account as a user, in the groups of all of them and of its namespace's."""
    groups = (SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}", AUTHENTICATED)
    return UserInfo(service_account_name(namespace, name), groups, uid)


def parse_service_account(name: str) -> tuple[str, str] | None:
    """The namespace and name of the service account that a user's name means, if it means one."""
    if not name.startswith(_SERVICE_ACCOUNT_PREFIX):
        return None
    namespace, _, account = name.removeprefix(_SERVICE_ACCOUNT_PREFIX).partition(":")
    return (namespace, account) if namespace and account else None


def node_user(name: str) -> UserInfo:
    """A node as a user."""
    return UserInfo(f"{_NODE_PREFIX}{name}", (NODES, AUTHENTICATED))


def node_name(user: UserInfo) -> str:
    """The node that a user is; "" for everybody else."""
    is_node = NODES in user.groups and user.name.startswith(_NODE_PREFIX)
    return user.name.removeprefix(_NODE_PREFIX) if is_node else ""


def authenticated_user(name: str, groups: tuple[str, ...] = ()) -> UserInfo:
    """Somebody who has shown who they are."""
    return UserInfo(name, tuple(dict.fromkeys((*groups, AUTHENTICATED))))
