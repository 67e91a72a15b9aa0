"""Replaces what identifies people and products in a recording by pseudonyms, always the same ones.

    node "gpu-a17"                          node-00003
    label "team.example.com/name: vision"   x5f0c2d91aa: x93e1b7c004
    pod "default/train-7"                   x81aa20cd3e/xd06b1f4427

Every text is replaced unless its field is in a table of words of the API, quantities and times.
Label keys of Kubernetes itself (kubernetes.io, k8s.io) stay, and numbers as their values, such as
the completion index of a Job. Resource names stay: the report names them. Numbers as values of
other labels may be those of customers or employees. They are replaced by other numbers in the same
order, because node affinity compares numbers (Gt, Lt).

A pseudonym is a hash with a key that is not stored: the original cannot be computed or guessed from
it, and no table of names has to be kept. Nodes are numbered in the order of their names, because
the scheduler chooses between equal nodes by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from phalanx.api.scheduling import TOPOLOGY_ANNOTATION

#: Fields whose texts are words of the API, quantities, times or names of schedulers.
_KEPT_FIELDS = frozenset(
    {
        "apiVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "effect",
        "is",
        "kind",
        "lastTransitionTime",
        "maxUnavailable",
        "minAvailable",
        "nodeAffinityPolicy",
        "nodeTaintsPolicy",
        "operator",
        "phase",
        "preemptionPolicy",
        "protocol",
        "reason",
        "resource",
        "restartPolicy",
        "schedulerName",
        "startTime",
        "status",
        "type",
        "version",
        "whenUnsatisfiable",
    }
)
#: Those of them whose texts are replaced if they name the domain of another project.
_DOMAIN_FIELDS = frozenset({"apiVersion", "reason", "type"})
_KNOWN_DOMAINS = ("kubernetes.io", "k8s.io", "phalanx.dev")
#: Fields with quantities by resource name.
_RESOURCE_FIELDS = frozenset(
    {"allocatable", "allocatedResources", "limits", "overhead", "requests"}
)
#: Fields with label values by label key.
_LABEL_FIELDS = frozenset({"labels", "matchLabels", "nodeSelector", "selector"})
#: Fields with one label key, or a list of them.
_LABEL_KEY_FIELDS = frozenset({"matchLabelKeys", "mismatchLabelKeys", "topologyKey"})
#: Fields with items of `key`, `operator` and values: of labels, taints and tolerations.
_REQUIREMENT_FIELDS = frozenset(
    {"matchExpressions", "matchFields", "taints", "tolerations", "topology"}
)
#: The records that name devices and volumes: their selectors are programs with names in them.
OMITTED_TAGS = frozenset(
    {
        "slice",
        "deviceclass",
        "devicetaintrule",
        "claim",
        "storageclass",
        "csidriver",
        "csinode",
        "capacity",
        "attachment",
        "volume",
        "volumeclaim",
    }
)
#: Fields of pods and groups that refer to devices and volumes.
_OMITTED_FIELDS = frozenset(
    {"configuration", "extendedResourceClaimStatus", "resourceClaimStatuses", "resourceClaims",
     "volumes"}
)  # fmt: skip
_IS_NUMBER = re.compile(r"0|[1-9]\d{0,17}").fullmatch
#: Numbers of so many bits are replaced by numbers below a limit that is a label value of Gt and Lt.
_NUMBER_BITS, _NUMBER_LIMIT = 30, 1 << 62
#: Which part of the numbers that are left one more bit may split off at least, and how much more.
_LEAST_PART, _PART_RANGE = 0.3, 0.4
_IS_KUBERNETES_KEY = re.compile(r"(?:[\w.-]+\.)?(?:kubernetes\.io|k8s\.io)/[\w.-]+").fullmatch
_FIELD_KEYS = frozenset({"metadata.name", "metadata.namespace"})
_KEPT_VALUES = frozenset({"", "true", "false"})


class Anonymizer:
    """Replaces texts of lines by pseudonyms under one key, which must be random and secret."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]
        self._nodes: dict[str, str] = {}

    def add_nodes(self, names: Iterable[str]) -> None:
        """Number nodes in the order of their names, behind those that have a number."""
        for name in sorted(names):
            self._nodes.setdefault(name, f"node-{len(self._nodes):05}")

    def anonymize(self, line: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the plain values of a line with pseudonyms; None if it must be left out."""
        if line["is"] in OMITTED_TAGS:
            return None
        if line["is"] == "node":
            self.add_nodes([line["name"]])
        return self._map(line)

    def replace_text(self, text: str) -> str:
        """Return the pseudonym of a text."""
        if not text:
            return ""
        if text in self._nodes:
            return self._nodes[text]
        digest = hashlib.blake2b(text.encode(), key=self._key, digest_size=8)
        return f"x{digest.hexdigest()}"

    def _replace_key(self, text: str) -> str:
        is_kept = _IS_KUBERNETES_KEY(text) or text in _FIELD_KEYS
        return text if is_kept else self.replace_text(text)

    def _replace_value(self, key: str, text: str) -> str:
        if text in _KEPT_VALUES:
            return text
        if not _IS_NUMBER(text):
            return self.replace_text(text)
        if _IS_KUBERNETES_KEY(key):
            return text
        number = int(text)
        return self.replace_text(text) if number >> _NUMBER_BITS else self._map_number(key, number)

    def _map_number(self, key: str, number: int) -> str:
        """Map a number to another one; larger numbers of the same label key to larger ones.

        Each bit of the number, the highest first, selects one of two parts of the numbers that are
        left. The sizes of the parts depend on the secret, so that only the order can be read.
        """
        low, high = 0, _NUMBER_LIMIT
        for bit in reversed(range(_NUMBER_BITS)):
            prefix = f"{key}\0{bit}\0{number >> (bit + 1)}"
            digest = hashlib.blake2b(prefix.encode(), key=self._key, digest_size=6).digest()
            part = _LEAST_PART + _PART_RANGE * int.from_bytes(digest) / (1 << 48)
            middle = low + int((high - low) * part)
            low, high = (middle, high) if number >> bit & 1 else (low, middle)
        return str(low)

    def _map(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._replace_field(name, value)
            for name, value in values.items()
            if name not in _OMITTED_FIELDS
        }

    def _replace_field(self, name: str, value: Any) -> Any:
        if name in _KEPT_FIELDS and isinstance(value, str):
            is_foreign = name in _DOMAIN_FIELDS and _names_foreign_domain(value)
            return self.replace_text(value) if is_foreign else value
        if name in _RESOURCE_FIELDS:
            return value
        if name in _LABEL_FIELDS and isinstance(value, Mapping):
            # A label selector is a map with matchLabels and matchExpressions.
            if not {"matchLabels", "matchExpressions"}.isdisjoint(value):
                return self._map(value)
            return {
                self._replace_key(key): self._replace_value(key, str(text))
                for key, text in value.items()
            }
        if name in _LABEL_KEY_FIELDS:
            return self._each(value, self._replace_key)
        if name in _REQUIREMENT_FIELDS and isinstance(value, list):
            return [self._replace_requirement(one) for one in value]
        if name == "annotations":
            return {key: self._replace_annotation(key, text) for key, text in value.items()}
        return self._replace_any(value)

    def _replace_requirement(self, found: Mapping[str, Any]) -> dict[str, Any]:
        replaced = self._map(found)
        if "key" in found:
            replaced["key"] = self._replace_key(found["key"])
        for name in ("value", "values"):
            if name in found:
                replace = partial(self._replace_value, found.get("key", ""))
                replaced[name] = self._each(found[name], replace)
        return replaced

    def _replace_annotation(self, key: str, text: str) -> str:
        """Replace the label keys of a preferred topology; the other kept annotations name none."""
        if key != TOPOLOGY_ANNOTATION:
            return text
        return ",".join(
            " ".join(
                word
                if position or word == "*"
                else "+".join(self._replace_key(part) for part in word.split("+"))
                for position, word in enumerate(level.split())
            )
            for level in text.split(",")
        )

    def _replace_any(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.replace_text(value)
        if isinstance(value, Mapping):
            return self._map(value)
        if isinstance(value, list):
            return [self._replace_any(one) for one in value]
        return value

    def _each(self, value: Any, change: Callable[[str], str]) -> Any:
        return [change(one) for one in value] if isinstance(value, list) else change(value)


def _names_foreign_domain(text: str) -> bool:
    """Whether a text begins with a domain that is not of Kubernetes: `team.example.com/v1`."""
    domain, slash, _ = text.partition("/")
    return bool(slash) and "." in domain and not domain.endswith(_KNOWN_DOMAINS)
