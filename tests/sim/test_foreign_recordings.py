"""Scenarios recorded on a real Kubernetes, on a foreign server in each form of its groups.

The server is ours without GroupBindings; without the workload APIs it keeps gangs as custom
resources, or as PodGroups of scheduler-plugins or Volcano. Scheduler and controllers run beside it.
A scenario that cannot be said in a form is left out; how many are left is checked, so that none is
lost by accident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.wire import Object
from phalanx.sim import virtual_time as loop
from tests.controllers.custom_groups import COSCHEDULING_DEFINITION, VOLCANO_DEFINITION
from tests.sim.recorded_scenario import ComponentsBeside, run_recorded_scenario
from tools.foreign_forms import FORMS, THEMES

FOLDER = Path(__file__).parent.parent / "recorded"
FILES = sorted(
    file
    for part in ("scenarios", "wanted")
    for file in (FOLDER / part).glob("*.json")
    if file.name.startswith(THEMES)
)
DEFINITIONS: Mapping[str, Sequence[Object]] = {
    "workload-apis": (),
    "custom-resources": workload_definitions(),
    "scheduler-plugins": (COSCHEDULING_DEFINITION,),
    "volcano": (VOLCANO_DEFINITION,),
}


def expressible(form: str) -> list[Path]:
    """Return the recordings that can be said in a form."""
    return [file for file in FILES if FORMS[form].translate(json.loads(file.read_text()))]


CASES = [(form, file) for form in FORMS for file in expressible(form)]


def test_most_scenarios_can_be_said_in_each_form() -> None:
    counts = {form: len(expressible(form)) for form in FORMS}
    assert counts == {
        "workload-apis": len(FILES) - 2,
        "custom-resources": len(FILES) - 6,
        "scheduler-plugins": 74,
        "volcano": 75,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "file"), CASES, ids=[f"{form} {file.stem}" for form, file in CASES]
)
def test_recorded_scenario_gives_its_outcome_on_a_foreign_server(form: str, file: Path) -> None:
    case = FORMS[form].translate(json.loads(file.read_text()))
    assert case is not None
    beside = ComponentsBeside(FORMS[form], DEFINITIONS[form])
    assert loop.run_virtual(lambda: run_recorded_scenario(case, beside)) == []
