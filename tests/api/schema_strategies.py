"""Hypothesis strategies of objects by their schema: well typed, rarely valid."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from phalanx.api.definitions import SchemaNode, definition, is_reference

#: Values that some validators accept, so that validation gets beyond the first check.
WORDS = (
    "", "a", "b-c", "Bad Name", "example.com/gpu", "cpu", "memory", "hugepages-2Mi", "Always",
    "Never", "OnFailure", "Exists", "Equal", "In", "NotIn", "NoExecute", "DoNotSchedule",
    "Localhost", "..", "/abs", "system-a", "metadata.name", "10.0.0.1", "File", "TCP", "x" * 300,
)  # fmt: skip
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(WORDS),
    "bool": st.booleans(),
    "int32": st.integers(-2, 70_000),
    "int64": st.integers(-2, 2**40),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.sampled_from(("", "AAEC")),
    "time": st.just("2026-01-01T00:00:00Z"),
    "microtime": st.just("2026-01-01T00:00:00.000001Z"),
    "quantity": st.sampled_from(("0", "1", "1500m", "-1", "4Gi", 2, 0.5)),
    "int-or-string": st.one_of(st.integers(-1, 70_000), st.sampled_from(WORDS)),
    "opaque": st.just({"any": {"thing": 1}}),
    "any": st.just(1),
}


@st.composite
def objects(draw: st.DrawFn, name: str) -> Any:
    """Draw an object of a definition."""
    return _draw_node(draw, name, 0)


def _draw_node(draw: st.DrawFn, node: SchemaNode, depth: int) -> Any:
    kind = node if isinstance(node, str) else node.get("t", "")
    if is_reference(kind):
        target = definition(kind)
        return (
            _draw_struct(draw, target, depth)
            if isinstance(target, dict)
            else draw(_SCALARS[target])
        )
    if kind:
        return draw(_SCALARS[kind])
    assert isinstance(node, dict)
    if "l" in node:
        return [_draw_node(draw, node["l"], depth) for _ in range(draw(st.integers(0, 2)))]
    keys = draw(st.lists(st.sampled_from(WORDS), max_size=2))
    return {key: _draw_node(draw, node["m"], depth) for key in keys}


def _draw_struct(draw: st.DrawFn, struct: dict[str, Any], depth: int) -> dict[str, Any]:
    """Draw some of the fields: required ones more often, fewer at greater depth."""
    names = list(struct["p"])
    if not names:
        return {}
    some = draw(st.lists(st.sampled_from(names), max_size=max(1, 6 - depth), unique=True))
    needed = struct.get("r", ()) if draw(st.integers(0, 3)) else ()
    return {
        name: _draw_node(draw, struct["p"][name], depth + 1)
        for name in dict.fromkeys((*needed, *some))
    }
