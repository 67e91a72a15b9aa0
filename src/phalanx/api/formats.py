"""Validators of strings: names, labels, keys, ports, formats of custom resources; percentages.

A validator returns the messages of what is wrong, an empty sequence if nothing is. The messages are
those of Kubernetes. FORMATS maps a `format` of a schema to its test; unknown formats accept all.
"""

from __future__ import annotations

import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache, wraps

from phalanx.api.resources import canonical_quantity

#: The messages of what is wrong with a string.
StringValidator = Callable[[str], Sequence[str]]

#: The number of cached strings, and the length of the longest.
_CACHE_SIZE, _MAX_CACHED_LENGTH = 2048, 320


def cached_validator(validator: StringValidator) -> StringValidator:
    """Return the validator with a cache for short strings: objects repeat few keys and values."""
    cached = lru_cache(_CACHE_SIZE)(validator)

    @wraps(validator)
    def validate(text: str) -> Sequence[str]:
        return cached(text) if len(text) <= _MAX_CACHED_LENGTH else validator(text)

    return validate


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SERVICE_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_NAME})?"
_CONFIG_KEY = r"[-._a-zA-Z0-9]+"
_PORT_NAME = r"[-a-z0-9]+"
_REASON = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"

_LABEL_ERROR = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    f"for validation is '{_LABEL}')"
)
_SERVICE_NAME_ERROR = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    f"regex used for validation is '{_SERVICE_NAME}')"
)
_SUBDOMAIN_ERROR = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN}')"
)
_UNDERSCORE_SUBDOMAIN = "[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?(\\.[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?)*"
_UNDERSCORE_SUBDOMAIN_ERROR = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-', '_' "
    "or '.', and must start and end with an alphanumeric character or '_' (e.g. 'example.com', "
    f"regex used for validation is '{_UNDERSCORE_SUBDOMAIN}')"
)
_NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME}')"
)
_VALUE_ERROR = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    f"or '12345', regex used for validation is '({_NAME})?')"
)
_CONFIG_KEY_ERROR = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    f"'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_CONFIG_KEY}')"
)
_ENV_ERROR = (
    "a valid environment variable name must consist only of printable ASCII characters other "
    "than '='"
)
_REASON_ERROR = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. "
    "'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex "
    f"used for validation is '{_REASON}')"
)
_CIDR_ERROR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_IP_ERROR = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"

_MATCH_LABEL = re.compile(_LABEL).fullmatch
_MATCH_SERVICE_NAME = re.compile(_SERVICE_NAME).fullmatch
_MATCH_SUBDOMAIN = re.compile(_SUBDOMAIN).fullmatch
_MATCH_UNDERSCORE_SUBDOMAIN = re.compile(_UNDERSCORE_SUBDOMAIN).fullmatch
_MATCH_NAME = re.compile(_NAME).fullmatch
_MATCH_VALUE = re.compile(_VALUE).fullmatch
_MATCH_CONFIG_KEY = re.compile(_CONFIG_KEY).fullmatch
_MATCH_ENV = re.compile(r"[ -<>-~]+").fullmatch
_MATCH_PORT_NAME = re.compile(_PORT_NAME).fullmatch
_MATCH_REASON = re.compile(_REASON).fullmatch


def validate_dns_label(text: str) -> list[str]:
    """Validate `my-name`: at most 63 lower case letters, digits and dashes."""
    faults = [] if len(text) <= 63 else ["must be no more than 63 characters"]
    if _MATCH_LABEL(text):
        return faults
    return [*faults, "must not contain dots" if _MATCH_SUBDOMAIN(text) else _LABEL_ERROR]


def validate_service_name(text: str) -> list[str]:
    """Validate `my-name` as a DNS-1035 label, which begins with a letter."""
    faults = [] if len(text) <= 63 else ["must be no more than 63 characters"]
    return faults if _MATCH_SERVICE_NAME(text) else [*faults, _SERVICE_NAME_ERROR]


def validate_dns_subdomain(text: str) -> list[str]:
    """Validate `example.com`: DNS labels with dots between them, at most 253 characters."""
    faults = [] if len(text) <= 253 else ["must be no more than 253 characters"]
    return faults if _MATCH_SUBDOMAIN(text) else [*faults, _SUBDOMAIN_ERROR]


