"""Forms: how the fields of a stored object are called in another version, there and back.

A form is a table of the fields that differ; all others are the same in both. A field may have
another name, stand deeper, hold other values, or have no place in the version at all: those are
left over, and come back only where the fields that they were said beside are still the same.

    stored                                   in a version whose form renames and leaves over
    schedulingPolicy: {gang: {minCount: 4}}  policy: {gang: {minCount: 4}}
    disruptionMode: {all: {}}                disruptionMode: PodGroup
    preemptionPolicy: Never                  left over: {"preemptionPolicy": …}

Pure: nothing that is given is changed. Which forms there are is `workload.py`'s business,
how leftovers travel with an object is `leftovers.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.api.versions.leftovers import Leftovers, fingerprint
from phalanx.api.wire import Object

#: The first field of a path, the item that is meant of it, and the rest.
_STEP = re.compile(r"(?P<name>[^.\[]+)(?P<item>\[[^\]]*\])?(?P<rest>.*)")
#: Fields that a message names.
_NAMES = re.compile(r"`\w+`(?:, `\w+`)*")


@dataclass(frozen=True, slots=True)
class Told:
    """A field that the version has: as `name`, which may be `outer.inner`.

    `form` is that of the struct that it holds, or of each struct in its list; `values` pairs what
    is stored with what the version says for it.
    """

    name: str
    form: Form = field(default_factory=dict)
    values: tuple[tuple[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A field that the version does not have.

    It was said beside others of the same struct and goes when they change. What is there anyway
    when nobody says it need not be kept.
    """

    beside: tuple[str, ...]
    default: Any = None


Form = Mapping[str, Told | Left]


def in_version(form: Form, obj: Object, at: str = "") -> tuple[Object, Leftovers]:
    """A stored object in the form of a version, and what is left over, by where it stands."""
    shown: Object = {}
    left: Leftovers = {}
    for key, value in obj.items():
        match form.get(key):
            case None:
                shown[key] = value
            case Left(beside, default):
                if value != default:
                    left[at + key] = (value, fingerprint(obj, beside))
            case Told() as told:
                inner, more = _shown(told, value, at + key)
                _put(shown, told.name, inner)
                left |= more
    return shown, left


def _shown(told: Told, value: Any, at: str) -> tuple[Any, Leftovers]:
    for stored, own in told.values:
        if value == stored:
            return own, {}
    if isinstance(value, dict):
        return in_version(told.form, value, f"{at}.")
    if not isinstance(value, list):
        return value, {}
    items = [in_version(told.form, item, _item(at, item)) for item in value]
    left = {key: kept for _, more in items for key, kept in more.items()}
    return [shown for shown, _ in items], left


def as_stored(form: Form, obj: Object, left: Leftovers, at: str = "") -> Object:
    """An object in the form of a version as it is stored, with what fits of what was left over."""
    told = {row.name.partition(".")[0]: key for key, row in form.items() if isinstance(row, Told)}
    stored: Object = {}
    for name, value in obj.items():
        key = told.get(name, name)
        row = form.get(key)
        stored[key] = _stored(row, value, left, at + key) if isinstance(row, Told) else value
    for key, row in form.items():
        if isinstance(row, Left) and at + key in left:
            value, said_beside = left[at + key]
            if said_beside == fingerprint(stored, row.beside):
                stored[key] = value
    return stored


def _stored(told: Told, value: Any, left: Leftovers, at: str) -> Any:
    for step in told.name.split(".")[1:]:
        value = value.get(step, {})
    for stored, own in told.values:
        if value == own:
            return stored
    if isinstance(value, dict):
        return as_stored(told.form, value, left, f"{at}.")
    if isinstance(value, list):
        return [as_stored(told.form, item, left, _item(at, item)) for item in value]
    return value


def path_in_version(form: Form, path: str) -> str:
    """Where a version has what a path of the stored form leads to; as it is if it has not."""
    if path.startswith("."):
        return "." + path_in_version(form, path[1:])
    step = _STEP.fullmatch(path)
    row = form.get(step["name"]) if step else None
    if step is None or not isinstance(row, Told):
        return path
    place = row.name + (step["item"] or "")
    if not step["rest"] or row.values:
        return place
    return place + path_in_version(row.form, step["rest"])


def text_in_version(form: Form, path: str, text: str) -> str:
    """A message about what a path of the stored form leads to, with the fields of the version."""
    rows = _form_at(form, path)

    def told(names: re.Match[str]) -> str:
        named = [(name, rows.get(name)) for name in names[0].replace("`", "").split(", ")]
        known = [row.name if row else name for name, row in named if not isinstance(row, Left)]
        return ", ".join(f"`{name}`" for name in known) or names[0]

    return _NAMES.sub(told, text)


def _form_at(form: Form, path: str) -> Form:
    step = _STEP.fullmatch(path.removeprefix("."))
    if step is None:
        return form
    row = form.get(step["name"])
    return _form_at(row.form, step["rest"]) if isinstance(row, Told) else {}


def _item(at: str, item: Object) -> str:
    """Items of lists are known by their names: a list may be put in another order."""
    return f"{at}[{item.get('name', '')}]."


def _put(obj: Object, name: str, value: Any) -> None:
    *outer, last = name.split(".")
    for step in outer:
        obj = obj.setdefault(step, {})
    obj[last] = value
