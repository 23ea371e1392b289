"""Compose file, image and Kubernetes manifests fit the program that they run."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from common.settings import GatewaySettings, RunnerSettings
from deploy import nginx
from deploy.cli import cli
from deploy.readme import all_metrics
from gateway.server import AFTER_WINDOW_S
from runner.__main__ import DRAIN_SLACK_S
from runner.worker import HAND_OVER_LIMIT_S
from tests.support import manifests
from tests.support.manifests import COMPOSE, DOCKERFILE, EVERY_VARIABLE, K8S, ROOT, Json

OTHERS = {"STEADYRUN_OPSPILOT_MODEL"}  # read by a graph
OF_COMMANDS = {
    *("STEADYRUN_OPSPILOT_MODEL", "STEADYRUN_OPSPILOT_DELAY_MS", "STEADYRUN_OPSPILOT_RELAPSE_S"),
    "STEADYRUN_OPSPILOT_CONTEXT_TOKENS",
    *("STEADYRUN_URL", "STEADYRUN_TOKEN", "STEADYRUN_LISTEN", "STEADYRUN_IMAGE"),
}
ROLES = ("gateway", "runner")
LEAVING_S = 3  # closing connections, ending the interpreter
SECRET_NAMES = re.compile(r"PASSWORD|SECRET|TOKEN|_URL$")
SECRETS = {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "STEADYRUN_JWT_SECRET", "GRAFANA_PASSWORD"}


def longest_end_s(settings: Any) -> float:
    """From SIGTERM to the exit, at most."""
    if isinstance(settings, GatewaySettings):
        return settings.drain_delay_s + settings.drain_window_s + AFTER_WINDOW_S + 1 + LEAVING_S
    assert isinstance(settings, RunnerSettings)
    return 2 * settings.drain_timeout_s + HAND_OVER_LIMIT_S + DRAIN_SLACK_S + LEAVING_S


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# docker-compose.yml


@pytest.mark.parametrize("role", ROLES)
def test_compose_waits_for_the_longest_drain(role: str) -> None:
    service = manifests.compose()[role]
    settings = manifests.settings_of(role, service["environment"])
    assert seconds(service["stop_grace_period"]) >= longest_end_s(settings)


@pytest.mark.parametrize("role", ROLES)
def test_compose_sets_only_settings_that_exist(role: str) -> None:
    names = set(manifests.compose()[role]["environment"])
    assert names - EVERY_VARIABLE - OTHERS == set()


def test_the_image_sets_only_settings_that_exist() -> None:
    named = {n for n in manifests.image_environment() if n.startswith("STEADYRUN_")}
    assert named - EVERY_VARIABLE == set()
    assert {"STEADYRUN_GATEWAY_HOST", "STEADYRUN_METRICS_PORT"} <= named


def test_compose_has_no_password_of_its_own() -> None:
    for name, service in manifests.compose().items():
        for variable, value in (service.get("environment") or {}).items():
            if SECRET_NAMES.search(variable) and value is not None and "://" not in value:
                assert re.fullmatch(r"\$\{[A-Z_]+:\?.+\}", value), (name, variable)
    for password in re.findall(r"://\w*:([^@]*)@", COMPOSE.read_text()):
        assert password.startswith("${"), password
        assert ":?" in password


def test_secrets_are_made_once_and_only_for_the_owner(tmp_path: Path) -> None:
    file = tmp_path / "env"
    make = ["sh", str(ROOT / "deploy" / "secrets.sh"), str(file)]
    subprocess.run(make, check=True)
    first = file.read_text()
    subprocess.run(make, check=True)
    assert file.read_text() == first
    assert file.stat().st_mode & 0o777 == 0o600
    made = dict(line.split("=", 1) for line in first.splitlines())
    assert set(made) == SECRETS == set(re.findall(r"\$\{([A-Z_]+):\?run", COMPOSE.read_text()))
    assert len(set(made.values())) == len(made)
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in made.values())


def test_compose_publishes_ports_of_this_machine_alone_by_default() -> None:
    ports = [p for service in manifests.compose().values() for p in service.get("ports", [])]
    assert ports
    assert all(re.match(r"\$\{[A-Z_]+:-127\.0\.0\.1:\d+\}:\d+$", port) for port in ports)


def test_every_service_is_watched_and_started_again() -> None:
    for name, service in manifests.compose().items():
        assert service["restart"].startswith(("unless-stopped", "on-failure")), name
        assert service["logging"]["options"]["max-size"], name
        assert service["healthcheck"].get("test") or name == "migrate", name


def test_servers_are_reached_from_inside_alone() -> None:
    services = manifests.compose()
    assert manifests.read(COMPOSE)["networks"]["servers"] == {"internal": True}
    for name in ("postgres", "valkey"):
        assert services[name]["networks"] == ["servers"]
        assert "ports" not in services[name]


def test_nothing_starts_before_what_it_needs() -> None:
    services = manifests.compose()
    for role in ROLES:
        needed = services[role]["depends_on"]
        assert needed["migrate"]["condition"] == "service_completed_successfully"
        assert needed["valkey"]["condition"] == "service_healthy"
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["nginx"]["depends_on"]["gateway"]["condition"] == "service_healthy"


@pytest.mark.parametrize(
    ("files", "template"),
    [
        (["docker-compose.yml"], nginx.PLAIN),
        (["docker-compose.yml", "deploy/docker-compose.tls.yml"], nginx.TLS),
    ],
)
def test_compose_fills_in_all_that_nginx_template_asks_for(files: list[str], template: str) -> None:
    values: dict[str, str] = {}
    volumes: list[str] = []
    for name in files:
        service = manifests.read(ROOT / name)["services"]["nginx"]
        values |= service["environment"]
        volumes = service["volumes"]
    text = nginx.render(template, values)
    assert "server gateway:8000 resolve" in text
    assert any(f"nginx/{template}:" in volume for volume in volumes)
    # envsubst fills in every variable of the environment, so none may be called as one of nginx's
    assert not {name for name in values if f"${name}" in nginx.template(template)}


def test_connections_of_the_default_scale_fit_into_postgres() -> None:
    services = manifests.compose()
    found = re.search(r"max_connections=(\d+)", " ".join(services["postgres"]["command"]))
    assert found
    gateway = manifests.settings_of("gateway", {})
    runner = manifests.settings_of("runner", {})
    assert isinstance(gateway, GatewaySettings)
    assert isinstance(runner, RunnerSettings)
    of_a_runner = runner.runner_pool_size + runner.checkpoint_pool_size + 1
    assert 8 * gateway.gateway_pool_size + 8 * of_a_runner <= int(found[1])


# images


def images() -> list[str]:
    used = [str(service.get("image")) for service in manifests.compose().values()]
    return [image for image in used if not image.startswith("${")] + re.findall(
        r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE
    )


def test_images_have_a_version_and_name_no_registry() -> None:
    for image in images():
        name, _, tag = image.replace("${PYTHON}", "3.13").partition(":")
        assert re.match(r"v?\d", tag), image
        assert "." not in name.split("/")[0], image


def test_the_image_runs_as_nobody_in_particular_and_knows_whether_it_is_well() -> None:
    text = DOCKERFILE.read_text()
    last = text.split("\nFROM ")[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert 'ENTRYPOINT ["steadyrun"]' in last
    assert "pip install" not in last, "nothing is built in the stage that is shipped"


def test_the_image_has_a_python_that_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.search(r"^ARG PYTHON=3\.(\d+)$", DOCKERFILE.read_text(), re.MULTILINE)
    lowest, above = re.findall(r"3\.(\d+)", project["requires-python"])
    assert found
    assert int(lowest) <= int(found[1]) < int(above)


def test_the_image_is_made_of_all_that_its_code_needs() -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], "pyproject.toml"} <= kept
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= kept


def test_only_commands_that_exist_are_run() -> None:
    known = {command.callback.__name__ for command in cli.registered_commands if command.callback}
    used = {
        service["command"][0]
        for name, service in manifests.compose().items()
        if name in ("migrate", *ROLES)
    }
    for kind in ("Deployment", "Job"):
        for workload in manifests.of_kind(kind).values():
            used |= {c["args"][0] for c in manifests.pod(workload)["containers"]}
    used |= set(re.findall(r'^CMD \["(\w+)"\]', DOCKERFILE.read_text(), re.MULTILINE))
    assert used == {"migrate", "gateway", "runner"}
    assert used <= known


# Kubernetes


def workloads() -> list[Json]:
    return [*manifests.of_kind("Deployment").values(), *manifests.of_kind("Job").values()]


def containers() -> list[Json]:
    return [c for workload in workloads() for c in manifests.pod(workload)["containers"]]


def labels_of(workload: Json) -> dict[str, str]:
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def environment_of(container: Json) -> dict[str, str | None]:
    own = {e["name"]: e.get("value") for e in container["env"]}
    shared = manifests.generated_settings() if "envFrom" in container else {}
    return {**manifests.image_environment(), **shared, **own}


@pytest.mark.parametrize("role", ROLES)
def test_kubernetes_waits_for_the_longest_drain(role: str) -> None:
    pod = manifests.pod(manifests.of_kind("Deployment")[f"steadyrun-{role}"])
    settings = manifests.settings_of(role, environment_of(pod["containers"][0]))
    assert pod["terminationGracePeriodSeconds"] >= longest_end_s(settings)


def test_a_gateway_that_leaves_serves_until_the_proxies_have_heard_of_it() -> None:
    assert float(manifests.generated_settings()["STEADYRUN_DRAIN_DELAY_S"]) >= 5


def test_kubernetes_sets_only_settings_that_exist() -> None:
    named = set(manifests.generated_settings()) | {
        e["name"] for c in containers() for e in c["env"]
    }
    assert named - EVERY_VARIABLE == set()


def test_kubernetes_keeps_secrets_in_the_secret() -> None:
    for container in containers():
        for entry in container["env"]:
            if SECRET_NAMES.search(entry["name"]):
                assert entry["valueFrom"]["secretKeyRef"]["name"] == "steadyrun"
    assert not manifests.of_kind("Secret")


def test_pods_have_no_rights_and_bounded_memory() -> None:
    for workload in workloads():
        pod = manifests.pod(workload)
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
    for container in containers():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}, "a throttled one looks dead"


def test_probes_and_services_name_ports_that_are_open() -> None:
    for container in containers():
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [container[p] for p in container if p.endswith("Probe")]
        asked = {(probe.get("httpGet") or probe["tcpSocket"])["port"] for probe in probes}
        assert asked <= ports
        assert probes or container["name"] == "migrate"
    service = manifests.of_kind("Service")["steadyrun-gateway"]
    assert service["spec"]["ports"][0]["targetPort"] == "http"


def test_selectors_find_the_pods_that_they_are_for() -> None:
    pods = [labels_of(workload) for workload in workloads()]

    def found(selector: dict[str, str]) -> int:
        return sum(selector.items() <= labels.items() for labels in pods)

    for deployment in manifests.of_kind("Deployment").values():
        assert found(deployment["spec"]["selector"]["matchLabels"]) == 1
        for spread in manifests.pod(deployment)["topologySpreadConstraints"]:
            assert spread["labelSelector"] == deployment["spec"]["selector"]
    for budget in manifests.of_kind("PodDisruptionBudget").values():
        assert found(budget["spec"]["selector"]["matchLabels"]) == 1
    for policy in manifests.of_kind("NetworkPolicy").values():
        assert found(policy["spec"]["podSelector"]["matchLabels"]) == 1
    assert found(manifests.of_kind("Service")["steadyrun-gateway"]["spec"]["selector"]) == 1


def test_autoscalers_ask_for_metrics_that_exist_and_the_adapter_gives() -> None:
    known = {metric.name for metric in all_metrics()}
    given = manifests.read(K8S / "adapter-values.yaml")["rules"]
    asked: dict[str, set[str]] = {"Pods": set(), "External": set()}
    for scaler in manifests.of_kind("HorizontalPodAutoscaler").values():
        assert scaler["spec"]["scaleTargetRef"]["name"] in manifests.of_kind("Deployment")
        for metric in scaler["spec"]["metrics"]:
            if metric["type"] in asked:
                asked[metric["type"]].add(metric[metric["type"].lower()]["metric"]["name"])
    assert asked["Pods"] == {rule["name"]["as"] for rule in given["custom"]} <= known
    assert asked["External"] == {rule["name"]["as"] for rule in given["external"]} <= known


def test_the_ingress_finds_the_gateway_that_has_a_part_of_the_console() -> None:
    console = manifests.of_kind("Ingress")["steadyrun-console"]
    [path] = console["spec"]["rules"][0]["http"]["paths"]
    assert path["path"] == "/console/"
    notes = {k.split("/")[1]: v for k, v in console["metadata"]["annotations"].items()}
    assert "http_404" in notes["proxy-next-upstream"]
    assert "non_idempotent" not in notes["proxy-next-upstream"]


def test_the_ingress_buffers_nothing_and_shows_no_metrics() -> None:
    services = manifests.of_kind("Service")
    for ingress in manifests.of_kind("Ingress").values():
        notes = {k.split("/")[1]: v for k, v in ingress["metadata"]["annotations"].items()}
        assert notes["proxy-buffering"] == "off"
        assert float(notes["proxy-read-timeout"]) >= 60
        assert "non_idempotent" not in notes["proxy-next-upstream"]
        assert ingress["spec"]["tls"]
    paths = manifests.of_kind("Ingress")["steadyrun"]["spec"]["rules"][0]["http"]["paths"]
    closed = next(p for p in paths if p["path"] == "/metrics")["backend"]["service"]["name"]
    assert "selector" not in services[closed]["spec"]


def test_no_service_sets_a_setting_by_its_name() -> None:
    """Kubernetes gives pods `STEADYRUN_GATEWAY_PORT=tcp://…` for a service `steadyrun-gateway`."""
    services = [name.upper().replace("-", "_") for name in manifests.of_kind("Service")]
    assert any(v.startswith(tuple(services)) for v in EVERY_VARIABLE), "there is such a danger"
    workloads = [*manifests.of_kind("Deployment").values(), *manifests.of_kind("Job").values()]
    assert len(workloads) == 3
    assert [manifests.pod(w).get("enableServiceLinks") for w in workloads] == [False] * 3


def test_every_manifest_is_applied() -> None:
    resources = set(manifests.read(K8S / "kustomization.yaml")["resources"])
    files = {path.name for path in K8S.glob("*.yaml")}
    assert files - resources == {"kustomization.yaml", "adapter-values.yaml"}


# pages for operators


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "deploy" / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pages_name_only_files_and_settings_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (page.parent / link).exists(), link
    for path in re.findall(r"`((?:deploy|nginx|runner|common)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    named = set(re.findall(r"\b(?:STEADYRUN_[A-Z_]+[A-Z]|DATABASE_URL|REDIS_URL)\b(?!…)", text))
    assert named - EVERY_VARIABLE - OF_COMMANDS == set()


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "deploy" / "docs").glob("*.md"):
        assert f"(deploy/docs/{page.name})" in readme
