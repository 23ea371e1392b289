"""Running a server as somebody else when we are root: Postgres refuses uid 0.

No account is made and no permission of a folder that is not ours is widened (root's home stays
closed): what the other account cannot reach is copied or placed below `SHARED`.
"""

import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.errors import Misconfigured

SHARED = Path("/var/lib/steadyrun")
ACCOUNTS = ("postgres", "nobody")  # nginx's workers are nobody: keep the data away from them


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """Who runs Postgres: None means ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise Misconfigured(
        "Postgres cannot run as root and there is neither an account postgres nor nobody:"
        " run as an ordinary user, or set DATABASE_URL"
    )


def can_reach(path: Path, account: Account) -> bool:
    """Whether `account` may pass through every folder above `path` (groups are not counted)."""
    return all(_may_pass(folder.stat(), account) for folder in path.resolve().parents)


def _may_pass(folder: os.stat_result, account: Account) -> bool:
    if folder.st_uid == account.uid:
        return bool(folder.st_mode & stat.S_IXUSR)
    return bool(folder.st_mode & stat.S_IXOTH)


def shared_folder(name: str) -> Path:
    """A folder of that name that every account can pass through, not aged out like /tmp."""
    folder = SHARED / name
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder


def stage(package: Path, version: str) -> Path:
    """Copy a wheel's package and the `.libs` folder beside it to where everybody can reach them.

    The binaries find their libraries by a path relative to themselves, so both stay side by side.
    The copy appears whole or not at all; it is made once for each version.
    """
    target = SHARED / f"{package.name}-{version}"
    if target.exists():
        return target / package.name
    shared_folder("")
    work = Path(tempfile.mkdtemp(prefix=".stage-", dir=SHARED))
    work.chmod(0o755)
    ignored = shutil.ignore_patterns("*.a", "include", "pgxs", "pkgconfig", "__pycache__")
    for tree in (package, package.with_name(f"{package.name}.libs")):
        if tree.is_dir():
            shutil.copytree(tree, work / tree.name, symlinks=True, ignore=ignored)
    try:
        work.rename(target)
    except OSError:  # somebody else was faster
        shutil.rmtree(work)
    return target / package.name
