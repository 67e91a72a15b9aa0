"""Writes `src/phalanx/api/messages.json` from a table of protobuf field numbers.

    python tools/compact_protobuf.py FILE [TARGET]

The table lists, per package, every message with its fields by number: [name, type, one | repeated |
map]. The output has one line per message; `phalanx.api.protobuf` documents the format. The same
table always gives the same bytes. The rows below add what the table lacks but JSON shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

Node = str | dict[str, str]
Row = tuple[str, Node]

TARGET = Path(__file__).resolve().parent.parent / "src/phalanx/api/messages.json"

#: Prefixes before the short name of a message, longest first.
PREFIXES = (
    "k8s.io.apiextensions_apiserver.pkg.apis.",
    "k8s.io.kube_aggregator.pkg.apis.",
    "k8s.io.apimachinery.pkg.apis.",
    "k8s.io.apimachinery.pkg.",
    "k8s.io.api.",
)
SCALARS = ("bool", "bytes", "double", "int32", "int64", "string")

#: Fields with another name in JSON; "" where their own fields are inlined.
NAMES = {
    "apiextensions.v1.JSONSchemaProps.ref": "$ref",
    "apiextensions.v1.JSONSchemaProps.schema": "$schema",
    "apiextensions.v1.JSONSchemaProps.xKubernetesEmbeddedResource": (
        "x-kubernetes-embedded-resource"
    ),
    "apiextensions.v1.JSONSchemaProps.xKubernetesIntOrString": "x-kubernetes-int-or-string",
    "apiextensions.v1.JSONSchemaProps.xKubernetesListMapKeys": "x-kubernetes-list-map-keys",
    "apiextensions.v1.JSONSchemaProps.xKubernetesListType": "x-kubernetes-list-type",
    "apiextensions.v1.JSONSchemaProps.xKubernetesMapType": "x-kubernetes-map-type",
    "apiextensions.v1.JSONSchemaProps.xKubernetesPreserveUnknownFields": (
        "x-kubernetes-preserve-unknown-fields"
    ),
    "apiextensions.v1.JSONSchemaProps.xKubernetesValidations": "x-kubernetes-validations",
    "core.v1.DaemonEndpoint.Port": "Port",
    "networking.v1.IngressClassParametersReference.aPIGroup": "apiGroup",
    "admissionregistration.v1.NamedRuleWithOperations.ruleWithOperations": "",
    "admissionregistration.v1.RuleWithOperations.rule": "",
    "authentication.v1.BoundObjectReference.uID": "uid",
    "core.v1.ConfigMapEnvSource.localObjectReference": "",
    "core.v1.ConfigMapKeySelector.localObjectReference": "",
    "core.v1.ConfigMapProjection.localObjectReference": "",
    "core.v1.ConfigMapVolumeSource.localObjectReference": "",
    "core.v1.EphemeralContainer.ephemeralContainerCommon": "",
    "core.v1.PersistentVolumeSpec.persistentVolumeSource": "",
    "core.v1.Probe.handler": "",
    "core.v1.SecretEnvSource.localObjectReference": "",
    "core.v1.SecretKeySelector.localObjectReference": "",
    "core.v1.SecretProjection.localObjectReference": "",
    "core.v1.Volume.volumeSource": "",
    "networking.v1.IngressRule.ingressRuleValue": "",
    **{
        f"resource.{version}.Device{name}Configuration.deviceConfiguration": ""
        for version in ("v1", "v1beta1", "v1beta2")
        for name in ("Allocation", "Claim", "Class")
    },
}

#: Bytes that are not base64 in JSON.
CONTENTS = {
    "apiextensions.v1.JSON.raw": "json",
    "meta.v1.FieldsV1.Raw": "json",
    "runtime.RawExtension.raw": "json",
    "runtime.Unknown.raw": "octets",
}


def main(source: Path, target: Path) -> None:
    """Read the table and write the file."""
    found = dict(sorted(messages(source).items()))
    target.write_text(text(found))
    print(f"{len(found)} messages")


def messages(source: Path) -> dict[str, dict[int, Row]]:
    """Return all messages by short name, their fields by number."""
    found: dict[str, dict[int, Row]] = {}
    for part in json.loads(source.read_text()).values():
        module = short(part["package"])
        for name, fields in part["messages"].items():
            full = f"{module}.{name}"
            rows = {
                int(number): row(full, field, kind, count=count)
                for number, (field, kind, count) in fields.items()
            }
            found[full] = dict(sorted(rows.items()))
    return found


def row(message: str, field: str, kind: str, *, count: str) -> Row:
    """Return one field in our format."""
    place = f"{message}.{field}"
    item = kind.removeprefix("map<string, ").removesuffix(">") if count == "map" else kind
    one = CONTENTS.get(place) or reference(message.rpartition(".")[0], item)
    node: dict[str, Node] = {"one": one, "repeated": {"l": one}, "map": {"m": one}}
    # Some messages capitalize names; JSON does not.
    name = field if place in CONTENTS else field[0].lower() + field[1:]
    return NAMES.get(place, name), node[count]


def reference(module: str, kind: str) -> str:
    """Return a scalar type, or the short name of a message type."""
    if kind in SCALARS:
        return kind
    return short(kind.removeprefix(".")) if "." in kind else f"{module}.{kind}"


def short(full: str) -> str:
    """Return the short name: `k8s.io.api.core.v1.Pod` is `core.v1.Pod`."""
    return next((full.removeprefix(p) for p in PREFIXES if full.startswith(p)), full)


def text(found: dict[str, dict[int, Row]]) -> str:
    """Return the file: one line per message."""
    lines = (
        f"{json.dumps(name)}:{json.dumps(rows, separators=(',', ':'))}"
        for name, rows in found.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET)
