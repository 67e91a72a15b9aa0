"""Well-known users and groups, and the user names of service accounts and nodes."""

from __future__ import annotations

from phalanx.api.wire import UserInfo

MASTERS, AUTHENTICATED = "system:masters", "system:authenticated"
UNAUTHENTICATED, ANONYMOUS_NAME = "system:unauthenticated", "system:anonymous"
SERVICE_ACCOUNTS, NODES = "system:serviceaccounts", "system:nodes"
_SERVICE_ACCOUNT_PREFIX, _NODE_PREFIX = "system:serviceaccount:", "system:node:"

ADMIN = UserInfo("admin", (MASTERS, AUTHENTICATED))


def service_account_name(namespace: str, name: str) -> str:
    """Return the user name of a service account."""
    return f"{_SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"


def service_account_user(namespace: str, name: str, uid: str = "") -> UserInfo:
    """Return the user of a service account, with its groups."""
    groups = (SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}", AUTHENTICATED)
    return UserInfo(service_account_name(namespace, name), groups, uid)


def parse_service_account(name: str) -> tuple[str, str] | None:
    """Return namespace and name of the service account of a user name, if it is one."""
    if not name.startswith(_SERVICE_ACCOUNT_PREFIX):
        return None
    namespace, _, account = name.removeprefix(_SERVICE_ACCOUNT_PREFIX).partition(":")
    return (namespace, account) if namespace and account else None


def node_user(name: str) -> UserInfo:
    """Return the user of a node."""
    return UserInfo(f"{_NODE_PREFIX}{name}", (NODES, AUTHENTICATED))


def node_name(user: UserInfo) -> str:
    """Return the node of a user; "" for all other users."""
    is_node = NODES in user.groups and user.name.startswith(_NODE_PREFIX)
    return user.name.removeprefix(_NODE_PREFIX) if is_node else ""


def authenticated_user(name: str, groups: tuple[str, ...] = ()) -> UserInfo:
    """Return a user with the group of authenticated users."""
    return UserInfo(name, tuple(dict.fromkeys((*groups, AUTHENTICATED))))
