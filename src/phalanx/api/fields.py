"""Formats of texts and numbers: names, labels, keys, ports. Each gives the faults of a value.

No faults is an empty sequence. The texts are those that clients of the API know.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps

#: What is wrong with a text.
Faults = Callable[[str], Sequence[str]]

#: How many texts of which length a format remembers.
_REMEMBERED, _SHORT = 8192, 320


def remembered(faults: Faults) -> Faults:
    """The same, remembering short texts: few keys and values come with object after object."""
    kept = lru_cache(_REMEMBERED)(faults)

    @wraps(faults)
    def ask(text: str) -> Sequence[str]:
        return kept(text) if len(text) <= _SHORT else faults(text)

    return ask


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SERVICE_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_NAME})?"
_CONFIG_KEY = r"[-._a-zA-Z0-9]+"
_PORT_NAME = r"[-a-z0-9]+"
_REASON = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"

_LABEL_FAULT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    f"for validation is '{_LABEL}')"
)
_SERVICE_NAME_FAULT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    f"regex used for validation is '{_SERVICE_NAME}')"
)
_SUBDOMAIN_FAULT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN}')"
)
_NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME}')"
)
_VALUE_FAULT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    f"or '12345', regex used for validation is '({_NAME})?')"
)
_CONFIG_KEY_FAULT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    f"'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_CONFIG_KEY}')"
)
_ENV_FAULT = (
    "a valid environment variable name must consist only of printable ASCII characters other "
    "than '='"
)
_REASON_FAULT = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. "
    "'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex "
    f"used for validation is '{_REASON}')"
)
_IP_FAULT = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"

_MATCH_LABEL = re.compile(_LABEL).fullmatch
_MATCH_SERVICE_NAME = re.compile(_SERVICE_NAME).fullmatch
_MATCH_SUBDOMAIN = re.compile(_SUBDOMAIN).fullmatch
_MATCH_NAME = re.compile(_NAME).fullmatch
_MATCH_VALUE = re.compile(_VALUE).fullmatch
_MATCH_CONFIG_KEY = re.compile(_CONFIG_KEY).fullmatch
_MATCH_ENV = re.compile(r"[ -<>-~]+").fullmatch
_MATCH_PORT_NAME = re.compile(_PORT_NAME).fullmatch
_MATCH_REASON = re.compile(_REASON).fullmatch


def dns_label_faults(text: str) -> list[str]:
    """`my-name`: at most 63 lower case letters, digits and dashes."""
    faults = [] if len(text) <= 63 else ["must be no more than 63 characters"]
    if _MATCH_LABEL(text):
        return faults
    return [*faults, "must not contain dots" if _MATCH_SUBDOMAIN(text) else _LABEL_FAULT]


def service_name_faults(text: str) -> list[str]:
    """`my-name`: as a DNS label, but it begins with a letter, as names of services once had to."""
    faults = [] if len(text) <= 63 else ["must be no more than 63 characters"]
    return faults if _MATCH_SERVICE_NAME(text) else [*faults, _SERVICE_NAME_FAULT]


def dns_subdomain_faults(text: str) -> list[str]:
    """`example.com`: labels with dots between them, at most 253 characters."""
    faults = [] if len(text) <= 253 else ["must be no more than 253 characters"]
    return faults if _MATCH_SUBDOMAIN(text) else [*faults, _SUBDOMAIN_FAULT]


def path_segment_faults(text: str) -> list[str]:
    """Anything that can stand between two slashes of a URL."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{sign}'" for sign in ("/", "%") if sign in text]


@remembered
def label_key_faults(text: str) -> Sequence[str]:
    """`name` or `example.com/name`: the keys of labels and other qualified names."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return (
            f"a qualified name {_NAME_RULE} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')",
        )
    faults = _prefix_faults(prefix) if slash else []
    if not name:
        faults.append("name part must be non-empty")
    elif len(name) > 63:
        faults.append("name part must be no more than 63 bytes")
    return faults if _MATCH_NAME(name) else [*faults, f"name part {_NAME_RULE}"]


def _prefix_faults(prefix: str) -> list[str]:
    if not prefix:
        return ["prefix part must be non-empty"]
    return [f"prefix part {fault}" for fault in dns_subdomain_faults(prefix)]


@remembered
def label_value_faults(text: str) -> Sequence[str]:
    """The value of a label: at most 63 characters, or nothing."""
    faults = [] if len(text) <= 63 else ["must be no more than 63 bytes"]
    return faults if _MATCH_VALUE(text) else [*faults, _VALUE_FAULT]


def annotation_key_faults(text: str) -> Sequence[str]:
    """As the key of a label, but in any case."""
    return label_key_faults(text.lower())


def config_key_faults(text: str) -> list[str]:
    """A key of a ConfigMap or Secret: fit to be a file's name."""
    faults = [] if len(text) <= 253 else ["must be no more than 253 characters"]
    if not _MATCH_CONFIG_KEY(text):
        return [*faults, _CONFIG_KEY_FAULT]
    if text in (".", ".."):
        return [*faults, f"must not be '{text}'"]
    return [*faults, "must not start with '..'"] if text.startswith("..") else faults


def env_name_faults(text: str) -> list[str]:
    """The name of an environment variable."""
    return [] if _MATCH_ENV(text) else [_ENV_FAULT]


def port_name_faults(text: str) -> list[str]:
    """The name of a container's port, as IANA registers service names."""
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


def finalizer_faults(text: str) -> Sequence[str]:
    """A finalizer: qualified, unless it is one of the first three."""
    faults = label_key_faults(text)
    if faults or "/" in text or text in ("kubernetes", "orphan", "foregroundDeletion"):
        return faults
    return ["name is neither a standard finalizer name nor is it fully qualified"]


def condition_reason_faults(text: str) -> list[str]:
    """`MinCountSatisfied`: one word, or several between commas and colons."""
    return [] if _MATCH_REASON(text) else [_REASON_FAULT]


def ip_faults(text: str) -> list[str]:
    """An address of either version of IP."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return [_IP_FAULT]
    return []


def prefix_faults(faults: Faults, text: str) -> Sequence[str]:
    """What is wrong with a text as the beginning of a generated name, where a dash may end it."""
    return faults(text[:-1] + "a" if text.endswith("-") and len(text) > 1 else text)
