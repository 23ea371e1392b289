"""What linters of others say of the files for containers: `make manifests`.

Its own program, run with the linters in an environment that is made for it and thrown away (the
schemas of Kubernetes alone are 17,000 files). Nothing here starts a container.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate  # type: ignore[import-not-found]
import yaml

ROOT = Path(__file__).parents[1]
KUBERNETES = ("1.28", "1.33")  # the oldest and the newest that are promised


def complaints() -> Iterator[str]:
    yield from _of_command("hadolint", "deploy/Dockerfile")
    for name in ("docker-compose.yml", "deploy/docker-compose.tls.yml"):
        yield from _of_compose(name)
    for path in sorted((ROOT / "deploy" / "k8s").glob("*.yaml")):
        if path.name not in ("kustomization.yaml", "adapter-values.yaml"):
            yield from _of_manifests(path)


def _of_compose(name: str) -> Iterator[str]:
    """The schema does not know the tags by which a further file replaces what is there."""
    text = (ROOT / name).read_text().replace("!override", "")
    argv = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    yield from _of_command(*argv, "--force-filetype", "yaml", "-", given=text)


def _of_manifests(path: Path) -> Iterator[str]:
    for made in yaml.safe_load_all(path.read_text()):
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(made, version, strict=True)
            except Exception as error:
                yield f"{path.name}: {made['kind']} {made['metadata']['name']}: {error}"


def _of_command(*argv: str, given: str | None = None) -> Iterator[str]:
    said = subprocess.run(argv, cwd=ROOT, input=given, capture_output=True, text=True, check=False)
    if said.returncode:
        yield f"{argv[0]}: {said.stdout}{said.stderr}"


def main() -> int:
    found = list(complaints())
    print("\n".join(found) or "manifests: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
