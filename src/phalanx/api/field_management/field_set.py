"""FieldSet: a set of field paths, in the FieldsV1 form in which it is stored and served.

A path is a tuple of elements, and a FieldSet is a tree of them:

    f:image                 a field of a struct, or a key of a map
    k:{"name":"main"}       the list item that has these keys
    v:"example.com/gate"    the item of a set
    i:0                     the item at an index: read, never written

A branch without children is a member; a branch with children is a member if it contains `.`:

    {"f:data": {"f:a": {}}}                 has .data.a
    {"f:data": {".": {}, "f:a": {}}}        has .data and .data.a

So an entry of managedFields is used as it is stored, without conversion. Trees are sorted and
immutable: operations return new trees that share unchanged branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from phalanx.api.wire import Object

#: Elements from the root of the object downwards.
ElementPath = tuple[str, ...]
#: The tree of a FieldSet.
Tree = dict[str, Any]

#: The element that makes a branch with children a member.
SELF: Final = "."
#: The depth limit of sets from clients.
MAX_DEPTH: Final = 100

_MEMBER_TREE: Final[Tree] = {SELF: {}}
_SCALARS = (str, int, float, bool, type(None))


class BadFieldSet(ValueError):
    """The value is not a set in the form of FieldsV1."""


class FieldSet:
    """A set of paths. `tree` must be sorted FieldsV1; `from_fields_v1` accepts any."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Tree | None = None) -> None:
        self._tree: Tree = tree or {}

    @staticmethod
    def from_fields_v1(fields: object) -> FieldSet:
        """Parse FieldsV1 from a client. Raises BadFieldSet."""
        tree = _parse_tree(fields, 0)
        tree.pop(SELF, None)
        return FieldSet(tree)

    def to_fields_v1(self) -> Object:
        """Return the FieldsV1 to store; the caller must not change it."""
        return self._tree

    def __bool__(self) -> bool:
        return bool(self._tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldSet) and self._tree == other._tree

    def __repr__(self) -> str:
        return f"FieldSet({', '.join(map(format_path, self))})"

    def __iter__(self) -> Iterator[ElementPath]:
        """Yield every path, a branch before its children."""
        return _paths(self._tree, ())

    def __contains__(self, path: ElementPath) -> bool:
        branch: Tree | None = self._tree
        for element in path:
            branch = branch.get(element) if branch else None
        return bool(path) and branch is not None and _is_member(branch)

    def __or__(self, other: FieldSet) -> FieldSet:
        if not self._tree or not other._tree:
            return self if self._tree else other
        return FieldSet(_union(self._tree, other._tree))

    def __and__(self, other: FieldSet) -> FieldSet:
        if not self._tree or not other._tree:
            return FieldSet()
        return FieldSet(_intersection(self._tree, other._tree))

    def __sub__(self, other: FieldSet) -> FieldSet:
        if not self._tree or not other._tree:
            return self
        rest = _difference(self._tree, other._tree)
        return self if rest is self._tree else FieldSet(rest)

    def without_prefix(self, prefix: ElementPath) -> FieldSet:
        """Return the set without a path and everything below it, for example without `status`."""
        return FieldSet(_without_prefix(self._tree, prefix))


def field_element(name: str) -> str:
    """Return the element of a field, or of a key of a map."""
    return f"f:{name}"


def format_path(path: ElementPath) -> str:
    """Format a path for messages: `.spec.containers[name="main"].image`."""
    return "".join(map(_format_element, path))


def sort_tree(tree: Tree) -> Tree:
    """Return a tree with its top-level branches sorted."""
    return dict(sorted(tree.items())) if len(tree) > 1 else tree


# ----------------------------------------------------------------------------------- operations
# Below the root an empty tree is a member; None is the empty set.


def _is_member(tree: Tree) -> bool:
    return not tree or SELF in tree


def _canonical(tree: Tree) -> Tree | None:
    if len(tree) == 1 and SELF in tree:
        return {}
    return tree or None


