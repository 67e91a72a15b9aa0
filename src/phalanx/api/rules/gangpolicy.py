"""Rules of `spec.gangPolicy`, by which a Job says in one word whether its pods are a gang.

JobAsGang is a gang of all pods that run at a time, NoGang is no group at all; absent, it says
nothing. A Job that has `spec.scheduling` too must not contradict itself. That the word never
changes is a rule of Jobs alone (`job.py`): templates may.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid
from phalanx.api.rules.checks import CREATED, Check, needed, one_of, struct
from phalanx.api.wire import Object

JOB_AS_GANG, NO_GANG = "JobAsGang", "NoGang"
#: What only a group can have.
_OF_GROUPS = ("schedulingConstraints", "resourceClaims")

GANG_POLICY: Check = struct(("policy", needed(one_of(JOB_AS_GANG, NO_GANG))))


def is_gang_by_word(spec: Object) -> bool:
    """Whether a Job is a gang because it says so in one word and nothing else of it."""
    return is_left_to_word(spec) and _word(spec) == JOB_AS_GANG


def is_left_to_word(spec: Object) -> bool:
    """Whether what the pods of a Job are is said in one word alone."""
    said = (spec.get("scheduling") or {}).get("schedulingPolicy")
    return not said and bool(_word(spec))


def is_gang_by_shape(spec: Object) -> bool:
    """Whether a Job says nothing of it but looks like a gang: every pod has a number and all run.

    Only asked where the gate JobGangInference is on.
    """
    said = (spec.get("scheduling") or {}).get("schedulingPolicy") or _word(spec)
    count = spec.get("parallelism") or 0
    is_whole = count > 1 and spec.get("completions") == count
    return not said and spec.get("completionMode") == "Indexed" and is_whole


def check_inferred(new: Any, old: Any) -> Causes:
    """What is a gang by its shape keeps its size, given the spec."""
    if old is CREATED or new.get("parallelism") == (old or {}).get("parallelism"):
        return ()
    if not is_gang_by_shape(new):
        return ()
    detail = "may not change while the Job is taken for a gang by its shape; name its policy in "
    return [invalid("parallelism", new.get("parallelism"), f"{detail}spec.scheduling")]


def check_agreement(new: Any, old: Any) -> Causes:
    """What is said in one word and what is said in full must be the same, given the spec."""
    scheduling = new.get("scheduling") or {}
    policy = scheduling.get("schedulingPolicy") or {}
    mode = scheduling.get("disruptionMode") or {}
    unlike: dict[str, list[str]] = {
        JOB_AS_GANG: ["schedulingPolicy.basic"] if "basic" in policy else [],
        NO_GANG: [
            *(["schedulingPolicy.gang"] if "gang" in policy else []),
            *(["disruptionMode.all"] if "all" in mode and not policy else []),
            *(field for field in _OF_GROUPS if scheduling.get(field)),
        ],
    }
    word = _word(new)
    return [
        invalid("gangPolicy.policy", word, f"may not be {word} when scheduling.{field} is set")
        for field in unlike.get(word, ())
    ]


def _word(spec: Object) -> str:
    return str((spec.get("gangPolicy") or {}).get("policy", ""))
