"""What kubectl changes: create, apply, patch and related commands, and their refusals."""

from __future__ import annotations

import json
import subprocess

import pytest

from phalanx.api.wire import Object
from tests.builders import pod
from tests.cli.commands import Kubectl
from tests.conformance.manifests import IMAGE, config_map, here, job
from tests.conformance.official_client import ROOT_CA


def values(kubectl: Kubectl, what: str, *paths: str) -> list[str]:
    """The values at some paths of an object."""
    form = '{"\\n"}'.join(f"{{{path}}}" for path in paths)
    return kubectl("get", what, "-o", f"jsonpath={form}").split("\n")


# ---- create --------------------------------------------------------------------------------------

#: Arguments of `kubectl create`, and the expected values by path.
MADE: list[tuple[str, str, dict[str, str]]] = [
    (
        "configmap a --from-literal=x=1 --from-literal=w=2", "configmap/a",
        {".data": '{"w":"2","x":"1"}'},
    ),
    ("secret generic a --from-literal=x=1", "secret/a", {".data.x": "MQ==", ".type": "Opaque"}),
    (
        "secret docker-registry a --docker-username=u --docker-password=p", "secret/a",
        {".type": "kubernetes.io/dockerconfigjson"},
    ),
    ("serviceaccount a", "serviceaccount/a", {".metadata.name": "a"}),
    ("quota a --hard=pods=2,cpu=3", "resourcequota/a", {".spec.hard": '{"cpu":"3","pods":"2"}'}),
    (
        "role a --verb=get,list --resource=pods,jobs.batch", "role.rbac.authorization.k8s.io/a",
        {".rules[0].verbs": '["get","list"]', ".rules[1].apiGroups": '["batch"]'},
    ),
    (
        "rolebinding a --role=r --serviceaccount=default:b --user=c",
        "rolebinding.rbac.authorization.k8s.io/a",
        {".roleRef.name": "r", ".subjects[*].kind": "User ServiceAccount"},
    ),
    (
        f"job a --image={IMAGE} -- sleep 1", "job.batch/a",
        {".spec.template.spec.containers[0].command": '["sleep","1"]', ".spec.backoffLimit": "6"},
    ),
    (
        f"cronjob a --image={IMAGE} --schedule=@daily", "cronjob.batch/a",
        {".spec.schedule": "@daily", "..restartPolicy": "OnFailure"},
    ),
    (
        "poddisruptionbudget a --selector=x=y --min-available=50%",
        "poddisruptionbudget.policy/a", {".spec.minAvailable": "50%"},
    ),
    ("service clusterip a --tcp=80:8080", "service/a", {".spec.ports[0].targetPort": "8080"}),
]  # fmt: skip


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize(
    ("words", "name", "fields"), MADE, ids=[" ".join(words.split()[:2]) for words, _, _ in MADE]
)
def test_kubectl_creates_objects_by_arguments(
    kubectl: Kubectl, words: str, name: str, fields: dict[str, str]
) -> None:
    args = words.split()
    assert kubectl("create", *args) == f"{name} created\n"
    assert dict(zip(fields, values(kubectl, name, *fields), strict=True)) == fields
    again = kubectl.run("create", *args)
    assert again.returncode == 1
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("words", "kind", "fields"),
    [
        ("priorityclass {} --value=1000 --description=x", "priorityclass", {".value": "1000"}),
        ("clusterrole {} --verb=get --resource=nodes", "clusterrole", {"..verbs": '["get"]'}),
        (
            "clusterrolebinding {} --clusterrole=r --user=u", "clusterrolebinding",
            {".roleRef.name": "r", ".subjects[0].name": "u"},
        ),
        ("namespace {}", "namespace", {".status.phase": "Active"}),
    ],
    ids=["priorityclass", "clusterrole", "clusterrolebinding", "namespace"],
)  # fmt: skip
def test_kubectl_creates_cluster_scoped_objects(
    kubectl: Kubectl, words: str, kind: str, fields: dict[str, str]
) -> None:
    name = f"{kubectl.namespace}-more"
    assert kubectl("create", *words.format(name).split()).endswith(f"/{name} created\n")
    try:
        found = values(kubectl, f"{kind}/{name}", *fields)
        assert dict(zip(fields, found, strict=True)) == fields
    finally:
        kubectl("delete", kind, name)


