"""Write `src/phalanx/api/messages.json` from a table of protobuf field numbers.

    python tools/compact_protobuf.py FILE [TARGET]

The table has, per package, every message with its fields: [name, type, one | repeated | map] by
number. One line per message, facts only; `phalanx.api.protobuf` explains the format. The same table
always gives the same bytes. What it does not tell, but JSON shows, stands in the rows below.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

Node = str | dict[str, str]
Row = tuple[str, Node]

TARGET = Path(__file__).resolve().parent.parent / "src/phalanx/api/messages.json"

#: What stands before the short name of a message, longest first.
PREFIXES = ("k8s.io.apimachinery.pkg.apis.", "k8s.io.apimachinery.pkg.", "k8s.io.api.")
SCALARS = ("bool", "bytes", "int32", "int64", "string")

#: Fields that have another name in JSON; "" where it has their fields without them.
NAMES = {
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
    "resource.v1.DeviceAllocationConfiguration.deviceConfiguration": "",
    "resource.v1.DeviceClaimConfiguration.deviceConfiguration": "",
    "resource.v1.DeviceClassConfiguration.deviceConfiguration": "",
}

#: Bytes that are not base64 in JSON.
CONTENTS = {
    "meta.v1.FieldsV1.Raw": "json",
    "runtime.RawExtension.raw": "json",
    "runtime.Unknown.raw": "octets",
}


def main(source: Path, target: Path) -> None:
    """Read the table and write the file anew."""
    found = dict(sorted(messages(source).items()))
    target.write_text(text(found))
    print(f"{len(found)} messages")


def messages(source: Path) -> dict[str, dict[int, Row]]:
    """All messages by short name, their fields by number."""
    found: dict[str, dict[int, Row]] = {}
    for part in json.loads(source.read_text()).values():
        module = short(part["package"])
        for name, fields in part["messages"].items():
            full = f"{module}.{name}"
            rows = {int(number): row(full, *field) for number, field in fields.items()}
            found[full] = dict(sorted(rows.items()))
    return found


def row(message: str, field: str, kind: str, count: str) -> Row:
    """One field in our format."""
    place = f"{message}.{field}"
    item = kind.removeprefix("map<string, ").removesuffix(">") if count == "map" else kind
    one = CONTENTS.get(place) or reference(message.rpartition(".")[0], item)
    node: dict[str, Node] = {"one": one, "repeated": {"l": one}, "map": {"m": one}}
    return NAMES.get(place, field), node[count]


def reference(module: str, kind: str) -> str:
    """A scalar, or the short name of the message that a message of a module calls so."""
    if kind in SCALARS:
        return kind
    return short(kind.removeprefix(".")) if "." in kind else f"{module}.{kind}"


def short(full: str) -> str:
    """`k8s.io.api.core.v1.Pod` is `core.v1.Pod`."""
    return next((full.removeprefix(p) for p in PREFIXES if full.startswith(p)), full)


def text(found: dict[str, dict[int, Row]]) -> str:
    """The file: a line per message."""
    lines = (
        f"{json.dumps(name)}:{json.dumps(rows, separators=(',', ':'))}"
        for name, rows in found.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET)
