"""Expressions and their values; those of the tables were computed by another program too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.api.cel.compiler import compile_expression
from phalanx.api.cel.declarations import DYN, INTEGER, STRING, list_of
from phalanx.api.cel.evaluator import CostBudget
from phalanx.api.cel.parser import BadExpression
from phalanx.api.cel.values import (
    CostLimitExceeded,
    Duration,
    EvaluationError,
    OptionalValue,
    Timestamp,
    TypeValue,
    Uint,
)

HERE = Path(__file__).parent
SELF = {"x": 2, "s": "abc", "list": [{"n": 1}, {"n": 2}], "m": {"a": 1}}
STEPS = 100_000


def read_cases(name: str) -> list[tuple[str, str]]:
    lines = (HERE / name).read_text().splitlines()
    return [(text, value) for text, _, value in (line.rpartition("  ->  ") for line in lines)]


def display(value: Any) -> str:
    match value:
        case bool() | str() | None:
            return json.dumps(value)
        case Uint() | int():
            return str(int(value))
        case bytes():
            return f"b{value.hex()}"
        case list():
            return f"[{', '.join(map(display, value))}]"
        case dict():
            entries = sorted(f"{display(key)}: {display(one)}" for key, one in value.items())
            return f"{{{', '.join(entries)}}}"
        case Duration(nanos):
            return f"D{nanos // 1000}"
        case Timestamp(nanos):
            return f"T{nanos // 1000}"
        case TypeValue(name):
            return f"type {name}"
    return repr(value)


def evaluate(text: str, steps: int = STEPS, **variables: Any) -> Any:
    known = {"self": SELF, **variables}
    return compile_expression(text, dict.fromkeys(known, DYN)).evaluate(known, CostBudget(steps))


@pytest.mark.parametrize(("text", "wanted"), read_cases("expressions.txt"))
def test_an_expression_has_its_value_or_its_fault(text: str, wanted: str) -> None:
    program = compile_expression(text, {"self": DYN})
    if not wanted.startswith("! "):
        assert display(program.evaluate({"self": SELF}, CostBudget(STEPS))) == wanted
        return
    with pytest.raises(EvaluationError) as fault:
        program.evaluate({"self": SELF}, CostBudget(STEPS))
    assert str(fault.value) == wanted.removeprefix("! ")


@pytest.mark.parametrize(("text", "wanted"), read_cases("refusals.txt"))
def test_what_makes_no_sense_is_refused_with_its_place(text: str, wanted: str) -> None:
    with pytest.raises(BadExpression) as fault:
        compile_expression(text, {"self": DYN})
    assert fault.value.describe(text).splitlines()[0] == f"ERROR: <input>:1:{wanted}"


def test_a_fault_shows_its_line() -> None:
    text = "true &&\n  absent == 1"
    with pytest.raises(BadExpression) as fault:
        compile_expression(text, {})
    assert fault.value.describe(text) == (
        "ERROR: <input>:2:3: undeclared reference to 'absent' (in container '')\n"
        " |   absent == 1\n"
        " | ..^"
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[3, 1].isSorted()", False), ("[1, 1, 2].isSorted()", True), ("[].isSorted()", True),
        ("['a', 'b'].isSorted()", True), ("[1, 3].sum()", 4), ("[].sum()", 0),
        ("[1.5, 0.5].sum()", 2.0), ("[2u, 3u].sum()", 5),
        ("[duration('1s'), duration('2s')].sum() == duration('3s')", True),
        ("[3, 1, 2].min()", 1), ("[3, 1, 2].max()", 3), ("[1, 2, 1].indexOf(1)", 0),
        ("[1, 2, 1].lastIndexOf(1)", 2), ("[1].indexOf(5)", -1), ("[1].lastIndexOf(5)", -1),
        ("sets.contains([1, 2, 3], [2, 1])", True), ("sets.contains([1], [2])", False),
        ("sets.equivalent([1, 1, 2], [2, 1])", True), ("sets.equivalent([1], [1, 2])", False),
        ("sets.intersects([1, 2], [2, 3])", True), ("sets.intersects([1], [2])", False),
        ("sets.contains([[1, {'a': 1}]], [[1.0, {'a': 1u}]])", True),
        ("sets.contains([optional.of([1])], [optional.of([1])])", True),
        ("dyn([1]) in {'a': 1}", False), ("dyn(true) in {1: 1}", False),
        ("dyn(1u) in {1: 1}", True),
        ("[1, 2].all(i, v, v == i + 1)", True), ("{'a': 1}.exists(k, v, k == 'a' && v == 1)", True),
        ("[1, 2].existsOne(i, v, v > 1)", True), ("[1, 2].existsOne(v, v > 0)", False),
        ("[5, 6].transformList(i, v, i * v)", [0, 6]),
        ("[5, 6].transformList(i, v, v > 5, v)", [6]),
        ("{'a': 1}.transformMap(k, v, v + 1)", {"a": 2}),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v > 1, k)", {"b": "b"}),
        ("optional.of(2).optFlatMap(x, optional.of(x + 1)).value()", 3),
        ("optional.none().optMap(x, x).hasValue()", False),
        ("optional.none().or(optional.none()).hasValue()", False),
    ],
)  # fmt: skip
def test_lists_sets_and_loops(text: str, wanted: Any) -> None:
    assert evaluate(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("'abc 123'.find('[0-9]+')", "123"), ("'abc'.find('[0-9]+')", ""),
        ("'aaa'.find('a+?')", "a"),
        ("'a1b22'.findAll('[0-9]+')", ["1", "22"]), ("'a1b22'.findAll('[0-9]', 2)", ["1", "2"]),
        ("'ab'.findAll('x*')", ["", "", ""]), ("'a'.findAll('a', 0)", []),
        ("isQuantity('4Gi')", True), ("isQuantity('4Gx')", False), ("isQuantity('')", False),
        ("quantity('1Gi') == quantity('1024Mi')", True),
        ("quantity('1Gi').isGreaterThan(quantity('1G'))", True),
        ("quantity('500m').isLessThan(quantity('1'))", True),
        ("quantity('1').compareTo(quantity('2'))", -1),
        ("quantity('2').compareTo(quantity('2'))", 0),
        ("quantity('50k').add(quantity('20k')) == quantity('70k')", True),
        ("quantity('50k').sub(20) == quantity('49980')", True),
        ("quantity('50k').add(1).sign()", 1),
        ("quantity('-1').sign()", -1), ("quantity('50k').asInteger()", 50000),
        ("quantity('50m').isInteger()", False), ("quantity('500m').asApproximateFloat()", 0.5),
        ("isURL('https://a.b:80/c?d=e&d=f#g')", True), ("isURL('a.b/c')", False),
        ("url('https://a.b:80/c d').getEscapedPath()", "/c%20d"), ("url('/path').getHost()", ""),
        ("url('https://u@A.b:80/c').getHost()", "A.b:80"), ("url('https://a.b').getPort()", ""),
        ("url('https://[::1]:80/').getHostname()", "::1"), ("url('http://a.b:8/').getPort()", "8"),
        ("url('http://a').getScheme()", "http"),
        ("url('http://a?d=e&d=f').getQuery()", {"d": ["e", "f"]}),
        ("isIP('127.0.0.1')", True), ("isIP('127.0.0.256')", False),
        ("isIP('::ffff:1.2.3.4')", False),
        ("ip('::1').family()", 6), ("ip('127.0.0.1').isLoopback()", True),
        ("ip('10.0.0.1').isGlobalUnicast()", True), ("ip('0.0.0.0').isUnspecified()", True),
        ("ip('169.254.1.1').isLinkLocalUnicast()", True),
        ("ip('224.0.0.1').isLinkLocalMulticast()", True), ("ip.isCanonical('::1')", True),
        ("ip.isCanonical('0:0::1')", False), ("string(ip('0:0::1'))", "::1"),
        ("isCIDR('10.0.0.0/8')", True), ("isCIDR('10.0.0.0/33')", False),
        ("isCIDR('10.0.0.0')", False),
        ("cidr('10.0.0.0/8').containsIP('10.1.2.3')", True),
        ("cidr('10.0.0.0/8').containsIP(ip('::1'))", False),
        ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')", True),
        ("cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))", False),
        ("cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')", True),
        ("cidr('10.1.2.3/8').prefixLength()", 8), ("string(cidr('10.1.2.3/8').ip())", "10.1.2.3"),
        ("string(cidr('10.1.2.3/8'))", "10.1.2.3/8"),
        ("isSemver('1.2.3-rc.1+b')", True), ("isSemver('v1.2')", False),
        ("isSemver('v1.2', true)", True),
        ("semver('1.2.3').isLessThan(semver('1.10.0'))", True),
        ("semver('1.0.0-rc.2').isLessThan(semver('1.0.0-rc.10'))", True),
        ("semver('1.0.0').isGreaterThan(semver('1.0.0-rc.1'))", True),
        ("semver('1.0.0+a').compareTo(semver('1.0.0+b'))", 0), ("semver('1.2.3').minor()", 2),
        ("semver('v01.2', true).major()", 1), ("semver('1.2.3').patch()", 3),
        ("format.dns1123Label().validate('a-b').hasValue()", False),
        ("format.dns1123Label().validate('A').value().size() > 0", True),
        ("format.named('uuid').value().validate('x').hasValue()", True),
        ("format.named('nothing').hasValue()", False),
    ],
)  # fmt: skip
def test_quantities_addresses_and_versions(text: str, wanted: Any) -> None:
    assert evaluate(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quantity('x')", "quantities must match"), ("url('a b')", "URL parse error"),
        ("ip('x')", 'IP Address "x" parse error'), ("cidr('x')", 'CIDR "x" parse error'),
        ("semver('x')", "invalid semantic version"), ("[].min()", "min called on empty list"),
        ("[1, dyn('a')].max()", "no such overload"),
        ("[dyn(1), dyn('a')].sum()", "no such overload"),
        ("quantity('50m').asInteger()", "cannot convert"), ("{dyn(1.5): 1}", "unsupported key"),
        ("timestamp('2020-01-01T00:00:00Z').getHours('Europe/Paris')", "unknown time zone"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h')", "timestamp overflow"),
        ("[dyn(1)].all(x, x)", "no such overload"), ("dyn(1) && true", "no such overload"),
    ],
)  # fmt: skip
def test_evaluation_errors_have_a_message(text: str, said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        evaluate(text)


def test_types_are_known_before_anything_runs() -> None:
    assert compile_expression("[1, 2].map(x, string(x))", {}).result_type == list_of(STRING)
    assert compile_expression("a.size() + 1", {"a": list_of(STRING)}).result_type == INTEGER
    with pytest.raises(BadExpression, match=r"'_\+_' applied to '\(string, int\)'"):
        compile_expression("a.map(x, x + 1)", {"a": list_of(STRING)})


def test_expression_lists_the_variables_that_it_reads() -> None:
    known = {"self": DYN, "oldSelf": DYN, "x": DYN}
    assert compile_expression("self.a.all(x, x > oldSelf.b)", known).used_variables == {
        "self",
        "oldSelf",
        "x",
    }
    assert compile_expression("has(self.a)", known).used_variables == {"self"}


@pytest.mark.parametrize(
    "text",
    [
        "many.all(a, many.all(b, many.all(c, true)))",
        "long.map(a, long.map(b, long))",
        "long.contains(long + long) || many.map(x, long + long).size() > 0",
        "many.exists(a, many == many && false)",
        "many.map(a, many).map(a, a).exists(x, x.exists(y, y == -1))",
    ],
)
def test_no_expression_takes_more_steps_than_it_may(text: str) -> None:
    many, long = list(range(1000)), "x" * 100_000
    with pytest.raises(CostLimitExceeded):
        evaluate(text, many=many, long=[*long] if "long.map" in text else long)


@pytest.mark.parametrize(
    "text",
    ["(" * 500 + "1" + ")" * 500, "[" * 500 + "]" * 500, "-" * 500 + "1", "!" * 500 + "true",
     "1" + "+1" * 5000, "a." * 1 + "b" + ".c" * 5000, "x ? " * 500],
)  # fmt: skip
def test_no_expression_is_too_deep_to_be_refused(text: str) -> None:
    with pytest.raises(BadExpression):
        compile_expression(text, {})


def test_what_a_run_takes_is_taken_from_its_steps() -> None:
    program = compile_expression("[1, 2, 3].all(x, x > 0)", {})
    steps = CostBudget(STEPS)
    assert program.evaluate({}, steps) is True
    assert 0 < STEPS - steps.left < 30


def test_a_missing_value_is_not_one_that_is_null() -> None:
    assert evaluate("self.?a", self={"a": None}) == OptionalValue(True, None)
    assert evaluate("self.?b", self={"a": None}) == OptionalValue(False)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1" + " + 1" * 98, 99), ("(" * 38 + "1" + ")" * 38, 1),
        (" && ".join(["1 < 2"] * 2000), True), ("[" * 38 + "]" * 38 + ".size() == 1", True),
        ("[1].all(a, " * 30 + "true" + ")" * 30, True), ("!" * 98 + "true", True),
        ("true ? " * 1 + "1 : " + "false ? 1 : " * 30 + "2", 1),
    ],
)  # fmt: skip
def test_what_is_just_not_too_deep_is_computed(text: str, wanted: Any) -> None:
    assert evaluate(text) == wanted