def test_a_job_is_created_from_a_cron_job(kubectl: Kubectl) -> None:
    kubectl("create", "cronjob", "a", f"--image={IMAGE}", "--schedule=@daily", "--", "date")
    kubectl("create", "job", "now", "--from=cronjob/a")
    owner, command = values(
        kubectl, "job/now", ".metadata.ownerReferences[0].name",
        ".spec.template.spec.containers[0].command[0]",
    )  # fmt: skip
    assert (owner, command) == ("a", "date")


def test_a_list_is_created_item_by_item(kubectl: Kubectl) -> None:
    items = [config_map("a"), config_map("Wrong"), config_map("b")]
    whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    done = kubectl.run("create", "-f", "-", text=whole)
    assert (done.returncode, done.stdout) == (1, "configmap/a created\nconfigmap/b created\n")
    assert 'The ConfigMap "Wrong" is invalid: metadata.name: Invalid value' in done.stderr


def test_a_name_is_generated(kubectl: Kubectl) -> None:
    made = {**config_map(""), "metadata": {"generateName": "made-"}}
    assert kubectl("create", "-f", "-", text=json.dumps(made)).startswith("configmap/made-")
    assert kubectl("create", "-f", "-", text=json.dumps(made)).startswith("configmap/made-")
    assert kubectl("get", "cm", "-o", "name").count("configmap/made-") == 2


def test_replace_replaces_an_object(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("a", x="1", w="1"))
    uid = values(kubectl, "cm/a", ".metadata.uid")
    assert kubectl("replace", "-f", "-", text=json.dumps(config_map("a", x="2"))).endswith(
        "replaced\n"
    )
    assert values(kubectl, "cm/a", ".metadata.uid", ".data") == [*uid, '{"x":"2"}']
    kubectl("replace", "--force", "-f", "-", text=json.dumps(config_map("a", x="3")))
    assert values(kubectl, "cm/a", ".metadata.uid") != uid
    done = kubectl.run("replace", "-f", "-", text=json.dumps(config_map("none")))
    assert (done.returncode, "NotFound" in done.stderr) == (1, True)


# ---- apply ---------------------------------------------------------------------------------------


def test_apply_keeps_fields_of_others(kubectl: Kubectl) -> None:
    assert kubectl.apply(config_map("a", x="1", w="1")) == "configmap/a created\n"
    kubectl("patch", "cm/a", "--type=merge", "-p", '{"data":{"other":"1"}}')
    assert kubectl.apply(config_map("a", x="1", w="1")) == "configmap/a unchanged\n"
    assert kubectl.apply(config_map("a", x="2")) == "configmap/a configured\n"
    assert values(kubectl, "cm/a", ".data") == ['{"other":"1","x":"2"}']


def test_apply_prunes_objects_that_are_no_longer_listed(kubectl: Kubectl) -> None:
    objects = [config_map("a", x="1"), config_map("b", x="1")]
    for obj in objects:
        obj["metadata"]["labels"] = {"set": "1"}
    kubectl.apply(*objects)
    pruned = kubectl(
        "apply", "--prune", "-l", "set=1", "--prune-allowlist=core/v1/ConfigMap", "-f", "-",
        text=json.dumps(objects[0]),
    )  # fmt: skip
    assert pruned == "configmap/a unchanged\nconfigmap/b pruned\n"


def test_server_side_apply_changes_only_its_own_fields(kubectl: Kubectl) -> None:
    def apply(manager: str, obj: Object, *more: str) -> tuple[int, str, str]:
        args = ("apply", "--server-side", f"--field-manager={manager}", *more, "-f", "-")
        done = kubectl.run(*args, text=json.dumps(obj))
        return done.returncode, done.stdout, done.stderr

    applied = (0, "configmap/a serverside-applied\n", "")
    assert apply("one", config_map("a", x="1", w="1")) == applied
    assert apply("two", config_map("a", x="1", z="1")) == applied
    code, _, complaint = apply("two", config_map("a", x="2", z="1"))
    assert code == 1
    assert 'Apply failed with 1 conflict: conflict with "one": .data.x' in complaint
    assert apply("two", config_map("a", x="2", z="1"), "--force-conflicts") == applied
    assert apply("one", config_map("a", w="1")) == applied
    assert values(kubectl, "cm/a", ".data") == ['{"w":"1","x":"2","z":"1"}']
    assert apply("two", config_map("a", z="1")) == applied
    assert values(kubectl, "cm/a", ".data") == ['{"w":"1","z":"1"}']


