from __future__ import annotations

import pytest

from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.validation.test_pod_spec import container, create_causes


@pytest.mark.parametrize(
    ("resources", "causes"),
    [
        ({"requests": {"cpu": "1"}, "limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}}, []),
        ({"requests": {"cpu": "100m"}}, ["requests[cpu]: Invalid"]),
        ({"requests": {"cpu": "-1"}}, ["requests[cpu]: Invalid"] * 2),
        ({"limits": {"ephemeral-storage": "1Gi"}}, ["limits[ephemeral-storage]: NotSupported"]),
        ({"limits": {"not a/valid/key!": "1"}}, ["limits[not a/valid/key!]: Invalid"]),
    ],
)
def test_pod_level_resources_cover_the_containers(
    resources: Object, causes: CauseSummaries
) -> None:
    pod = {**container(resources={"requests": {"cpu": "500m"}}), "resources": resources}
    assert create_causes(pod) == prefix_summaries("resources", causes)
