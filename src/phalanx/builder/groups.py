"""From a Workload to the groups that are scheduled: PodGroups and CompositePodGroups.

Works on any Workload, just built or found in a cluster. A group takes over all that its template
says and refers to both the Workload and the group above it. Groups get names that follow from the
Workload, the template and the instance, so that parents and children agree without being told;
whoever makes several groups of one composite template names the parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from phalanx.api.errors import NotFound
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP, WORKLOAD, Kind
from phalanx.api.validation.pod_group import COMPOSITE_POD_GROUP_TEMPLATES, POD_GROUP_TEMPLATES
from phalanx.api.wire import Object
from phalanx.builder.names import pod_group_name
from phalanx.builder.workload_item import copy_group_fields


class Template(NamedTuple):
    """A template in a Workload: its kind of group, and the template above it ("" for none)."""

    kind: Kind
    value: Object
    parent: str

    @property
    def name(self) -> str:
        """Its name, unique in the Workload."""
        name: str = self.value["name"]
        return name


def templates(workload: Object) -> dict[str, Template]:
    """All templates of a Workload by name, each before those below it."""
    return {one.name: one for one in _walk_templates(workload.get("spec") or {}, "")}


def _walk_templates(holder: Object, above: str) -> Iterator[Template]:
    for value in holder.get(POD_GROUP_TEMPLATES) or ():
        yield Template(POD_GROUP, value, above)
    for value in holder.get(COMPOSITE_POD_GROUP_TEMPLATES) or ():
        yield Template(COMPOSITE_POD_GROUP, value, above)
        yield from _walk_templates(value, value["name"])


def new_pod_group(
    workload: Object,
    template: str,
    *,
    instance: str = "",
    name: str = "",
    parent: str = "",
    owners: Sequence[Object] = (),
) -> Object:
    """A PodGroup of a template, wherever in the Workload that is.

    `instance` tells apart groups that are made of one template. Raises NotFound if there is no such
    template.
    """
    found = _find_template(workload, template, POD_GROUP)
    return _build_group(workload, found, instance, name, parent, owners)


def new_composite_pod_group(
    workload: Object,
    template: str,
    *,
    instance: str = "",
    name: str = "",
    parent: str = "",
    owners: Sequence[Object] = (),
) -> Object:
    """A CompositePodGroup of a template; otherwise like `new_pod_group`."""
    found = _find_template(workload, template, COMPOSITE_POD_GROUP)
    return _build_group(workload, found, instance, name, parent, owners)


def new_groups(
    workload: Object,
    template: str = "",
    *,
    instance: str = "",
    parent: str = "",
    owners: Sequence[Object] = (),
) -> list[Object]:
    """One group of every template, parents before children; or of one and those below it alone.

    All of them are of one instance; `parent` is for the highest. Raises NotFound if there is no
    such template.
    """
    known = templates(workload)
    if template and template not in known:
        raise _template_not_found(workload, template, "template", known)
    made: dict[str, Object] = {}
    for one in known.values():
        if one.parent in made:
            above = made[one.parent]["metadata"]["name"]
        elif one.name == template or not (template or one.parent):
            above = parent
        else:
            continue
        made[one.name] = _build_group(workload, one, instance, "", above, owners)
    return list(made.values())


def first_template(workload: Object) -> str:
    """The first template of a group of pods; "" if there is none."""
    known = templates(workload).values()
    return next((one.name for one in known if one.kind is POD_GROUP), "")


def _find_template(workload: Object, name: str, kind: Kind) -> Template:
    known = {one.name: one for one in templates(workload).values() if one.kind is kind}
    if name not in known:
        raise _template_not_found(
            workload, name, f"{kind.name[0].lower()}{kind.name[1:]}Template", known
        )
    return known[name]


def _template_not_found(workload: Object, name: str, noun: str, known: Iterable[str]) -> NotFound:
    holder = workload["metadata"]["name"]
    return NotFound(
        f'{noun} "{name}" not found in workload "{holder}" (have [{" ".join(known)}])',
        name=holder,
        group=WORKLOAD.group,
        kind=WORKLOAD.name,
    )


def _build_group(
    workload: Object,
    template: Template,
    instance: str,
    name: str,
    parent: str,
    owners: Sequence[Object],
) -> Object:
    meta = workload["metadata"]
    if template.parent:
        parent = parent or pod_group_name(meta["name"], template.parent)
    owned = {"ownerReferences": [dict(owner) for owner in owners]} if owners else {}
    above = {"parentCompositePodGroupName": parent} if parent else {}
    return {
        "apiVersion": template.kind.api_version,
        "kind": template.kind.name,
        "metadata": {
            "name": name or pod_group_name(meta["name"], template.name, instance),
            "namespace": meta.get("namespace", ""),
            **owned,
        },
        "spec": {
            "workloadRef": {"workloadName": meta["name"], "templateName": template.name},
            **above,
            **copy_group_fields(template.value),
        },
    }