def test_client_side_apply_can_be_migrated_to_server_side_apply(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("a", x="1", w="1"))
    taken = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kubectl(*taken, text=json.dumps(config_map("a", x="1")))
    assert values(kubectl, "cm/a", ".data") == ['{"x":"1"}']


def test_the_exit_code_of_diff_shows_whether_anything_would_change(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("a", x="1"))
    same, other = json.dumps(config_map("a", x="1")), json.dumps(config_map("a", x="2"))
    for way in ((), ("--server-side", "--force-conflicts")):
        assert kubectl.run("diff", *way, "-f", "-", text=same).returncode == 0
        done = kubectl.run("diff", *way, "-f", "-", text=other)
        assert done.returncode == 1
        assert '-  x: "1"\n+  x: "2"\n' in done.stdout
    absent = kubectl.run("diff", "-f", "-", text=json.dumps(config_map("b")))
    assert absent.returncode == 1
    assert kubectl.run("diff", "-f", "-", text="kind: Dragon").returncode > 1
    assert kubectl("get", "cm", "-o", "name").split() == ["configmap/a", f"configmap/{ROOT_CA}"]
    assert values(kubectl, "cm/a", ".data.x") == ["1"]


# ---- patch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "patch", "data"),
    [
        ("json", '[{"op":"move","from":"/data/x","path":"/data/z"}]', '{"w":"1","z":"1"}'),
        ("merge", '{"data":{"x":null,"z":"1"}}', '{"w":"1","z":"1"}'),
        ("strategic", '{"data":{"x":null,"z":"1"}}', '{"w":"1","z":"1"}'),
        ("strategic", '{"data":{"$patch":"replace","z":"1"}}', '{"z":"1"}'),
    ],
    ids=["json", "merge", "strategic", "strategic with a directive"],
)  # fmt: skip
def test_every_type_of_patch_changes_the_named_fields(
    kubectl: Kubectl, way: str, patch: str, data: str
) -> None:
    kubectl.apply(config_map("a", x="1", w="1"))
    assert kubectl("patch", "cm/a", f"--type={way}", "-p", patch) == "configmap/a patched\n"
    assert values(kubectl, "cm/a", ".data") == [data]
    again = kubectl("patch", "cm/a", "--type=merge", "-p", f'{{"data":{data}}}')
    assert again == "configmap/a patched (no change)\n"


def test_lists_are_merged_by_their_keys_or_replaced(kubectl: Kubectl) -> None:
    cron = {
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"},
        "spec": {"schedule": "@daily", "jobTemplate": {"spec": job("a")["spec"]}},
    }  # fmt: skip
    kubectl.apply(cron)

    def patch_containers(way: str, container: Object) -> str:
        template = {"spec": {"template": {"spec": {"containers": [container]}}}}
        kubectl(
            "patch",
            "cronjob/a",
            f"--type={way}",
            "-p",
            json.dumps({"spec": {"jobTemplate": template}}),
        )
        path = ".spec.jobTemplate.spec.template.spec.containers[*]"
        return " ".join(values(kubectl, "cronjob/a", f"{path}.name", f"{path}.image"))

    assert patch_containers("strategic", {"name": "more", "image": "b"}) == f"more main b {IMAGE}"
    assert patch_containers("strategic", {"name": "main", "image": "c"}) == "more main b c"
    assert patch_containers("merge", {"name": "only", "image": "d"}) == "only d"


