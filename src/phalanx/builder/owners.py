"""References from what is made to what it is made for."""

from __future__ import annotations

from phalanx.api.wire import Object


def controller_reference(owner: Object) -> Object:
    """The owner that manages an object and outlives it."""
    return {**owner_reference(owner), "controller": True, "blockOwnerDeletion": True}


def owner_reference(owner: Object) -> Object:
    """An owner that an object goes with."""
    meta = owner.get("metadata") or {}
    return {
        "apiVersion": owner.get("apiVersion", ""),
        "kind": owner.get("kind", ""),
        "name": meta.get("name", ""),
        "uid": meta.get("uid", ""),
    }


def owners_of_group(controller: Object, workload: Object) -> list[Object]:
    """A group is managed by a controller's object and goes with its Workload, once that exists."""
    references = [controller_reference(controller), owner_reference(workload)]
    return [reference for reference in references if reference["uid"]]


def controller_of(obj: Object) -> Object | None:
    """The reference to the owner that manages an object, if it has one."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return next((dict(owner) for owner in owners if owner.get("controller")), None)