def validate_dns_subdomain_with_underscore(text: str) -> list[str]:
    """Validate `_dns.example.com`: as `validate_dns_subdomain`, but labels may have underscores."""
    faults = [] if len(text) <= 253 else ["must be no more than 253 characters"]
    return faults if _MATCH_UNDERSCORE_SUBDOMAIN(text) else [*faults, _UNDERSCORE_SUBDOMAIN_ERROR]


def validate_path_segment(text: str) -> list[str]:
    """Validate a name that is a path segment of a URL."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{sign}'" for sign in ("/", "%") if sign in text]


@cached_validator
def validate_label_key(text: str) -> Sequence[str]:
    """Validate `name` or `example.com/name`: label keys and other qualified names."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return (
            f"a qualified name {_NAME_RULE} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')",
        )
    faults = []
    if slash and not prefix:
        faults.append("prefix part must be non-empty")
    elif slash:
        faults += [f"prefix part {fault}" for fault in validate_dns_subdomain(prefix)]
    if not name:
        faults.append("name part must be non-empty")
    elif len(name) > 63:
        faults.append("name part must be no more than 63 bytes")
    return faults if _MATCH_NAME(name) else [*faults, f"name part {_NAME_RULE}"]


@cached_validator
def validate_label_value(text: str) -> Sequence[str]:
    """Validate a label value: at most 63 characters, or empty."""
    faults = [] if len(text) <= 63 else ["must be no more than 63 bytes"]
    return faults if _MATCH_VALUE(text) else [*faults, _VALUE_ERROR]


def validate_annotation_key(text: str) -> Sequence[str]:
    """Validate an annotation key: as a label key, in any case."""
    return validate_label_key(text.lower())


def validate_config_key(text: str) -> list[str]:
    """Validate a key of a ConfigMap or Secret, which may become a file name."""
    faults = [] if len(text) <= 253 else ["must be no more than 253 characters"]
    if not _MATCH_CONFIG_KEY(text):
        return [*faults, _CONFIG_KEY_ERROR]
    if text in (".", ".."):
        return [*faults, f"must not be '{text}'"]
    return [*faults, "must not start with '..'"] if text.startswith("..") else faults


def validate_env_name(text: str) -> list[str]:
    """Validate the name of an environment variable."""
    return [] if _MATCH_ENV(text) else [_ENV_ERROR]


def validate_port_name(text: str) -> list[str]:
    """Validate the name of a container port, as IANA service names."""
    faults = [] if len(text) <= 15 else ["must be no more than 15 characters"]
    if not _MATCH_PORT_NAME(text):
        faults.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", text):
        faults.append("must contain at least one letter (a-z)")
    if "--" in text:
        faults.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        faults.append("must not begin or end with a hyphen")
    return faults


#: The fault of a finalizer without a domain.
UNQUALIFIED_FINALIZER = "name is neither a standard finalizer name nor is it fully qualified"


def validate_finalizer(text: str) -> Sequence[str]:
    """Validate a finalizer: qualified, unless it is one of the three standard ones."""
    faults = validate_label_key(text)
    return faults if has_finalizer_domain(text) else [*faults, UNQUALIFIED_FINALIZER]


def has_finalizer_domain(text: str) -> bool:
    """Whether a finalizer has a domain, or is one of those that need none."""
    return "/" in text or text in ("kubernetes", "orphan", "foregroundDeletion")


def validate_condition_reason(text: str) -> list[str]:
    """Validate a reason such as `MinCountSatisfied`."""
    return [] if _MATCH_REASON(text) else [_REASON_ERROR]