def test_the_status_is_patched_only_by_its_subresource(kubectl: Kubectl) -> None:
    kubectl.apply(job("a", suspend=True))
    wanted = '{"status":{"active":3}}'
    kubectl("patch", "job/a", "--type=merge", "-p", wanted)
    assert values(kubectl, "job/a", ".status.active") == [""]
    kubectl("patch", "job/a", "--subresource=status", "--type=merge", "-p", wanted)
    assert values(kubectl, "job/a", ".status.active") == ["3"]


@pytest.mark.parametrize(
    ("way", "patch", "complaint"),
    [
        ("json", '[{"op":"test","path":"/data/x","value":"2"}]', "the server rejected our request"),
        ("json", '[{"op":"remove","path":"/data/none"}]', "the server rejected our request"),
        ("merge", '{"data":{"x":1}}', "cannot unmarshal number into Go"),
        ("merge", '{"metadata":{"name":"b"}}', "does not match the name on the URL"),
        ("merge", '{"metadata":{"uid":"b"}}', "metadata.uid: Invalid value"),
        ("strategic", '{"metadata":{"labels":{"a b":"c"}}}', "metadata.labels: Invalid value"),
    ],
)
def test_an_invalid_patch_changes_nothing(
    kubectl: Kubectl, way: str, patch: str, complaint: str
) -> None:
    kubectl.apply(config_map("a", x="1"))
    before = kubectl.get("cm/a")
    done = kubectl.run("patch", "cm/a", f"--type={way}", "-p", patch)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert kubectl.get("cm/a") == before


# ---- commands that patch -------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["label", "annotate"])
def test_labels_and_annotations_are_added_changed_and_removed(kubectl: Kubectl, verb: str) -> None:
    kubectl("create", "cm", "a")
    kubectl("create", "cm", "b")
    kubectl(verb, "cm", "--all", "example.com/x=1")
    done = kubectl.run(verb, "cm/a", "example.com/x=2")
    assert (done.returncode, "--overwrite is false" in done.stderr) == (1, True)
    kubectl(verb, "cm/a", "example.com/x=2", "--overwrite")
    kubectl(verb, "cm/b", "example.com/x-")
    assert kubectl(verb, "cm/a", "--list") == "example.com/x=2\n"
    assert kubectl(verb, "cm/b", "--list") == ""


def test_an_image_is_set_where_it_is_mutable(kubectl: Kubectl) -> None:
    kubectl.apply(job("a", suspend=True))
    kubectl("create", "cronjob", "a", "--image=a", "--schedule=@daily")
    kubectl.apply(here(kubectl, pod("a")))
    assert kubectl("set", "image", "pod/a", "main=b") == "pod/a image updated\n"
    assert kubectl("set", "image", "cronjob/a", "*=b") == "cronjob.batch/a image updated\n"
    done = kubectl.run("set", "image", "job/a", "main=b")
    assert done.returncode == 1
    assert "field is immutable" in done.stderr
    assert values(kubectl, "job/a", "..image") == [IMAGE]


def test_the_resources_of_a_suspended_job_can_still_be_set(kubectl: Kubectl) -> None:
    kubectl.apply(job("waits", suspend=True), job("goes"))
    limits = ("--limits=cpu=2", "--requests=cpu=1")
    kubectl("set", "resources", "job/waits", *limits)
    assert values(kubectl, "job/waits", "..resources.limits.cpu") == ["2"]
    done = kubectl.run("set", "resources", "job/goes", *limits)
    assert done.returncode == 1
    assert "field is immutable" in done.stderr


def test_a_pod_is_resized_within_its_class(kubectl: Kubectl) -> None:
    kubectl.apply(*(here(kubectl, obj) for obj in (pod("sized", cpu="1"), pod("sizeless"))))

    def resize(name: str, cpu: str) -> subprocess.CompletedProcess[str]:
        sizes = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
        patch = {"spec": {"containers": [{"name": "main", "resources": sizes}]}}
        return kubectl.run("patch", "pod", name, "--subresource=resize", "-p", json.dumps(patch))

    assert resize("sized", "2").stdout == "pod/sized patched\n"
    assert values(kubectl, "pod/sized", "..requests.cpu") == ["2"]
    done = resize("sizeless", "1")
    assert done.returncode == 1
    assert "Pod QOS Class may not change as a result of resizing" in done.stderr


