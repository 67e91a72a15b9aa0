"""Builds PodGroups and CompositePodGroups from the templates of any Workload.

The Workload is just built or read from a cluster. A group takes over the fields of its template and
refers to the Workload and to its parent group. The name of a group follows from the Workload, the
template and the instance, so that a child can name its parent before it exists. A controller that
builds several groups from one composite template passes the `parent` itself.

    Workload w                            new_groups(w)
    compositePodGroupTemplates: root      CompositePodGroup w-root-…
      podGroupTemplates: workers          PodGroup w-workers-…, parent w-root-…
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
    """A template of a Workload: the kind of its groups, and its parent template ("" for none)."""

    kind: Kind
    value: Object
    parent: str

    @property
    def name(self) -> str:
        """The name, unique in the Workload."""
        name: str = self.value["name"]
        return name


def templates(workload: Object) -> dict[str, Template]:
    """Return all templates of a Workload by name, parents before children."""
    return {one.name: one for one in _walk_templates(workload.get("spec") or {}, "")}


def _walk_templates(holder: Object, parent: str) -> Iterator[Template]:
    for value in holder.get(POD_GROUP_TEMPLATES) or ():
        yield Template(POD_GROUP, value, parent)
    for value in holder.get(COMPOSITE_POD_GROUP_TEMPLATES) or ():
        yield Template(COMPOSITE_POD_GROUP, value, parent)
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
    """Build a PodGroup from a template on any level of a Workload.

    `instance` distinguishes the groups of one template. Raises NotFound if the Workload has no such
    template.
    """
    found = _find_template(workload, template, POD_GROUP)
    return build_group(workload, found, instance=instance, name=name, parent=parent, owners=owners)


def new_composite_pod_group(
    workload: Object,
    template: str,
    *,
    instance: str = "",
    name: str = "",
    parent: str = "",
    owners: Sequence[Object] = (),
) -> Object:
    """Build a CompositePodGroup from a template; otherwise like `new_pod_group`."""
    found = _find_template(workload, template, COMPOSITE_POD_GROUP)
    return build_group(workload, found, instance=instance, name=name, parent=parent, owners=owners)


def new_groups(
    workload: Object,
    template: str = "",
    *,
    instance: str = "",
    parent: str = "",
    owners: Sequence[Object] = (),
) -> list[Object]:
    """Build one group from every template, parents first; or from `template` and those below it.

    All groups have the same `instance`; `parent` is the parent of the topmost. Raises NotFound if
    the Workload has no such template.
    """
    known = templates(workload)
    if template and template not in known:
        raise _template_not_found(workload, template, "template", known=known)
    groups: dict[str, Object] = {}
    for one in known.values():
        if one.parent in groups:
            group_parent = groups[one.parent]["metadata"]["name"]
        elif one.name == template or not (template or one.parent):
            group_parent = parent
        else:
            continue
        groups[one.name] = build_group(
            workload, one, instance=instance, parent=group_parent, owners=owners
        )
    return list(groups.values())


def first_template(workload: Object) -> str:
    """Return the name of the first PodGroup template; "" if there is none."""
    known = templates(workload).values()
    return next((one.name for one in known if one.kind is POD_GROUP), "")


def _find_template(workload: Object, name: str, kind: Kind) -> Template:
    known = {one.name: one for one in templates(workload).values() if one.kind is kind}
    if name not in known:
        raise _template_not_found(
            workload, name, f"{kind.name[0].lower()}{kind.name[1:]}Template", known=known
        )
    return known[name]


def _template_not_found(
    workload: Object, name: str, noun: str, *, known: Iterable[str]
) -> NotFound:
    holder = workload["metadata"]["name"]
    return NotFound(
        f'{noun} "{name}" not found in workload "{holder}" (have [{" ".join(known)}])',
        name=holder,
        group=WORKLOAD.group,
        kind=WORKLOAD.name,
    )


def build_group(
    workload: Object,
    template: Template,
    *,
    instance: str,
    parent: str,
    owners: Sequence[Object],
    name: str = "",
) -> Object:
    """Build the group of a template; `parent` defaults to the group of the template above."""
    meta = workload["metadata"]
    if template.parent:
        parent = parent or pod_group_name(meta["name"], template.parent)
    references = {"ownerReferences": [dict(owner) for owner in owners]} if owners else {}
    parent_field = {"parentCompositePodGroupName": parent} if parent else {}
    return {
        "apiVersion": template.kind.api_version,
        "kind": template.kind.name,
        "metadata": {
            "name": name or pod_group_name(meta["name"], template.name, instance),
            "namespace": meta.get("namespace", ""),
            **references,
        },
        "spec": {
            "workloadRef": {"workloadName": meta["name"], "templateName": template.name},
            **parent_field,
            **copy_group_fields(template.value),
        },
    }
