"""`deploy/` by the tools of its engines: helm renders the chart, kubeconform checks it, compose resolves its files.

No engine and no cluster runs here. `make test-scale` makes the tools (scripts/setup_deploy_tools); without them these
are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.settings import load
from proxy.access.security import check_bind

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy/helm/rlproxy"
TOOLS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlproxy/deploy-tools"
KUBERNETES = ("1.27.0", "1.31.0", "1.37.0")
VALUES = ("minimal", "full", "relays")
GIVEN = {
    "MODEL": "Qwen/Qwen3-8B", "RLPROXY_API_KEY": "a" * 32, "RLPROXY_ADMIN_KEY": "b" * 32,
    "OAUTH2_PROXY_IMAGE": "example/oauth2-proxy:v7.8.1", "OIDC_ISSUER": "https://id.example.org",
    "OIDC_CLIENT_ID": "rlproxy", "OIDC_CLIENT_SECRET": "c" * 32, "SSO_COOKIE_SECRET": "d" * 32,
    "PAGE_HOST": "rlproxy.example.org", "DATABASE_PASSWORD": "e" * 32,
    "MINIO_IMAGE": "example/minio:latest", "BUCKET_PASSWORD": "f" * 32,
}  # fmt: skip


def needs(name: str) -> pytest.MarkDecorator:
    reason = f"needs {name}, which scripts/setup_deploy_tools builds with Go (make test-scale)"
    return pytest.mark.skipif(not (TOOLS / "bin" / name).is_file(), reason=reason)


pytestmark = pytest.mark.scale


def run(name: str, *arguments: str, fails: bool = False, **environment: str) -> str:
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    done = subprocess.run([TOOLS / "bin" / name, *arguments], capture_output=True, text=True, env=clean, cwd=ROOT)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def template(values: str, *arguments: str, kubernetes: str = KUBERNETES[-1]) -> str:
    file = str(CHART / "ci" / f"{values}.yaml")
    return run(
        "helm", "template", "rlproxy", str(CHART), "-f", file, "-n", "models", "--kube-version", kubernetes, *arguments
    )


def objects(text: str) -> dict[str, dict[str, Any]]:
    return {f"{each['kind']} {each['metadata']['name']}": each for each in yaml.safe_load_all(text) if each}


@needs("helm")
@pytest.mark.parametrize("values", VALUES)
def test_the_chart_is_clean(values: str) -> None:
    assert "0 chart(s) failed" in run(
        "helm", "lint", "--strict", str(CHART), "-f", str(CHART / "ci" / f"{values}.yaml")
    )


@needs("helm")
@needs("kubeconform")
@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("values", VALUES)
def test_kubernetes_takes_what_it_renders(values: str, kubernetes: str, tmp_path: Path) -> None:
    """Every object against the schema of that version, strictly: a member that is misspelt is an error."""
    (tmp_path / "all.yaml").write_text(template(values, kubernetes=kubernetes))
    schemas = str(TOOLS / "schemas" / kubernetes / "{{ .ResourceKind }}{{ .KindSuffix }}.json")
    output = run(
        "kubeconform", "-strict", "-output", "json", "-summary", "-schema-location", schemas, str(tmp_path / "all.yaml")
    )
    summary = json.loads(output)["summary"]
    assert (
        summary["valid"] == len(objects(template(values)))
        and not summary["invalid"] + summary["errors"] + summary["skipped"]
    )


@needs("helm")
def test_rlproxy_takes_what_the_chart_tells_it() -> None:
    rendered = objects(template("full"))
    pod = rendered["StatefulSet rlproxy"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    keys = {"api-key": "a" * 32, "admin-key": "b" * 32}
    environ = {
        each["name"]: keys[each["valueFrom"]["secretKeyRef"]["key"]] if "valueFrom" in each else each["value"]
        for each in container["env"]
    }
    settings = load({"home": "/data", "server.host": "0.0.0.0"}, environ=environ).settings
    check_bind(settings.server)
    assert settings.backend.url == "dns://rlproxy-vllm:8000" and settings.train.start_at == 64
    assert settings.server.sso_proxies == ("10.20.0.0/28",) and settings.server.sso_header == "x-auth-request-email"
    assert set(settings.server.hosts) >= {"rlproxy", "rlproxy.models.svc", "rlproxy.example.org", "rlproxy.lan"}
    assert settings.adapters_dir == Path("/adapters")
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/data", "/adapters", "/models"} == mounts
    grace = pod["terminationGracePeriodSeconds"]
    assert grace >= settings.server.drain_s + settings.server.stop_s + 30 + 10, "the trainer's step, and the store"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    for probe in ("livenessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["path"] == "/healthz", "a pod that is not ready is not to be killed"
    ready = container["readinessProbe"]
    assert settings.server.drain_s > ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]


@needs("helm")
def test_vllm_sees_the_adapters_alone_and_is_seen_by_rlproxy_alone() -> None:
    rendered = objects(template("full"))
    vllm = rendered["Deployment rlproxy-vllm"]["spec"]["template"]["spec"]
    (container,) = vllm["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert mounts["/adapters"]["readOnly"] and "/data" not in mounts
    claims = {each["persistentVolumeClaim"]["claimName"] for each in vllm["volumes"] if "persistentVolumeClaim" in each}
    assert claims == {"rlproxy-adapters", "rlproxy-models"}
    policy = rendered["NetworkPolicy rlproxy-vllm"]["spec"]
    (rule,) = policy["ingress"]
    relay = rendered["StatefulSet rlproxy"]["spec"]["template"]["metadata"]["labels"]
    wanted = rule["from"][0]["podSelector"]["matchLabels"]
    assert wanted.items() <= relay.items() and wanted["app.kubernetes.io/component"] == "relay"
    flags = " ".join(container["args"])
    for flag in (
        "--enable-lora",
        "--max-lora-rank=16",
        "--logprobs-mode=processed_logprobs",
        "--generation-config=vllm",
    ):
        assert flag in flags


@needs("helm")
def test_a_server_of_ones_own_brings_no_other() -> None:
    rendered = objects(template("minimal"))
    assert not [name for name in rendered if "vllm" in name]
    (container,) = rendered["StatefulSet rlproxy"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "RLPROXY_BACKEND__URL", "value": "http://vllm.other:8000"} in container["env"]
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])


@needs("helm")
def test_relays_share_a_database_and_find_every_vllm() -> None:
    rendered = objects(template("relays"))
    relay, vllm = rendered["StatefulSet rlproxy"]["spec"], rendered["Deployment rlproxy-vllm"]["spec"]
    assert (relay["replicas"], vllm["replicas"]) == (3, 4)
    (container,) = relay["template"]["spec"]["containers"]
    secret = {"secretKeyRef": {"name": "rlproxy-database", "key": "url"}}
    assert {"name": "RLPROXY_STORE__URL", "valueFrom": secret} in container["env"]
    assert {"name": "RLPROXY_BACKEND__URL", "value": "dns://rlproxy-vllm:8000"} in container["env"]
    assert rendered["Service rlproxy-vllm"]["spec"]["clusterIP"] == "None"
    (server,) = vllm["template"]["spec"]["containers"]
    assert {"--max-loras=9", "--max-cpu-loras=24"} <= set(server["args"]), "each relay has names of its own"
    assert [claim["metadata"]["name"] for claim in relay["volumeClaimTemplates"]] == ["data"]
    assert "ReadWriteMany" in rendered["PersistentVolumeClaim rlproxy-adapters"]["spec"]["accessModes"]


@needs("helm")
@pytest.mark.parametrize(
    "wrong",
    [
        "image=", "model=", "singleSignOn.proxies={0.0.0.0/0}", "vllm.enabled=false", "replicas=2", "relays=2",
        "drainSeconds=-1", "settings.RLPROXY_STORE__URL=x",
        "settings.RLPROXY_SERVER__HOST=::", "settings.RLPROXY_SERVER__ADMIN_KEY=x", "ingress.enabled=true",
        "vllm.maxCpuLoras=1",
    ],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(wrong: str) -> None:
    """More relays too, where SQLite is the database: one process has it."""
    file = str(CHART / "ci/minimal.yaml")
    more = ("--set", "vllm.url=") if wrong == "vllm.enabled=false" else ()
    error = run("helm", "template", "rlproxy", str(CHART), "-f", file, "--set", wrong, *more, fails=True)
    assert "schema" in error


def composed(*files: str) -> dict[str, Any]:
    names = [argument for file in files for argument in ("-f", file)]
    return dict(json.loads(run("compose", *names, "config", "--format", "json", **GIVEN)))


@needs("compose")
def test_compose_resolves_its_file() -> None:
    services = composed("deploy/compose.yaml")["services"]
    assert services.keys() == {"vllm", "rlproxy"}
    settings = load({"home": "/data", "server.host": "0.0.0.0"}, environ=services["rlproxy"]["environment"]).settings
    assert settings.adapters_dir == Path("/adapters")


@needs("compose")
def test_compose_resolves_single_sign_on() -> None:
    whole = composed("deploy/compose.yaml", "deploy/compose.sso.yaml")
    rlproxy, proxy = whole["services"]["rlproxy"], whole["services"]["sign-in"]
    settings = load({"home": "/data", "server.host": "0.0.0.0"}, environ=rlproxy["environment"]).settings
    address = proxy["networks"]["sign-in"]["ipv4_address"]
    assert settings.server.sso_proxies == (address,) and settings.server.hosts == ("rlproxy", "rlproxy.example.org")
    upstream = proxy["environment"]["OAUTH2_PROXY_UPSTREAMS"]
    assert upstream == f"http://{rlproxy['networks']['sign-in']['ipv4_address']}:8484", (
        "by the network whose address counts"
    )
    assert whole["networks"]["sign-in"]["internal"] and "vllm" not in str(whole["services"]["vllm"].get("networks", {}))


@needs("compose")
def test_compose_resolves_two_relays_on_one_database() -> None:
    services = composed("deploy/compose.yaml", "deploy/compose.relays.yaml")["services"]
    relays = [services[name] for name in ("rlproxy", "rlproxy-2")]
    settings = [load({"home": "/data", "server.host": "0.0.0.0"}, environ=r["environment"]).settings for r in relays]
    assert len({each.store.address for each in settings}) == 1 and settings[0].store.address.startswith("postgresql")
    assert {each.adapters_dir for each in settings} == {Path("/adapters")}
    homes = {volume["source"] for relay in relays for volume in relay["volumes"] if volume["target"] == "/data"}
    assert len(homes) == 2, "each has a spool and a lock of its own"
    assert all("relays" in each.server.hosts for each in settings)


@needs("compose")
def test_compose_resolves_a_bucket() -> None:
    services = composed("deploy/compose.yaml", "deploy/compose.bucket.yaml")["services"]
    rlproxy = services["rlproxy"]
    settings = load({"home": "/data", "server.host": "0.0.0.0"}, environ=rlproxy["environment"]).settings
    assert settings.train.bucket == "s3://rlproxy/home" and settings.adapters_dir == Path("/adapters")
    assert rlproxy["build"]["args"]["EXTRAS"] == "train,postgres,s3"
    assert rlproxy["depends_on"]["make-bucket"]["condition"] == "service_completed_successfully"
    assert "$MINIO_ROOT_PASSWORD" in services["make-bucket"]["command"][0], "the shell of the container reads it"