def test_kubectl_debug_adds_an_ephemeral_container(kubectl: Kubectl) -> None:
    kubectl.apply(here(kubectl, pod("a")))
    kubectl("debug", "a", "--image=registry.example/debug:1", "--container=look", "--target=main")
    assert values(kubectl, "pod/a", ".spec.ephemeralContainers[*].name") == ["look"]
    again = kubectl.run("debug", "a", "--image=registry.example/debug:1", "--container=main")
    assert (again.returncode, "Duplicate value" in again.stderr) == (1, True)


def test_an_object_is_edited_in_an_editor(
    kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl.apply(config_map("a", x="1"))
    monkeypatch.setenv("KUBE_EDITOR", "true")
    assert kubectl.run("edit", "cm/a").stderr == "Edit cancelled, no changes made.\n"
    monkeypatch.setenv("KUBE_EDITOR", "sed -i 's/^  x: .*/  x: edited/'")
    assert kubectl("edit", "cm/a") == "configmap/a edited\n"
    assert values(kubectl, "cm/a", ".data.x") == ["edited"]
    monkeypatch.setenv("KUBE_EDITOR", "sed -i 's/^  name: .*/  name: b/'")
    done = kubectl.run("edit", "cm/a")
    assert done.returncode == 1
    assert values(kubectl, "cm/a", ".data.x") == ["edited"]


def test_what_has_no_scale_cannot_be_scaled(kubectl: Kubectl) -> None:
    kubectl.apply(job("a", suspend=True))
    done = kubectl.run("scale", "job/a", "--replicas=3")
    assert done.returncode == 1
    assert "the server could not find the requested resource" in done.stderr


# ---- refusals ------------------------------------------------------------------------------------

POD_HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            POD_HEAD + "  containers: [{name: a, image: x, colour: red}]",
            'strict decoding error: unknown field "spec.containers[0].colour"',
        ),
        (
            POD_HEAD + "  containers: [{name: a, image: x}]\n  restartPolicy: Sometimes",
            'The Pod "a" is invalid: spec.restartPolicy: Unsupported value: "Sometimes": '
            'supported values: "Always", "OnFailure", "Never"',
        ),
        (
            POD_HEAD + "  containers: [{name: A, image: x}, {name: b}]",
            'The Pod "a" is invalid: \n* spec.containers[0].name: Invalid value: "A"',
        ),
        (POD_HEAD + "  containers: {name: a}", "cannot unmarshal object into Go"),
        (
            POD_HEAD + "  containers: [{name: a, image: x, resources: {requests: {cpu: lots}}}]",
            "quantities must match the regular expression",
        ),
        ("apiVersion: v1\nkind: ConfigMap", "name or generateName is required"),
        (
            "apiVersion: v2\nkind: Pod\nmetadata: {name: a}",
            'no matches for kind "Pod" in version "v2"',
        ),
        ("kind: Pod\nmetadata: {name: a}", "apiVersion not set"),
        ("a: [", "error converting YAML to JSON"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: other}",
            "does not match the namespace",
        ),
    ],
)
def test_a_bad_manifest_is_refused_with_the_reason(
    kubectl: Kubectl, text: str, complaint: str
) -> None:
    done = kubectl.run("create", "-f", "-", text=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr


def test_unknown_fields_get_warnings_or_are_ignored(kubectl: Kubectl) -> None:
    text = POD_HEAD + "  containers: [{name: a, image: x, colour: red}]"
    done = kubectl.run("create", "--validate=warn", "-f", "-", text=text)
    assert (done.returncode, done.stdout) == (0, "pod/a created\n")
    assert done.stderr == 'Warning: unknown field "spec.containers[0].colour"\n'
    quiet = kubectl.run(
        "apply", "--validate=ignore", "-f", "-", text=text.replace("name: a}", "name: b}")
    )
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "pod/b created\n", "")


def test_nothing_is_created_in_a_missing_namespace(kubectl: Kubectl) -> None:
    done = kubectl.run("create", "cm", "a", "--namespace=none")
    assert done.returncode == 1
    assert 'namespaces "none" not found' in done.stderr
