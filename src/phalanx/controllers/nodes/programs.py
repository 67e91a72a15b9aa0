"""From a container to the program that it is on a process node: pure, and refuses what it cannot.

    pod, container ─▶ argv (never a shell), environment (nothing inherited), folder, limits

The image is not looked at: the command runs as it is found on this machine. What would need a
container runtime (volumes, values from ConfigMaps, sidecars) is refused with a reason and not left
out in silence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from phalanx.api.quantity import value
from phalanx.api.wire import Object

#: Where all pods of process nodes are.
LOOPBACK = "127.0.0.1"
_MEGA = 1024 * 1024
#: Limits of every process, by their names in `resource`; the pod's own come on top.
_USUAL_LIMITS = {"CORE": 0, "NOFILE": 1024, "FSIZE": 1024 * _MEGA}
#: Resource of a container -> the limit that keeps a process to it.
_LIMITS = {"memory": "AS", "ephemeral-storage": "FSIZE"}
#: `$(NAME)` is a variable, `$$` is a dollar.
_REFERENCE = re.compile(r"\$(\$|\(([^()$]+)\))")


class Refused(ValueError):
    """What a pod asks for and a process node does not have."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is run for a container. `folder` is within the pod's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: str
    limits: Mapping[str, int]


def program(pod: Object, container: Object, usual: Mapping[str, str]) -> Program:
    """What a container is; `usual` is the environment of every process here."""
    if not container.get("command"):
        raise Refused("it has no command, and images are not run on process nodes")
    if container.get("volumeMounts") or container.get("envFrom"):
        raise Refused("process nodes mount no volumes and have no envFrom")
    if container.get("restartPolicy"):
        raise Refused("process nodes have no sidecars")
    env = _environment(pod, container, usual)
    words = [*container["command"], *(container.get("args") or ())]
    argv = tuple(_expanded(word, env) for word in words)
    if any("\0" in word for word in (*argv, *env.values())):
        raise Refused("a word of its command or environment has a zero byte")
    return Program(argv, env, _folder(container), _limits(container))


def _environment(pod: Object, container: Object, usual: Mapping[str, str]) -> dict[str, str]:
    """The usual variables and the container's own, each of which may refer to those before."""
    env = dict(usual)
    for one in container.get("env") or ():
        source = one.get("valueFrom")
        if source:
            found = _derived(pod, container, one["name"], source)
        else:
            found = _expanded(one.get("value", ""), env)
        if found is not None:
            env[one["name"]] = found
    return env


def _derived(pod: Object, container: Object, name: str, source: Object) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _amount(container, source["resourceFieldRef"])
    (reference,) = source.values()
    if reference.get("optional"):
        return None
    raise Refused(f"variable {name}: process nodes read no {next(iter(source))}")


#: Field of a pod -> its value.
_FIELDS: Mapping[str, Callable[[Object], str]] = {
    "metadata.name": lambda pod: str(pod["metadata"]["name"]),
    "metadata.namespace": lambda pod: str(pod["metadata"]["namespace"]),
    "metadata.uid": lambda pod: str(pod["metadata"]["uid"]),
    "spec.nodeName": lambda pod: str(pod["spec"].get("nodeName", "")),
    "spec.serviceAccountName": lambda pod: account(pod),
    "status.hostIP": lambda pod: LOOPBACK,
    "status.hostIPs": lambda pod: LOOPBACK,
    "status.podIP": lambda pod: LOOPBACK,
    "status.podIPs": lambda pod: LOOPBACK,
}
_ENTRY = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


def _field(pod: Object, path: str) -> str:
    if path in _FIELDS:
        return _FIELDS[path](pod)
    entry = _ENTRY.fullmatch(path)
    if entry is None:
        raise Refused(f"there is no field {path}")
    return str((pod["metadata"].get(entry[1]) or {}).get(entry[2], ""))


def _amount(container: Object, source: Object) -> str:
    """So much of a resource, in units of the divisor, rounded up."""
    kind, _, name = source["resource"].partition(".")
    asked = (container.get("resources") or {}).get(kind) or {}
    if name not in asked:
        raise Refused(f"it has no {source['resource']}")
    divisor = source.get("divisor")
    unit = value(divisor) if divisor and str(divisor) != "0" else 1
    return str(math.ceil(value(asked[name]) / unit))


def account(pod: Object) -> str:
    """The service account of a pod."""
    return str(pod["spec"].get("serviceAccountName") or "default")


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as the variable says; one that is not known stays as it is."""

    def one(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(one, text)


def _folder(container: Object) -> str:
    """Where it begins, below the pod's own folder, which is its root."""
    wanted = PurePosixPath("/", container.get("workingDir") or "")
    if ".." in wanted.parts:
        raise Refused("its workingDir leads out of its folder")
    return str(wanted.relative_to("/"))


def _limits(container: Object) -> dict[str, int]:
    given = (container.get("resources") or {}).get("limits") or {}
    own = {_LIMITS[name]: math.ceil(value(most)) for name, most in given.items() if name in _LIMITS}
    return {**_USUAL_LIMITS, **own}