def _union(one: Tree, two: Tree) -> Tree:
    if one is two or (not two and _is_member(one)):
        return one
    if not one:
        return two if SELF in two else {SELF: {}, **two}
    if not two:
        return {SELF: {}, **one}
    both: Tree | None = None
    for element, branch in two.items():
        mine = one.get(element)
        joint = branch if mine is None else _union(mine, branch)
        if joint is not mine:
            both = dict(one) if both is None else both
            both[element] = joint
    if both is None:
        return one
    return sort_tree(both) if len(both) > len(one) else both


def _intersection(one: Tree, two: Tree) -> Tree | None:
    if not one or not two:
        return {} if _is_member(one) and _is_member(two) else None
    if len(two) < len(one):
        one, two = two, one
    both: Tree = {}
    for element, branch in one.items():
        if (other := two.get(element)) is not None:
            shared = _intersection(branch, other)
            if shared is not None:
                both[element] = shared
    return _canonical(both)


def _difference(one: Tree, two: Tree) -> Tree | None:
    if not one:
        return None if _is_member(two) else one
    rest: Tree | None = None
    for element, branch in (two or _MEMBER_TREE).items():
        if (mine := one.get(element)) is None:
            continue
        left = _difference(mine, branch)
        if left is mine:
            continue
        rest = dict(one) if rest is None else rest
        if left is None:
            del rest[element]
        else:
            rest[element] = left
    return one if rest is None else _canonical(rest)


def _without_prefix(tree: Tree, prefix: ElementPath) -> Tree | None:
    first, rest = prefix[0], prefix[1:]
    if first not in tree:
        return tree
    left = _without_prefix(tree[first], rest) if rest else None
    if left is None:
        return _canonical({element: tree[element] for element in tree if element != first})
    return {**tree, first: left}


def _paths(tree: Tree, above: ElementPath) -> Iterator[ElementPath]:
    for element, branch in tree.items():
        if element != SELF:
            path = (*above, element)
            if _is_member(branch):
                yield path
            yield from _paths(branch, path)


# --------------------------------------------------------------------------- reading and writing


def _parse_tree(fields: object, depth: int) -> Tree:
    if not isinstance(fields, dict) or depth > MAX_DEPTH:
        raise BadFieldSet("a set of fields is an object of objects, and not too deep")
    tree: Tree = {}
    for key, inner in fields.items():
        element = _parse_element(key)
        branch = _parse_tree(inner, depth + 1)
        if element == SELF and branch:
            raise BadFieldSet('"." has nothing below it')
        tree[element] = _union(tree[element], branch) if element in tree else branch
    return (_canonical(sort_tree(tree)) or {}) if depth else sort_tree(tree)


def _parse_element(key: str) -> str:
    if key == SELF or key.startswith("f:"):
        return key
    kind, fits = key[:2], _ELEMENT_CHECKS.get(key[:2])
    try:
        value = orjson.loads(key[2:])
    except orjson.JSONDecodeError:
        raise BadFieldSet(f"not a path element: {key}") from None
    if fits is None or not fits(value):
        raise BadFieldSet(f"not a path element: {key}")
    return kind + orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


_ELEMENT_CHECKS = {
    "k:": lambda value: (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(one, _SCALARS) for one in value.values())
    ),
    "v:": lambda value: isinstance(value, _SCALARS),
    "i:": lambda value: isinstance(value, int),
}


def encode_scalar(scalar: object) -> str:
    """Encode a scalar for an element."""
    return orjson.dumps(scalar).decode()


def _format_element(element: str) -> str:
    kind, text = element[:2], element[2:]
    if kind == "f:":
        return f".{text}"
    if kind == "k:":
        keys = orjson.loads(text).items()
        return f"[{','.join(f'{key}={encode_scalar(value)}' for key, value in keys)}]"
    return f"[={text}]" if kind == "v:" else f"[{text}]"
