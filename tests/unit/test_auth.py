"""Bearer tokens and tickets (gateway/auth): who is asking, and who is not."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from common.errors import Refused, Unavailable
from gateway.auth import Authenticator, Principal, PublishedKeys, SharedSecret, Tickets

SECRET = "s" * 32
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
SOON = timedelta(minutes=5)


def claims(**others: Any) -> dict[str, Any]:
    return {"sub": "ada", "exp": datetime.now(UTC) + SOON, **others}


def signed(payload: dict[str, Any], key: Any = SECRET, alg: str = "HS256", **headers: str) -> str:
    return jwt.encode(payload, key, alg, headers=headers or None)


def shared(**options: str | None) -> Authenticator:
    settings = {"audience": None, "issuer": None, **options}
    return Authenticator(SharedSecret(SECRET), **settings)


async def ask(authenticator: Authenticator, token: str) -> Principal:
    return await authenticator.principal(f"Bearer {token}")


def jwk(key: Any, key_id: str, alg: str, **more: str) -> dict[str, Any]:
    algorithm: Any = jwt.get_algorithm_by_name(alg)
    public: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**public, "kid": key_id, "alg": alg, **more}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class KeyFile:
    """A set of keys in a file, which counts how often it is read by changing what it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.keys = PublishedKeys(f"file://{path}", clock=self.clock)
        self.authenticator = Authenticator(self.keys, audience=None, issuer=None)

    def hold(self, *keys: dict[str, Any]) -> None:
        self.path.write_text(json.dumps({"keys": list(keys)}))


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    file = KeyFile(tmp_path / "keys.json")
    file.hold(jwk(RSA_KEY, "r1", "RS256"), jwk(EC_KEY, "e1", "ES256"))
    return file


async def test_a_token_of_the_secret_names_user_and_permissions() -> None:
    token = signed(claims(permissions=["ops.view", "ops.restart"]))
    assert await ask(shared(), token) == Principal("ada", frozenset({"ops.view", "ops.restart"}))


async def test_the_words_of_scope_are_permissions_when_there_is_no_list() -> None:
    principal = await ask(shared(), signed(claims(scope="ops.view ops.restart")))
    assert principal.permissions == {"ops.view", "ops.restart"}


async def test_a_list_of_permissions_goes_before_scope() -> None:
    principal = await ask(shared(), signed(claims(permissions=[], scope="ops.view")))
    assert principal.permissions == frozenset()


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "token"])
async def test_without_a_bearer_token_nobody_is_asking(header: str | None) -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await shared().principal(header)


@pytest.mark.parametrize(
    "payload",
    [
        {"sub": "ada"},
        {"exp": datetime.now(UTC) + SOON},
        {"sub": "ada", "exp": datetime.now(UTC) - SOON},
        claims(sub=""),
        claims(sub="a\0b"),
        claims(sub="x" * 256),
        claims(nbf=datetime.now(UTC) + SOON),
        claims(permissions={"ops": True}),
        claims(permissions=[1]),
        claims(sub="a\ud800"),
        claims(sub="\udc00a"),
        claims(permissions=["a\ud800"]),
        claims(permissions=["a\0"]),
        claims(permissions="a\ud800 b"),
        claims(scope="a b\0"),
    ],
)
async def test_a_token_that_lacks_something_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await ask(shared(), signed(payload))


@pytest.mark.parametrize("token", ["x", "a.b.c", "é.é.é", "." * 50, signed(claims())[:-3]])
async def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await ask(shared(), token)


async def test_a_token_of_another_secret_is_refused() -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await ask(shared(), signed(claims(), "t" * 32))


async def test_an_unsigned_token_is_refused() -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await ask(shared(), jwt.encode(claims(), "", "none"))


async def test_audience_and_issuer_are_checked_when_they_are_set() -> None:
    authenticator = shared(audience="steadyrun", issuer="https://id")
    assert (await ask(authenticator, signed(claims(aud="steadyrun", iss="https://id")))).user
    for wrong in (claims(), claims(aud="other", iss="https://id"), claims(aud="steadyrun")):
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            await ask(authenticator, signed(wrong))


