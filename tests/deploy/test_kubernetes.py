"""The manifests: references resolve, the API server would take them, what they start exists and is as safe as said."""

import copy
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from loads import needed

from everywatt.cli.agent import command
from everywatt.fleet.options import combine

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
AGENT = KUBERNETES / "agent"
OVERLAYS = AGENT / "overlays"
FOLDERS = [AGENT / "base", OVERLAYS / "nvidia", OVERLAYS / "jetson-small", AGENT / "monitor", KUBERNETES / "stress"]
FOLDERS.append(KUBERNETES / "stress-gpu")
VARIANTS = {"base": "plain", "nvidia": "nvidia", "jetson-small": "small"}
WITHOUT_NAMESPACE = ("Namespace", "RuntimeClass")
LISTED = ("resources", "patches", "images", "namespace", "configMapGenerator", "generatorOptions")


def patched(document, operations):
    """RFC 6902, the operations that are used: add, replace, remove."""
    document = copy.deepcopy(document)
    for operation in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place = document
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            if last == "-":
                place.append(operation["value"])
                continue
            last = int(last)
        if operation["op"] == "remove":
            del place[last]
        else:
            assert operation["op"] == "add" or last in place, f"nothing to replace: {operation}"
            place[last] = operation["value"]
    return document


def resources(folder: Path):
    """What `kubectl kustomize` gives, as far as these folders need it."""
    rules = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(rules) - {"apiVersion", "kind"} <= set(LISTED), "the test knows no more"
    found = []
    for name in rules["resources"]:
        path = (folder / name).resolve()
        found += resources(path) if path.is_dir() else [one for one in yaml.safe_load_all(path.read_text()) if one]
    for rule in rules.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in rule["files"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": rule["name"]}, "data": data})
    for rule in rules.get("patches", ()):
        wanted = (rule["target"]["kind"], rule["target"]["name"])
        targets = [i for i, one in enumerate(found) if (one["kind"], first_name(one)) == wanted]
        assert len(targets) == 1, f"{folder}: the patch {rule['path']} has nothing to change"
        found[targets[0]] = patched(found[targets[0]], json.loads((folder / rule["path"]).read_text()))
    for one in found:
        if "namespace" in rules and one["kind"] not in WITHOUT_NAMESPACE:
            one["metadata"]["namespace"] = rules["namespace"]
        for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            for rule in rules.get("images", ()):
                if container["image"] == rule["name"]:
                    container["image"] = f"{rule['newName']}:{rule['newTag']}"
    return found


def first_name(one) -> str:
    """A patch may give another name; later patches still mean it by the first one."""
    return one["metadata"]["name"].replace("-nvidia", "").replace("-small", "")


def daemon_set(folder: str):
    path = AGENT / "base" if folder == "base" else OVERLAYS / folder
    (found,) = [one for one in resources(path) if one["kind"] == "DaemonSet"]
    return found


def pod_of(folder: str):
    return daemon_set(folder)["spec"]["template"]["spec"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_api_server_would_take_them(folder):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    found = resources(folder)
    assert found
    for one in found:
        if one["kind"] == "ServiceMonitor":
            continue  # not Kubernetes' own: see below
        kubernetes_validate.validate(one, "1.30", strict=True)
        wrong = {**one, "nonsense": 1}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, "1.30", strict=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_kustomize_makes_the_same_of_them(folder):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr

    def by_name(documents):
        return {(one["kind"], one["metadata"]["name"]): one for one in documents}

    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(resources(folder))


@pytest.mark.parametrize("folder", VARIANTS)
def test_what_a_pod_starts_is_there(folder):
    (container,) = pod_of(folder)["containers"]
    verb, *words = [word.replace("$(NODE_NAME)", "node1") for word in container["args"]]
    assert verb == "agent"
    given = command.make_context("agent", list(words)).params
    flags = {name: value for name, value in given.items() if value not in (None, ()) and name not in ("check", "quiet")}
    options = combine(flags, flags.pop("config", None))
    assert options.instance == "node1"
    (state,) = [mount for mount in container["volumeMounts"] if mount["name"] == "state"]
    assert str(options.state) == state["mountPath"] and not state.get("readOnly")
    mounts = {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    for file in (options.cert, options.key, options.token_file, options.remote_write_token_file):
        assert file is None or file.parent in mounts, file
    environment = {one["name"]: one.get("value") for one in container["env"]}
    for name in ("EVERYWATT_SYS", "EVERYWATT_PROC"):
        assert Path(environment[name]) in mounts
    assert "NODE_NAME" in environment
    if folder == "jetson-small":
        assert options.small and options.listen is None and options.remote_write and options.cert is None
        assert "ports" not in container and "readinessProbe" not in container
        assert container["resources"]["limits"]["memory"] == "64Mi"
    else:
        port = container["ports"][0]["containerPort"]
        assert options.listen == f"0.0.0.0:{port}" and options.cert and options.key and options.token_file


@pytest.mark.parametrize("folder", VARIANTS)
def test_a_pod_has_no_more_rights_than_it_needs(folder):
    pod = pod_of(folder)
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"]} and not rights.get("privileged")
    assert rights["allowPrivilegeEscalation"] is False and rights["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False and not pod.get("hostNetwork") and not pod.get("hostIPC")
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"state", "tmp"}
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}


def test_variants_share_a_cluster():
    """Each node has one of them, and their selectors do not meet."""
    found = {folder: daemon_set(folder) for folder in VARIANTS}
    assert len({one["metadata"]["name"] for one in found.values()}) == 3
    for folder, one in found.items():
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels["everywatt/variant"] == VARIANTS[folder]
    wanted = pod_of("base")["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = wanted["nodeSelectorTerms"]
    away = {(rule["key"], rule["operator"], *rule["values"]) for rule in term["matchExpressions"]}
    taken = {
        (key, "NotIn", value)
        for folder in ("nvidia", "jetson-small")
        for key, value in pod_of(folder)["nodeSelector"].items()
        if not key.startswith("kubernetes.io/")
    }
    assert away == taken
    assert pod_of("nvidia")["runtimeClassName"] == "nvidia"
    assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"} in pod_of("nvidia")["containers"][0]["env"]
    (runtime,) = [one for one in resources(OVERLAYS / "nvidia") if one["kind"] == "RuntimeClass"]
    assert runtime["metadata"]["name"] == runtime["handler"] == "nvidia"


def test_nobody_may_ask_the_api_server_except_prometheus():
    base = resources(AGENT / "base")
    assert not [one for one in base if one["kind"] in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")]
    (account,) = [one for one in base if one["kind"] == "ServiceAccount"]
    assert account["automountServiceAccountToken"] is False
    assert pod_of("base")["serviceAccountName"] == account["metadata"]["name"]
    (role,) = [one for one in resources(AGENT / "monitor") if one["kind"] == "Role"]
    for rule in role["rules"]:
        assert set(rule["verbs"]) == {"get", "list", "watch"}
        assert set(rule["resources"]) <= {"services", "endpoints", "pods", "endpointslices"}, "no secrets"


def test_prometheus_would_find_the_agents():
    (monitor,) = [one for one in resources(AGENT / "monitor") if one["kind"] == "ServiceMonitor"]
    (service,) = [one for one in resources(AGENT / "base") if one["kind"] == "Service"]
    pod = daemon_set("base")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    spec = monitor["spec"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert spec["namespaceSelector"]["matchNames"] == [service["metadata"]["namespace"]]
    assert spec["jobLabel"] in service["metadata"]["labels"]
    assert service["metadata"]["labels"][spec["jobLabel"]] == "everywatt", "as in remote write"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = spec["endpoints"]
    (port,) = service["spec"]["ports"]
    assert endpoint["port"] == port["name"] and port["targetPort"] == container["ports"][0]["name"]
    assert (endpoint["path"], endpoint["scheme"], endpoint["honorTimestamps"]) == ("/metrics", "https", True)
    # The name in the certificate is one that the agent answers to, and the secrets are the ones that it mounts.
    assert f"--name={endpoint['tlsConfig']['serverName']}" in container["args"]
    secrets = {one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one}
    assert secrets == {
        endpoint["tlsConfig"]["ca"]["secret"]["name"],
        endpoint["authorization"]["credentials"]["name"],
    }


def test_the_sign_of_life_is_a_file_that_the_agent_keeps_young(tmp_path):
    probe = pod_of("base")["containers"][0]["livenessProbe"]["exec"]["command"]
    assert probe[:2] == ["/bin/sh", "-c"]
    script = probe[2].replace("/var/lib/everywatt-agent", shlex.quote(str(tmp_path)))
    state = tmp_path / "state.json"

    def alive() -> bool:
        return subprocess.run(["/bin/sh", "-c", script], capture_output=True).returncode == 0

    assert not alive(), "there is none yet"
    state.write_text("{}")
    assert alive()
    subprocess.run(["touch", "-d", "5 minutes ago", str(state)], check=True)
    assert not alive()


def test_the_job_has_its_program():
    found = {one["kind"]: one for one in resources(KUBERNETES / "stress")}
    (program,) = [one for one in found["Job"]["spec"]["template"]["spec"]["volumes"] if "configMap" in one]
    assert program["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert "program.toml" in found["ConfigMap"]["data"]


def test_the_load_of_a_card_asks_for_one():
    from everywatt.stress import load_program

    (job,) = [one for one in resources(KUBERNETES / "stress-gpu") if one["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["runtimeClassName"] == "nvidia" and container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "compute" in {one["name"]: one["value"] for one in container["env"]}["NVIDIA_DRIVER_CAPABILITIES"]
    assert load_program(KUBERNETES / "stress-gpu" / "program.toml")


def test_the_schemas_are_here():
    import importlib.util

    needed(importlib.util.find_spec("kubernetes_validate"), "kubernetes-validate is not installed")
