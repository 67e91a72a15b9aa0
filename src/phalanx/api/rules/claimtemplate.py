"""Rules of templates of volume claims, and the volumes that they give to pods made beside them.

A pod may mount what only a claim template brings; `with_claims` is the pod template to judge then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.api.fields import dns_label_faults
from phalanx.api.rules.checks import Check, every, needed, struct, text
from phalanx.api.rules.podspec import CONTAINERS
from phalanx.api.rules.storage import PERSISTENT_VOLUME_CLAIM
from phalanx.api.wire import Object


def claim_name(template: Object) -> str:
    """What mounts call the claims of a template."""
    name: str = template.get("metadata", {}).get("name", "")
    return name


def with_claims(template: Object, names: Sequence[str]) -> Object:
    """A pod template with a volume for each claim that it does not have a volume for itself.

    A name that no volume can have is wrong where it stands, and not told of a second time here.
    """
    spec = template.get("spec", {})
    own = {volume.get("name") for volume in spec.get("volumes", ())}
    more = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}}
        for name in dict.fromkeys(names)
        if name not in own and not dns_label_faults(name)
    ]
    if not more:
        return template
    return {**template, "spec": {**spec, "volumes": [*spec.get("volumes", ()), *more]}}


def mounted(template: Object) -> Iterator[str]:
    """The names of all volumes that containers of a pod template mount."""
    spec = template.get("spec", {})
    for field in CONTAINERS:
        for container in spec.get(field, ()):
            yield from (mount.get("name", "") for mount in container.get("volumeMounts", ()))


#: A template of claims.
CLAIM_TEMPLATE: Check = every(
    struct(("metadata", struct(("name", needed(text(dns_label_faults)))))),
    PERSISTENT_VOLUME_CLAIM,
)