async def test_published_keys_verify_rs256_and_es256(key_file: KeyFile) -> None:
    rs256 = signed(claims(), RSA_KEY, "RS256", kid="r1")
    es256 = signed(claims(), EC_KEY, "ES256", kid="e1")
    assert (await ask(key_file.authenticator, rs256)).user == "ada"
    assert (await ask(key_file.authenticator, es256)).user == "ada"


async def test_a_public_key_is_never_taken_for_a_secret(key_file: KeyFile) -> None:
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    forged = _hmac_token(claims(), public, kid="r1")
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await ask(key_file.authenticator, forged)


async def test_a_key_is_bound_to_its_algorithm(key_file: KeyFile) -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await ask(key_file.authenticator, signed(claims(), EC_KEY, "ES256", kid="r1"))


async def test_symmetric_and_encryption_keys_of_a_set_are_left_out(key_file: KeyFile) -> None:
    oct_key = {"kty": "oct", "k": "c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M", "kid": "o1"}
    key_file.hold(oct_key, jwk(RSA_KEY, "r2", "RS256", use="enc"), jwk(EC_KEY, "e1", "ES256"))
    for token in (
        signed(claims(), SECRET, "HS256", kid="o1"),
        signed(claims(), RSA_KEY, "RS256", kid="r2"),
    ):
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            await ask(key_file.authenticator, token)


async def test_a_new_key_is_found_and_strangers_cause_few_reads(key_file: KeyFile) -> None:
    assert await key_file.keys.find("r1") is not None
    key_file.hold(jwk(RSA_KEY, "r2", "RS256"))
    assert await key_file.keys.find("r2") is None
    key_file.clock.now += 10
    assert await key_file.keys.find("r2") is not None


async def test_a_withdrawn_key_stops_being_good(key_file: KeyFile) -> None:
    assert await key_file.keys.find("r1") is not None
    key_file.hold(jwk(EC_KEY, "e1", "ES256"))
    key_file.clock.now += 601
    assert await key_file.keys.find("r1") is None


async def test_while_the_key_server_is_away_the_old_keys_serve(key_file: KeyFile) -> None:
    assert await key_file.keys.find("r1") is not None
    key_file.path.unlink()
    key_file.clock.now += 601
    assert await key_file.keys.find("r1") is not None


async def test_without_any_key_the_gateway_is_unavailable(tmp_path: Path) -> None:
    keys = PublishedKeys(f"file://{tmp_path}/missing.json")
    with pytest.raises(Unavailable):
        await keys.find("r1")


def test_a_ticket_opens_one_run_as_one_user() -> None:
    tickets = Tickets(SECRET, 60)
    principal = Principal("ada", frozenset({"ops.view"}))
    ticket = tickets.issue("run_1", principal)
    assert tickets.principal(ticket.text, "run_1") == principal
    with pytest.raises(Refused, match="another run"):
        tickets.principal(ticket.text, "run_2")


def test_a_ticket_expires() -> None:
    ticket = Tickets(SECRET, -1).issue("run_1", Principal("ada", frozenset()))
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        Tickets(SECRET, 60).principal(ticket.text, "run_1")


async def test_a_ticket_is_no_token_and_a_token_no_ticket() -> None:
    ticket = Tickets(SECRET, 60).issue("run_1", Principal("ada", frozenset()))
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        await ask(shared(), ticket.text)
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        Tickets(SECRET, 60).principal(signed(claims(aud="steadyrun:ticket", run="run_1")), "run_1")


def _hmac_token(payload: dict[str, Any], key: bytes, **headers: str) -> str:
    """What a forger makes: libraries refuse to sign with a public key."""
    import base64
    import hmac

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "typ": "JWT", **headers}).encode())
    body = part(json.dumps({**payload, "exp": payload["exp"].timestamp()}).encode())
    signature = part(hmac.digest(key, head + b"." + body, "sha256"))
    return b".".join((head, body, signature)).decode()
