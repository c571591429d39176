"""`deploy/`: read as Docker reads it, and held against what rlproxy and vLLM need. No engine runs here."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from config.settings import fields, load
from proxy.access.security import check_bind
from scripts.harness.in_process import Proxy

ROOT = Path(__file__).resolve().parents[1]
GIVEN = {"MODEL": "Qwen/Qwen3-8B", "RLPROXY_API_KEY": "a" * 32, "RLPROXY_ADMIN_KEY": "b" * 32}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)
    return [tuple(line.split(None, 1)) for line in text.replace("\\\n", " ").splitlines() if line.strip()]  # type: ignore[misc]


@pytest.fixture
def services() -> dict[str, Any]:
    text = (ROOT / "deploy/compose.yaml").read_text()
    names = dict(re.findall(r"\$\{(\w+):\?([^}]+)\}", text))
    assert names.keys() == GIVEN.keys(), "each is asked for, with a word on what it is"
    given = re.sub(r"\$\{(\w+):\?[^}]+\}", lambda match: GIVEN[match[1]], text)
    return dict(yaml.safe_load(given)["services"])


def test_the_dockerfile() -> None:
    found = instructions()
    words = [word for word, _ in found]
    by = dict(found)
    assert words[0] == "FROM" and re.fullmatch(r"python:3\.\d+-slim-\w+", found[0][1]), "a pinned line of images"
    assert "ADD" not in words and "MAINTAINER" not in words and words.index("USER") > words.index("RUN")
    assert by["USER"] == "10001", "not root, and a number that Kubernetes can check"
    for word in ("ENTRYPOINT", "CMD", "VOLUME"):
        assert isinstance(json.loads(by[word]), list), f"{word} in exec form: signals reach rlproxy itself"
    for word, rest in found:
        for source in rest.split()[:-1] if word == "COPY" else ():
            assert (ROOT / source).exists(), source
    allowed = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    copied = {source for word, rest in found if word == "COPY" for source in rest.split()[:-1]}
    assert {line[1:] for line in allowed if line.startswith("!")} == copied
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], *wheel["shared-data"]]
    missing = {name.split("/")[0] for name in needed} - copied
    assert not missing, "what the wheel is made of has to be there"


def test_rlproxy_takes_what_the_container_tells_it(services: dict[str, Any]) -> None:
    environ = services["rlproxy"]["environment"]
    settings = load({"home": "/data", "server.host": "0.0.0.0"}, environ=environ).settings
    check_bind(settings.server)
    assert settings.backend.url == "http://vllm:8000" and settings.train.weights == "Qwen/Qwen3-8B"
    assert settings.train.share_gpu and settings.server.hosts == ("rlproxy",)
    assert settings.adapters_dir == Path("/adapters")


def test_vllm_has_what_the_docs_ask_for(services: dict[str, Any]) -> None:
    vllm = services["vllm"]
    flags = " ".join(vllm["command"]).replace("=", " ")
    section = (ROOT / "docs/reference/backends.md").read_text().split("## vLLM")[1].split("##")[0]
    for flag in ("--enable-lora", "--max-lora-rank 16", "--max-loras 3", "--logprobs-mode processed_logprobs",
                 "--enable-sleep-mode", "--generation-config vllm"):  # fmt: skip
        assert flag in flags and flag in section, flag
    for name, value in {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}.items():
        assert vllm["environment"][name] == value and f"{name}={value}" in section
    rlproxy = services["rlproxy"]["volumes"]
    assert "adapters:/adapters:ro" in vllm["volumes"] and "adapters:/adapters" in rlproxy, "one path for both"
    assert "data:/data" in rlproxy and not any("/data" in volume for volume in vllm["volumes"]), (
        "texts are rlproxy's own"
    )
    assert {"/data", "/models", "/adapters"} <= set(json.loads(dict(instructions())["VOLUME"]))
    assert "ports" not in vllm, "its LoRA and sleep routes are nobody's but rlproxy's"
    assert re.search(r":v?\d+\.\d+\.\d+$", vllm["image"]), "pinned"


def test_nothing_listens_to_the_world(services: dict[str, Any]) -> None:
    assert services["rlproxy"]["ports"] == ["127.0.0.1:8484:8484"]
    assert services["rlproxy"]["stop_grace_period"] == "90s" and services["rlproxy"]["init"] is True
    example = (ROOT / "deploy/env.example").read_text()
    assert {line.partition("=")[0] for line in example.splitlines() if re.match(r"\w+=", line)} == GIVEN.keys()
    overlays = [(ROOT / f"deploy/compose.{name}.yaml").read_text() for name in ("sso", "relays", "bucket")]
    asked = set(re.findall(r"\$\{(\w+):\?[^}]+\}", "".join(overlays))) - GIVEN.keys()
    assert {line[1:].partition("=")[0] for line in example.splitlines() if re.match(r"#\w+=", line)} == asked


def test_single_sign_on_is_believed_from_one_address() -> None:
    text = re.sub(r"\$\{(\w+):\?[^}]+\}", r"\1", (ROOT / "deploy/compose.sso.yaml").read_text())
    whole = yaml.safe_load(text)
    proxy, rlproxy = whole["services"]["sign-in"], whole["services"]["rlproxy"]
    environ = rlproxy["environment"]
    settings = load({"home": "/data"}, environ=environ).settings.server
    address = proxy["networks"]["sign-in"]["ipv4_address"]
    assert settings.sso_proxies == (address,) and "PAGE_HOST" in settings.hosts
    told = proxy["environment"]
    assert told["OAUTH2_PROXY_UPSTREAMS"] == f"http://{rlproxy['networks']['sign-in']['ipv4_address']}:8484"
    assert settings.sso_header == "x-forwarded-email" and told["OAUTH2_PROXY_PASS_USER_HEADERS"] == "true"
    assert told["OAUTH2_PROXY_SKIP_AUTH_STRIP_HEADERS"] == "true", "a browser's own header of that name goes no further"
    assert told["OAUTH2_PROXY_PASS_AUTHORIZATION_HEADER"] == told["OAUTH2_PROXY_PASS_BASIC_AUTH"] == "false"
    assert whole["networks"]["sign-in"]["internal"] is True


def test_the_balancer_alone_listens_for_two_relays() -> None:
    text = re.sub(r"\$\{(\w+):\?[^}]+\}", r"\1", (ROOT / "deploy/compose.relays.yaml").read_text())
    services = yaml.safe_load(text)["services"]
    assert services["relays"]["ports"] == ["127.0.0.1:8480:8480"]
    assert not [name for name in ("database", "rlproxy-2") if "ports" in services[name]]
    flags = " ".join(services["vllm"]["command"])
    assert "--max-loras=6" in flags and "--max-cpu-loras=16" in flags, "room for the versions of both"
    settings = load({"home": "/data"}, environ=services["rlproxy"]["environment"]).settings
    assert settings.server.drain_s > 2, "longer than nginx's fail_timeout"


def test_the_bucket_is_this_machines_only() -> None:
    text = re.sub(r"\$\{(\w+):\?[^}]+\}", r"\1", (ROOT / "deploy/compose.bucket.yaml").read_text())
    services = yaml.safe_load(text)["services"]
    assert services["bucket"]["ports"] == ["127.0.0.1:9000:9000"] and "ports" not in services["make-bucket"]
    environ = services["rlproxy"]["environment"]
    settings = load({"home": "/data"}, environ=environ).settings
    assert settings.train.bucket == "s3://rlproxy/home" and "here/rlproxy" in services["make-bucket"]["command"][0]
    assert environ["AWS_SECRET_ACCESS_KEY"] == services["bucket"]["environment"]["MINIO_ROOT_PASSWORD"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(services["rlproxy"]["build"]["args"]["EXTRAS"].split(",")) <= set(extras)


def test_the_chart_is_a_relay_that_drains() -> None:
    """Read as text: helm itself renders it in tests/test_deploy_tools.py."""
    chart = ROOT / "deploy/helm/rlproxy"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values), "each value has a rule, and no other is taken"
    text = (chart / "templates/rlproxy.yaml").read_text()
    assert "kind: StatefulSet" in text and "  replicas: {{ .Values.relays }}" in text and values["relays"] == 1
    for name in re.findall(r"- name: (RLPROXY_\w+)", text):
        key = name.removeprefix("RLPROXY_").lower().replace("__", ".")
        assert key in fields(), name
    assert values["drainSeconds"] > 2 + 5, "longer than two looks of the readiness probe"
    for name in ("image", "model"):
        assert not values[name] and name in schema["required"], "nothing is guessed"


DASHBOARD = json.loads((ROOT / "deploy/grafana/rlproxy.json").read_text())


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return panels + [note["expr"] for note in DASHBOARD["annotations"]["list"]]


async def test_each_metric_and_label_of_the_dashboard_is_in_metrics(proxy: Proxy) -> None:
    """After a request and a rating. Of counters that nothing has happened to yet, the family alone is there."""
    response = await proxy.chat("hello", stream=True)
    await response.read()
    await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating="good")
    async with proxy.http.get("/metrics") as answer:
        families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    told: dict[str, set[str]] = {}
    for family in families.values():
        names = {sample.name for sample in family.samples}
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
        told |= {name: {label for sample in family.samples for label in sample.labels} for name in names}
    assert expressions()
    for text in expressions():
        names = set(re.findall(r"\brlproxy_\w+", text))
        assert names and names <= told.keys(), (text, names - told.keys())
        labels = {label for listed in re.findall(r"\bby \(([^)]*)\)", text) for label in re.split(r",\s*", listed)}
        labels |= set(re.findall(r"(\w+)=~?\"", text))
        for name in names:
            if told[name]:
                assert labels - {"job", "le"} <= told[name], (text, labels - told[name])


def test_the_dashboard_is_laid_out() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__interval", "__range", "__all"}
    assert used == variables
