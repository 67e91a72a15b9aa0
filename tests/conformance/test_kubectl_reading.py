"""What kubectl shows: objects in every format, the API itself, and permissions."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
import yaml

from phalanx.api.wire import Object
from tests.builders import pod
from tests.cli.commands import COMMAND_TIMEOUT, WAIT_LIMIT, Kubectl, rows
from tests.conformance.manifests import config_map, here
from tests.conformance.official_client import NOT_ROOT_CA, ROOT_CA

#: Selects all objects but the root certificate of the namespace.
OTHERS = f"--field-selector={NOT_ROOT_CA}"

# ---- objects and lists ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "output"),
    [
        ("name", "configmap/a\nconfigmap/b\n"),
        ("jsonpath={.items[*].metadata.name}", "a b"),
        ("jsonpath={range .items[?(@.data.size=='2')]}{.metadata.name}{end}", "b"),
        ("go-template={{range .items}}{{.data.size}};{{end}}", "1;2;"),
        ("custom-columns=WHO:.metadata.name,SIZE:.data.size", "WHO   SIZE\na     1\nb     2\n"),
    ],
)
def test_a_list_is_shown_in_the_requested_format(kubectl: Kubectl, form: str, output: str) -> None:
    kubectl.apply(config_map("b", size="2"), config_map("a", size="1"))
    assert kubectl("get", "configmaps", OTHERS, "-o", form) == output


def test_an_object_is_the_same_in_yaml_and_in_json(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("a", size="1"))
    as_json: Object = json.loads(kubectl("get", "cm", "a", "-o", "json"))
    assert as_json == yaml.safe_load(kubectl("get", "cm/a", "-o", "yaml"))
    assert (as_json["kind"], as_json["data"]) == ("ConfigMap", {"size": "1"})
    assert "managedFields" not in as_json["metadata"]
    obj = json.loads(kubectl("get", "cm", "a", "-o", "json", "--show-managed-fields"))
    assert obj["metadata"]["managedFields"][0]["manager"] == "kubectl-client-side-apply"


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        ("job a --image=x", "NAME STATUS COMPLETIONS DURATION AGE CONTAINERS IMAGES SELECTOR"),
        (
            "cronjob a --image=x --schedule=@daily",
            "NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE CONTAINERS IMAGES SELECTOR",
        ),
        ("secret generic a", "NAME TYPE DATA AGE"),
        ("quota a --hard=pods=1", "NAME REQUEST LIMIT AGE"),
        (
            "pdb a --selector=x=y --min-available=1",
            "NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE",
        ),
        ("role a --verb=get --resource=pods", "NAME CREATED AT"),
        (
            "service clusterip a --tcp=80",
            "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE SELECTOR",
        ),
    ],
    ids=["job", "cronjob", "secret", "quota", "budget", "role", "service"],
)
def test_a_wide_table_has_the_columns_of_kubernetes(
    kubectl: Kubectl, words: str, columns: str
) -> None:
    kubectl("create", *words.split())
    head, row = kubectl("get", words.split()[0], "-o", "wide").splitlines()
    assert " ".join(head.split()) == columns
    assert row.startswith("a ")


def test_a_list_is_sorted_by_any_field(kubectl: Kubectl) -> None:
    ranks = {"a": "3", "b": "1", "c": "2"}
    kubectl.apply(*(config_map(name, {"rank": rank}) for name, rank in ranks.items()))
    table = kubectl("get", "cm", OTHERS, "--sort-by=.metadata.labels.rank", "-L", "rank")
    assert [(row[0], row[3]) for row in rows(table)] == [("b", "1"), ("c", "2"), ("a", "3")]
    backwards = kubectl("get", "cm", OTHERS, "--sort-by={.metadata.labels.rank}", "-o", "name")
    assert backwards.split() == ["configmap/b", "configmap/c", "configmap/a"]


def test_labels_select_across_all_namespaces(kubectl: Kubectl) -> None:
    mark = kubectl.namespace
    kubectl.apply(config_map("a", {"of": mark, "tier": "x"}), config_map("b", {"of": mark}))
    everywhere = rows(kubectl("get", "cm", "-A", "-l", f"of={mark}"))
    assert [row[:2] for row in everywhere] == [[mark, "a"], [mark, "b"]]
    for selector, names in (
        (f"of={mark},tier", "configmap/a"),
        (f"of={mark},tier notin (x, y)", "configmap/b"),
        (f"of in ({mark}),tier!=x", "configmap/b"),
    ):
        assert kubectl("get", "cm", "-A", "-l", selector, "-o", "name").strip() == names


def test_fields_select(kubectl: Kubectl) -> None:
    kubectl.apply(here(kubectl, pod("runs")), here(kubectl, pod("waits", cpu="100")))
    kubectl("wait", "--for=condition=Ready", "pod/runs", WAIT_LIMIT)
    for selector, names in (
        ("status.phase=Running", "pod/runs"),
        ("status.phase!=Running", "pod/waits"),
        ("spec.nodeName=,metadata.name!=other", "pod/waits"),
    ):
        found = kubectl("get", "pods", "--field-selector", selector, "-o", "name")
        assert found.strip() == names
    done = kubectl.run("get", "pods", "--field-selector", "spec.colour=red")
    assert done.returncode == 1
    assert "field label not supported: spec.colour" in done.stderr


def test_a_subresource_can_be_read(kubectl: Kubectl) -> None:
    kubectl.apply(here(kubectl, pod("a")))
    kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/a", WAIT_LIMIT)
    part = ("get", "pod", "a", "--subresource=status", "-o", "jsonpath={.status.phase}")
    assert kubectl(*part) == "Running"


def test_a_missing_object_is_reported(kubectl: Kubectl) -> None:
    for args, complaint in (
        (("get", "cm", "none"), 'Error from server (NotFound): configmaps "none" not found\n'),
        (("get", "dragons"), 'error: the server doesn\'t have a resource type "dragons"\n'),
        (("get", "--raw", "/dragons"), "the server could not find the requested resource\n"),
        (("get", "cm", "-l", "a in (b"), "unable to parse requirement"),
    ):
        done = kubectl.run(*args)
        assert done.returncode == 1
        assert complaint in done.stderr
    assert kubectl("get", "cm", "none", "--ignore-not-found") == ""


# ---- watching ------------------------------------------------------------------------------------


@contextmanager
def start_watch(kubectl: Kubectl, *args: str) -> Iterator[Iterator[str]]:
    """The lines of a kubectl that runs until it is stopped."""
    process = subprocess.Popen(
        kubectl.command([*args, "--watch"]), stdout=subprocess.PIPE, text=True, env=kubectl.env
    )
    timer = threading.Timer(COMMAND_TIMEOUT, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        yield iter(process.stdout)
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def test_a_watch_shows_the_type_of_each_event(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("a"))
    form = 'jsonpath={.type} {.object.metadata.name}{"\\n"}'
    options = ("--output-watch-events", "-o", form)
    with start_watch(kubectl, "get", "cm", OTHERS, *options) as lines:
        assert next(lines) == "ADDED a\n"
        kubectl("label", "cm/a", "x=y")
        kubectl("create", "cm", "b")
        kubectl("delete", "cm", "a")
        assert list(islice(lines, 3)) == ["MODIFIED a\n", "ADDED b\n", "DELETED a\n"]


def test_a_watch_respects_its_selector(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("other"), config_map("a", {"color": "red"}))
    form = 'jsonpath={.type} {.object.metadata.name}{"\\n"}'
    args = ("get", "cm", "-l", "color=red", "--output-watch-events", "-o", form)
    with start_watch(kubectl, *args) as lines:
        assert next(lines) == "ADDED a\n"
        kubectl("label", "cm/other", "color=red")
        kubectl("label", "cm/a", "color=blue", "--overwrite")
        assert list(islice(lines, 2)) == ["ADDED other\n", "DELETED a\n"]


# ---- events and logs -----------------------------------------------------------------------------


def test_events_of_an_object_are_shown(kubectl: Kubectl) -> None:
    kubectl.apply(here(kubectl, pod("a")), here(kubectl, pod("b", cpu="100")))
    form = 'jsonpath={.reason} {.involvedObject.name}{"\\n"}'
    with start_watch(kubectl, "get", "events", "-o", form) as lines:
        assert sorted(islice(lines, 2)) == ["FailedScheduling b\n", "Scheduled a\n"]
    output = kubectl("events", "--for", "pod/a")
    assert [row[1:4] for row in rows(output)] == [["Normal", "Scheduled", "Pod/a"]]
    warnings = kubectl("events", "--types=Warning")
    assert {tuple(row[1:4]) for row in rows(warnings)} == {("Warning", "FailedScheduling", "Pod/b")}
    found = kubectl("get", "events", "--field-selector", "involvedObject.name=a,reason=Scheduled")
    assert len(rows(found)) == 1


def test_a_pod_has_logs_once_it_runs(kubectl: Kubectl) -> None:
    kubectl.apply(here(kubectl, pod("a")))
    kubectl("wait", "--for=condition=Ready", "pod/a", WAIT_LIMIT)
    assert kubectl("logs", "a") == kubectl("logs", "pod/a", "-c", "main", "--tail=5")
    for args, complaint in (
        (("logs", "none"), 'pods "none" not found'),
        (("logs", "a", "-c", "other"), "container other is not valid for pod a"),
    ):
        done = kubectl.run(*args)
        assert done.returncode == 1
        assert complaint in done.stderr


# ---- the API itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("pod.spec.containers", ["image\t<string>", "name\t<string> -required-", "ports\t<[]Con"]),
        ("podgroup.spec", ["schedulingPolicy\t<PodGroupSchedulingPolicy> -required-"]),
        ("job.spec", ["parallelism\t<integer>", "template\t<PodTemplateSpec> -required-"]),
        ("job.spec.template.spec.affinity", ["nodeAffinity\t<NodeAffinity>"]),
    ],
)
def test_fields_are_explained(kubectl: Kubectl, what: str, fields: list[str]) -> None:
    output = kubectl("explain", what)
    assert [field for field in fields if f"\n  {field}" not in output] == []
    kind = {"pod": "Pod", "podgroup": "PodGroup", "job": "Job"}[what.partition(".")[0]]
    assert f"KIND:       {kind}\n" in output


def test_fields_are_explained_down_to_the_leaves(kubectl: Kubectl) -> None:
    output = kubectl("explain", "podgroup", "--recursive")
    assert "        minCount\t<integer> -required-\n" in output
    done = kubectl.run("explain", "podgroup.spec.colour")
    assert (done.returncode, done.stderr) == (1, 'error: field "colour" does not exist\n')


def test_the_api_resources_are_listed(kubectl: Kubectl) -> None:
    wide = kubectl("api-resources", "-o", "wide", "--api-group=scheduling.k8s.io")
    found = {row[0]: row[1:] for row in rows(wide)}
    assert found["podgroups"][:3] == ["scheduling.k8s.io/v1beta1", "true", "PodGroup"]
    assert "create,delete,deletecollection,get,list,patch,update,watch" in found["podgroups"]
    cluster = kubectl("api-resources", "--namespaced=false", "-o", "name").split()
    assert {"nodes", "namespaces", "priorityclasses.scheduling.k8s.io"} <= set(cluster)
    assert "pods" not in cluster
    every = set(kubectl("get", "all,configmaps", "-o", "name").split())
    assert every == {f"configmap/{ROOT_CA}"}
    versions = kubectl("api-versions").split()
    assert {"v1", "batch/v1", "coordination.k8s.io/v1", "scheduling.k8s.io/v1beta1"} <= set(
        versions
    )
    assert versions == sorted(versions)


def test_paths_can_be_read_raw(kubectl: Kubectl) -> None:
    version = json.loads(kubectl("get", "--raw", "/version"))
    assert (version["major"], version["minor"]) == ("1", "37")
    assert kubectl("get", "--raw", "/readyz") == "ok"
    groups = json.loads(kubectl("get", "--raw", "/apis"))["groups"]
    assert "scheduling.k8s.io" in [group["name"] for group in groups]
    table = json.loads(kubectl("get", "--raw", f"/api/v1/namespaces/{kubectl.namespace}/pods"))
    assert (table["kind"], table["items"]) == ("PodList", [])


# ---- permissions ---------------------------------------------------------------------------------


def test_kubectl_auth_whoami_shows_the_user(kubectl: Kubectl) -> None:
    who = yaml.safe_load(kubectl("auth", "whoami", "-o", "yaml"))["status"]["userInfo"]
    assert who["username"] == "admin"
    assert "system:authenticated" in who["groups"]


def test_kubectl_auth_can_i_shows_permissions(kubectl: Kubectl) -> None:
    for question in (("create", "pods"), ("*", "*"), ("get", "/metrics"), ("bind", "roles")):
        assert kubectl("auth", "can-i", *question) == "yes\n"
    assert rows(kubectl("auth", "can-i", "--list")) == [
        ["*.*", "[]", "[]", "[*]"], ["[*]", "[]", "[*]"],
    ]  # fmt: skip


def test_an_impersonated_user_has_only_its_own_permissions(kubectl: Kubectl) -> None:
    impersonation = ("--as=joe", "--as-group=readers", "--as-group=writers")
    who = yaml.safe_load(kubectl("auth", "whoami", "-o", "yaml", *impersonation))["status"][
        "userInfo"
    ]
    assert who["username"] == "joe"
    assert set(who["groups"]) == {"readers", "writers", "system:authenticated"}
    done = kubectl.run("auth", "can-i", "create", "pods", *impersonation)
    assert (done.returncode, done.stdout) == (1, "no\n")
    refused = kubectl.run("create", "cm", "a", *impersonation)
    assert refused.returncode == 1
    assert 'User "joe" cannot create resource "configmaps"' in refused.stderr
    assert kubectl("get", "cm", OTHERS, "-o", "name") == ""
