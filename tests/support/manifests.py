"""The files that run the system in containers, read as a machine reads them."""

import re
from pathlib import Path
from typing import Any

import yaml

from common.environment import variable
from common.settings import GatewaySettings, RunnerSettings, Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
K8S = ROOT / "deploy" / "k8s"
Json = dict[str, Any]

KINDS: dict[str, type[Settings]] = {"gateway": GatewaySettings, "runner": RunnerSettings}
EVERY_VARIABLE = {variable(name) for kind in KINDS.values() for name in kind.model_fields}
# required ones, as a process would get them
GIVEN = {"DATABASE_URL": "postgresql://u:p@h/d", "REDIS_URL": "redis://h"}


def _sequence(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> list[Any]:
    return loader.construct_sequence(node)


class _Loader(yaml.SafeLoader):
    """Knows `!override`, by which a further compose file replaces a list."""


_Loader.add_constructor("!override", _sequence)


def read(path: Path) -> Json:
    found: Json = yaml.load(path.read_text(), _Loader)
    return found


def compose() -> dict[str, Json]:
    services: dict[str, Json] = read(COMPOSE)["services"]
    return services


def objects() -> list[Json]:
    """All that `kubectl apply -k` would send, less what it generates."""
    resources = read(K8S / "kustomization.yaml")["resources"]
    return [o for name in resources for o in yaml.safe_load_all((K8S / name).read_text())]


def of_kind(kind: str) -> dict[str, Json]:
    return {o["metadata"]["name"]: o for o in objects() if o["kind"] == kind}


def pod(workload: Json) -> Json:
    found: Json = workload["spec"]["template"]["spec"]
    return found


def generated_settings() -> dict[str, str]:
    """Of the ConfigMap that every pod reads."""
    literals = read(K8S / "kustomization.yaml")["configMapGenerator"][0]["literals"]
    return dict(line.split("=", 1) for line in literals)


def image_environment() -> dict[str, str]:
    """The ENV lines of the image's last stage."""
    stage = DOCKERFILE.read_text().replace("\\\n", " ").split("\nFROM ")[-1]
    lines = re.findall(r"^ENV (.*)$", stage, re.MULTILINE)
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


def settings_of(role: str, environment: dict[str, str | None]) -> Settings:
    """As the process would read them; raises on what it would refuse."""
    known = {k: v for k, v in environment.items() if k in EVERY_VARIABLE and v is not None}
    named = {_field(name): value for name, value in {**known, **GIVEN}.items()}
    return KINDS[role](**named)  # type: ignore[arg-type]


def _field(name: str) -> str:
    return name if name in GIVEN else name.removeprefix("STEADYRUN_").lower()