@cached_validator
def validate_ip(text: str) -> list[str]:
    """Validate an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return [_IP_ERROR]
    return []


#: Ranges of addresses that are no endpoints, by their properties in `ipaddress`.
_SPECIAL_RANGES = {
    "is_unspecified": "may not be unspecified (0.0.0.0 or ::)",
    "is_loopback": "may not be in the loopback range (127.0.0.0/8, ::1/128)",
    "is_link_local": "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
}
_LINK_LOCAL_MULTICAST = tuple(map(ipaddress.ip_network, ("224.0.0.0/24", "ff02::/16")))


def validate_non_special_ip(text: str) -> Sequence[str]:
    """Validate an address to which traffic can be sent: not of a node itself or of a link."""
    if malformed := validate_ip(text):
        return malformed
    ip = ipaddress.ip_address(text)
    faults = [fault for name, fault in _SPECIAL_RANGES.items() if getattr(ip, name)]
    if any(ip.version == net.version and ip in net for net in _LINK_LOCAL_MULTICAST):
        faults.append("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
    return faults


def validate_cidr(text: str) -> list[str]:
    """Validate a range of IPv4 or IPv6 addresses, such as `10.9.8.0/24`."""
    address, slash, bits = text.partition("/")
    most = 128 if ":" in address else 32
    is_valid = slash and not validate_ip(address) and bits.isdecimal() and int(bits) <= most
    return [] if is_valid else [_CIDR_ERROR]


def validate_name_prefix(validator: StringValidator, text: str) -> Sequence[str]:
    """Validate a `generateName` prefix, which may end with a dash."""
    return validator(text[:-1] + "a" if text.endswith("-") and len(text) > 1 else text)


FormatTest = Callable[[str], bool]

_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,12})?([Zz]|[+-]\d\d:?\d\d)")
_DURATION_UNITS = (
    "ns|us|µs|μs|ms|s|m|h|d|w|nanoseconds?|micros?|millis?|seconds?|minutes?|hours?|days?|weeks?"
)


def _matches(syntax: str) -> FormatTest:
    match = re.compile(syntax).fullmatch
    return lambda text: match(text) is not None


def _parses_with(read: Callable[[str], object]) -> FormatTest:
    """Return a test that a parser accepts the string."""

    def test(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return test


def _parse_date_time(text: str) -> datetime:
    if not _DATE_TIME.fullmatch(text):
        raise ValueError(text)
    whole = re.sub(r"(\.\d{6})\d+", r"\1", text.upper().replace(" ", "T"))
    return datetime.fromisoformat(whole)


def _decode_base64(text: str) -> bytes:
    return binascii.a2b_base64(text.translate({10: None, 13: None}), strict_mode=True)


def _is_hostname(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    fits = _matches(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")
    return len(text) <= 253 and all(fits(label) for label in labels)


def _matches_uuid(version: str, variant: str = "[0-9a-fA-F]") -> FormatTest:
    hexa = "[0-9a-fA-F]"
    return _matches(
        f"{hexa}{{8}}-?{hexa}{{4}}-?{version}{hexa}{{3}}-?{variant}{hexa}{{3}}-?{hexa}{{12}}"
    )


#: By name without dashes, as `date-time` and `datetime` are one.
FORMATS: Mapping[str, FormatTest] = {
    "bsonobjectid": _matches("[0-9a-fA-F]{24}"),
    "byte": _parses_with(_decode_base64),
    "cidr": lambda text: (
        "/" in text and _parses_with(lambda t: ipaddress.ip_network(t, strict=False))(text)
    ),
    "date": _parses_with(date.fromisoformat),
    "datetime": _parses_with(_parse_date_time),
    "duration": _matches(rf"[+-]?(\d{{1,18}}(\.\d{{1,18}})? ?({_DURATION_UNITS}) ?){{1,32}}|0"),
    "email": _matches(r"[^@\s]{1,254}@[^@\s]{1,254}"),
    "hexcolor": _matches("#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "hostname": _is_hostname,
    "ipv4": _parses_with(ipaddress.IPv4Address),
    "ipv6": _parses_with(ipaddress.IPv6Address),
    "k8slongname": lambda text: not validate_dns_subdomain(text),
    "k8sshortname": lambda text: not validate_dns_label(text),
    "mac": _matches("([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}"),
    "quantity": _parses_with(canonical_quantity),
    "ssn": _matches(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "uri": _matches(r"(/|[A-Za-z][-A-Za-z0-9+.]*:)\S*"),
    "uuid": _matches_uuid("[0-9a-fA-F]"),
    "uuid3": _matches_uuid("3"),
    "uuid4": _matches_uuid("4", "[89abAB]"),
    "uuid5": _matches_uuid("5", "[89abAB]"),
}


def resolve_int_or_percent(value: int | str, total: int, *, round_up: bool) -> int:
    """Return a number, or a percentage of a total.

    >>> resolve_int_or_percent("25%", 10, round_up=True)
    3
    """
    if isinstance(value, int):
        return value
    # The API allows any number of leading zeros, `int` limits the number of digits.
    percent = int(value.rstrip("%").lstrip("0") or 0)
    return (total * percent + (99 if round_up else 0)) // 100
