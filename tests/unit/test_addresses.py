"""Addresses that a driver would choke on, with a traceback that holds a part of the password."""

import pytest

from common.addresses import wrong_postgres, wrong_redis
from common.environment import load
from common.errors import Unusable
from common.settings import RunnerSettings

BROKEN = [
    "h:abc/d",
    "h:99999/d",
    "h:0/d",
    "h:-1/d",
    "[::1/d",
    "u:hunt/er22@h/d",
    "u:hunt#er22@h/d",
    "u:7#hunter22@h/d",
    "u:hunter%22zz%zz@h/d",
    "u:hunter22@h:1:2/d",
    "a:1,b:x/d",
]


@pytest.mark.parametrize("rest", BROKEN)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(
    rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgresql://{rest}")
    monkeypatch.setenv("REDIS_URL", f"redis://{rest.removesuffix('d')}0")
    with pytest.raises(Unusable) as caught:
        load(RunnerSettings)
    message = str(caught.value)
    assert "DATABASE_URL: " in message
    assert "REDIS_URL: " in message
    assert "hunt" not in message
    assert "er22" not in message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///d",
        "postgres://u@h/d",
        f"postgresql://u:p%2Fw%40@h:5432/d?sslmode=verify-full&sslrootcert={__file__}",
        "postgresql://u:p@[::1]:5432/d",
        "postgresql://u:p@a:1,b:2/d?target_session_attrs=primary",
        "postgresql://u:p@%2Fvar%2Frun/d",
        "postgresql://h/d?user=u&password=p@w",
        "postgresql://u:p@w@h/d",
    ],
)
def test_what_postgres_can_be_asked_by_is_taken(url: str) -> None:
    assert wrong_postgres(url) is None


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h", "redis://h:6379", "redis://:p%40@h:6379/0", "rediss://u:p@h/15"),
        *("redis://", "redis://h/?db=1", "redis://[::1]:1/0", "unix:///var/run/x.sock?db=1"),
    ],
)
def test_what_redis_can_be_asked_by_is_taken(url: str) -> None:
    assert wrong_redis(url) is None


def test_what_else_cannot_be_meant_is_named() -> None:
    assert wrong_postgres("mysql://h/d") == "must begin with postgresql://"
    assert "sslmode must be one of" in (wrong_postgres("postgresql://h/d?sslmode=on") or "")
    assert "no file" in (wrong_postgres("postgresql://h/d?sslrootcert=/nowhere") or "")
    assert wrong_redis("http://h") == "must begin with redis:// or rediss://"
    assert "must be a number" in (wrong_redis("redis://h/zero") or "")
