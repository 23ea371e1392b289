"""Takes out each defence of the product, one at a time, and sees the tests fail.

    python -m tests.faults.mutants                  all of them, in a copy of the project
    python -m tests.faults.mutants NAME ...         some
    python -m tests.faults.mutants --list

Where two defences cover one fault they hide each other: such a mutant also takes out the partner,
or names tests that do. A mutant whose text is not found any more fails too, so that the list stays
true (tests/unit/test_mutants.py sees to that at every run of the tests). Status 1: one survived.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.defences import DEFENCES, Defence, Stale
from tests.support.servers import servers

ROOT = Path(__file__).parents[2]
KEPT = ("common", "deploy", "gateway", "nginx", "runner", "tests", "pyproject.toml", "README.md")
LIMIT_S = 600.0
HUNG = -1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name the defences and end")
    options = parser.parse_args(arguments)
    chosen = [d for d in DEFENCES if d.name in (options.names or [d.name])]
    if unknown := set(options.names) - {d.name for d in chosen}:
        parser.error(f"no such defence: {', '.join(sorted(unknown))}")
    if options.list:
        say("\n".join(f"{d.invariant}  {d.name}: {d.what}" for d in chosen))
        return 0
    with servers(os.environ) as found:
        environment = {"TEST_DATABASE_URL": found.database_url, "TEST_REDIS_URL": found.redis_url}
        if not all_pass(chosen, environment):
            return 1
        survivors = [d for d in chosen if not is_caught(d, environment)]
    say(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants were caught")
    return 1 if survivors else 0


def all_pass(chosen: Sequence[Defence], environment: dict[str, str]) -> bool:
    """With the defences in place: else a failure would prove nothing."""
    for tests in dict.fromkeys(tuple(d.tests) for d in chosen):
        with a_copy() as copy:
            status, said = tested(copy, tests, environment)
        if status:
            say(f"these tests fail as it is: {' '.join(tests)}\n{said[-3000:]}")
            return False
    return True


def is_caught(defence: Defence, environment: dict[str, str]) -> bool:
    """Whether its tests fail without the defence; what they say otherwise."""
    began = time.monotonic()
    with a_copy() as copy:
        try:
            defence.take_out(copy)
        except Stale as stale:
            say(f"STALE     {defence.name}: {stale}")
            return False
        status, said = tested(copy, defence.tests, environment)
    verdict = {0: "SURVIVED", 1: "caught"}.get(status, "BROKEN")
    say(f"{verdict:9} {defence.name} ({time.monotonic() - began:.0f} s): {defence.what}")
    if status != 1:
        say(said[-3000:])
    return status == 1


def tested(copy: Path, tests: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """The status of pytest: 1 is that a test failed. One that hangs fails by its own limit; where
    that does not help the whole is HUNG, which proves nothing."""
    options = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout", "60")
    command = [sys.executable, "-m", "pytest", *options, *tests]
    env = {**os.environ, **environment, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return HUNG, f"no end within {LIMIT_S:.0f} s"
    return done.returncode, done.stdout + done.stderr


@contextmanager
def a_copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="steadyrun-mutant-") as folder:
        copy = Path(folder)
        copy.chmod(0o755)
        for name in KEPT:
            there = ROOT / name
            if there.is_dir():
                shutil.copytree(there, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(there, copy / name)
        yield copy


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
