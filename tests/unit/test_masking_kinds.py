# ruff: noqa: RUF001
"""Every kind of secret, wherever it stands and however it arrives; and what is none (I9)."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.masking import MASK, Masker

HEX32 = "0123456789abcdef0123456789abcdef"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEXAMPLEKEY"[:40]
W24 = "Zq3vB7xK9mPt2LwRc5Yh8NdJ"
W36 = W24 + "aB1cD2eF3gH4"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXZhbHVl"
PEM = "-----BEGIN {0}-----\nMIIEpAIBAAKCAQEA\nabc\n-----END {0}-----"

# kind → a text and what of it is secret
KINDS: dict[str, tuple[str, str]] = {
    "rsa key": (PEM.format("RSA PRIVATE KEY"), "MIIEpAIBAAKCAQEA"),
    "pkcs8 key": (PEM.format("PRIVATE KEY"), "MIIEpAIBAAKCAQEA"),
    "ssh key": (PEM.format("OPENSSH PRIVATE KEY"), "MIIEpAIBAAKCAQEA"),
    "pgp key": (PEM.format("PGP PRIVATE KEY BLOCK"), "MIIEpAIBAAKCAQEA"),
    "jwt": (JWT, JWT),
    "jwe without a key": ("eyJhbGciOiJkaXIi..aXZpdml2aXZ2.Y2lwaGVy.dGFn", "aXZpdml2aXZ2"),
    "github": (f"ghp_{W36}", W36),
    "github server": (f"ghs_{W36}", W36),
    "github fine": (f"github_pat_11ABCDEFG0_{W36}", W36),
    "gitlab": (f"glpat-{W24}", W24),
    "gitlab runner": (f"glrt-{W24}", W24),
    "slack bot": (f"xoxb-123456789012-123456789012-{W24}", W24),
    "slack app": (f"xapp-1-A0123456789-{W24}", W24),
    "slack hook": (f"https://hooks.slack.com/services/T0001/B0002/{W24}", W24),
    "discord hook": (f"https://discord.com/api/webhooks/1234567890/{W36}", W36),
    "telegram": (f"123456789:AA{W36[:33]}", W36[:33]),
    "aws id": ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "aws secret beside its id": (f"AKIAIOSFODNN7EXAMPLE,{AWS}", AWS),
    "aws secret by name": (f"aws_secret_access_key = {AWS}", AWS),
    "aws secret in prose": (f"AWS secret access key: {AWS}", AWS),
    "aws secret in json": (f'"SecretAccessKey": "{AWS}"', AWS),
    "aws session": (f"IQoJb3JpZ2lu{W36}{W36}", W36),
    "google api": (f"AIza{W36[:35]}", W36[:35]),
    "google oauth": (f"ya29.{W36}", W36),
    "google client": (f"GOCSPX-{W24}", W24),
    "stripe": (f"sk_live_{W24}", W24),
    "stripe test": (f"rk_test_{W24}", W24),
    "stripe hook": (f"whsec_{W24}", W24),
    "openai": (f"sk-{W36}", W36),
    "openai project": (f"sk-proj-{W36}", W36),
    "anthropic": (f"sk-ant-api03-{W36}", W36),
    "npm": (f"npm_{W36}", W36),
    "npmrc": ("//npm.example.org/:_authToken=abcdefab", "abcdefab"),
    "pypi": (f"pypi-AgEIcHlwaS5vcmc{W36}", W36),
    "sendgrid": (f"SG.{W24}.{W36}", W36),
    "twilio": (f"SK{HEX32}", HEX32),
    "twilio beside its id": (f"AC{HEX32}:fedcba98{HEX32[:24]}", f"fedcba98{HEX32[:24]}"),
    "mailgun": (f"key-{HEX32}", HEX32),
    "hugging face": (f"hf_{W36}", W36),
    "databricks": (f"dapi{HEX32}", HEX32),
    "digitalocean": (f"dop_v1_{HEX32}{HEX32}", HEX32),
    "shopify": (f"shpat_{HEX32}", HEX32),
    "docker hub": (f"dckr_pat_{W24}", W24),
    "vault": (f"hvs.{W24}", W24),
    "langsmith": (f"lsv2_pt_{HEX32}_0123456789", HEX32),
    "alibaba": ("LTAI5tAbCdEfGhIjKlMn", "5tAbCdEfGhIjKlMn"),
    "bearer": ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
    "bearer of letters": ("authorization: bearer abcdefghijklmnopqrstu", "abcdefghijklmnopqrstu"),
    "bearer alone": ("Bearer abcdefGhijklmno", "abcdefGhijklmno"),
    "basic": ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    "basic without a digit": ("Authorization: Basic YWxhZGRpbjpvcGVu", "YWxhZGRpbjpvcGVu"),
    "basic of one case": ("Authorization: Basic YTpi", "YTpi"),
    "basic alone": ("Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    "token scheme": ("'Authorization': 'Token 9944b09199c62bcf9418'", "9944b09199c62bcf9418"),
    "header of its own": ("X-Api-Key: Zq3vB7xK9mPt", "Zq3vB7xK9mPt"),
    "cookie": ("Cookie: sid=abcdef; theme=dark", "sid=abcdef"),
    "later cookie": ("Cookie: theme=dark; sid=abcdef", "sid=abcdef"),
    "set-cookie": ("Set-Cookie: sid=abcdef; Path=/; HttpOnly", "sid=abcdef"),
    "cookie in json": ('{"cookie": "sid=abcdef; a=b"}', "sid=abcdef"),
    "cookie of curl": ("curl -H 'Cookie: sid=abcdef' https://h/", "sid=abcdef"),
    "postgres": ("postgresql://app:s3cr3t@db:5432/x", "s3cr3t"),
    "postgres driver": ("postgresql+asyncpg://app:letmein@db/x", "letmein"),
    "redis without a user": ("redis://:hunter2@h:6379/0", "hunter2"),
    "amqp": ("amqps://guest:guest1@mq//", "guest1"),
    "mongo": ("mongodb+srv://u:p%40ss@c0.mongodb.net/?w=1", "p%40ss"),
    "odd password": ("mysql://u:p/a@s:w#d@h:3306/db", "p/a@s:w#d"),
    "token in a url": (f"https://{W24}@github.com/o/r.git", W24),
    "jdbc": ("jdbc:mysql://h/db?user=u&password=letmein&x=1", "letmein"),
    "jdbc oracle": ("jdbc:oracle:thin:scott/tiger1@h:1521:x", "tiger1"),
    "ado": ("Server=h;Database=d;User Id=u;Password=letmein;", "letmein"),
    "odbc": ("Driver={x};Server=h;UID=u;PWD={letme};", "letme"),
    "libpq": ("host=h user=u password=letmein dbname=d", "letmein"),
    "libpq quoted": ("host=h password='let me in' dbname=d", "let me in"),
    "azure storage": (f"AccountName=a;AccountKey={W36}==;EndpointSuffix=x", W36),
    "azure sas": (f"https://a.blob.core.windows.net/c?sv=1&sig={W36}%3D", W36),
    "environment": ("export DB_PASSWORD=hunter2;", "hunter2"),
    "django": ("SECRET_KEY=letmeinplease", "letmeinplease"),
    "pg environment": ("PGPASSWORD=letmein psql", "letmein"),
    "camel": ("dbPassword=letmein", "letmein"),
    "dotted": ("spring.datasource.password=letmein", "letmein"),
    "quoted": ('{"api_key": "with spaces too"}', "with spaces too"),
    "other quote inside": ('password = "it\'s5ecret"', "it's5ecret"),
    "escaped json": (r'"{\"password\": \"let me in\"}"', "let me in"),
    "python with a type": ('password: str = "letmein"', "letmein"),
    "yaml": ("db:\n  password: letmein\n", "letmein"),
    "colon": ("token: abc123def", "abc123def"),
    "with a bracket": ("password=ab(cd)ef", "(cd)ef"),
    "told": ("the password is hunter22", "hunter22"),
    "xml": ("<Password>letmein</Password>", "letmein"),
    "named beside": ('{"name": "X-Api-Key", "value": "letmein"}', "letmein"),
    "flag": ("tool --password letmein --verbose", "letmein"),
    "flag with equals": ("tool --password=letmein", "letmein"),
    "flag quoted": ("tool --api-key 'let me in'", "let me in"),
    "short flag": ("-u admin -p letmein", "letmein"),
    "mysql": ("mysql -h db -uroot -pletmein app", "letmein"),
    "sshpass": ("sshpass -p letmein ssh h", "letmein"),
    "sshpass before a port": ("sshpass -p letmein ssh -p 2200 h", "letmein"),
    "redis-cli": ("redis-cli -h r -a letmein ping", "letmein"),
    "curl": ("curl -s -u admin:letmein https://h/", "letmein"),
    "docker login": ("docker login -u bob -p letmein reg", "letmein"),
    "openssl": ("openssl rsa -passin pass:letmein -in k", "letmein"),
    "netrc": ("machine h login bob password letmein", "letmein"),
    "chinese": ("密码：hunter2好", "hunter2"),
    "chinese is": ("数据库密码是Hunter22", "Hunter22"),
    "chinese token": ("访问令牌: abc123def", "abc123def"),
}  # fmt: skip
AROUND = [
    ("", ""),
    ("see ", " there"),
    ("请看", "，谢谢"),
    ("连接是 ", "。请保密"),
    ("日志：\n", "\n完"),
    ("(", ")"),
    ("\n", "\n"),
]

HARMLESS = [
    "Your password must have at least twelve characters.",
    "The token: please renew it",
    "Use the --password option, or --token with a file.",
    "The secret is to listen. The key is patience; the password was wrong.",
    "Authorization: required",
    "Basic understanding of bearer authentication",
    "The Authorization header carries a Bearer token.",
    "Cookies: we use them. A cookie: a small text.",
    "Set the cookie policy to strict=1",
    "http://localhost:8080/a@b and http://host:80 and http://h:9000?x=a@b",
    "write to ops@example.com or see https://example.com/@user/post",
    "git@github.com:owner/repo.git",
    "sk-learn is a library, task-based disk-usage-in-percent-of-10",
    "pk_conversations_2024_idx and sk_buff and key-value-store",
    "run 7c9e6679-7425-40de-944b-e07fc1f90ae7 has ended",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b fixes it",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "run_019a2b3c4d5e7f8091a2b3c4d5e6f708 and conv_019a2b3c4d5e7f8091a2b3c4d5e6f708",
    "password = os.environ['DB_PASSWORD']",
    "token = get_token()",
    "token = self.settings.token",
    "connect(password=password, host=host)",
    'password="${DB_PASSWORD}"',
    "password: ${{ secrets.DB_PASSWORD }}",
    "API_KEY=$API_KEY make deploy",
    "def login(user: str, password: str) -> None: ...",
    "secret: SecretStr | None = None",
    'if "password" in body: raise ValueError("password: required")',
    "max_tokens=4096, token_count: 128000, tokens: 12345",
    '{"token_usage": {"prompt_tokens": 12345}}',
    "PWD=/root/project OLDPWD=/root",
    "--token-file /etc/token --key-size 2048; access_token_expires_in=3600",
    "public_key: ssh-ed25519 AAAAC3Nza; Idempotency-Key: abc123; sort_key=created_at1",
    "git clone https://github.com/a/b.git && curl -u $USER:$PASS http://h",
    "mkdir -p a/b && docker run -p 8080:80 -u 1000:1000 nginx && cp -p a b",
    "ssh -p 2222 host; kill -9 123; grep -a x; python -u app.py",
    "pip install pypi-attestations==0.0.1; npm_config_cache=/tmp",
    "for key, value in items.items(): total[key] = value",
    "1 - 2 -- 3 --- x",
    "| a | b |\n|-----|-----|\n-----\nBEGIN",
    "密码必须至少十二位。请不要把令牌告诉别人。",
    "请修改密码：至少十二位",
    "日本語のテキスト",
    "KEYBOARD=us, monkey=banana, author: Jane, tokenizer: bpe",
    "let total = price * 3 + 7; // see the basic example/tutorial",
    "s",
    "",
]


@pytest.mark.parametrize("around", AROUND, ids=range(len(AROUND)))
@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_of_any_kind_is_hidden_whatever_stands_around_it(
    kind: str, around: tuple[str, str]
) -> None:
    text, secret = KINDS[kind]
    masked = Masker().text(around[0] + text + around[1])
    assert secret not in masked
    assert MASK in masked
    assert masked.startswith(around[0])
    assert masked.endswith(around[1]) or ("cookie" in kind and around[1] in (")", " there"))


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert Masker().text(text) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_streams_as_it_is(text: str) -> None:
    stream = Masker().stream()
    assert "".join([*map(stream.feed, text), stream.flush()]) == text


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


PARTS = st.one_of(
    st.sampled_from([text for text, _ in KINDS.values()]),
    st.sampled_from(HARMLESS),
    st.sampled_from(
        ["，", "密码", " ", "\n", "是", "=", ": ", '"', "(", "@", "-p ", "://", "\\", "\r"]
    ),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(PARTS, max_size=5), st.lists(st.integers(0, 10_000), max_size=12))
def test_a_text_is_masked_alike_however_it_is_cut(parts: list[str], cuts: list[int]) -> None:
    text, masker = "".join(parts), Masker()
    stream = masker.stream()
    shown = [*map(stream.feed, pieces(text, cuts)), stream.flush()]
    assert "".join(shown) == masker.text(text)


@pytest.mark.parametrize("kind", KINDS)
def test_no_cut_into_two_lets_a_secret_out(kind: str) -> None:
    text, secret = KINDS[kind]
    text = f"好的，{text}，完"
    for at in range(len(text)):
        stream = Masker().stream()
        shown = stream.feed(text[:at]) + stream.feed(text[at:]) + stream.flush()
        assert secret not in shown, f"cut at {at}"
        assert shown == Masker().text(text)


@pytest.mark.parametrize("kind", KINDS)
def test_no_letter_of_a_secret_is_shown_before_its_end_has_come(kind: str) -> None:
    """What was shown so far never holds a beginning of the secret of more than two letters."""
    text, secret = KINDS[kind]
    start = text.index(secret)
    stream, shown = Masker().stream(), ""
    for letter in text[: start + len(secret) - 1]:
        shown += stream.feed(letter)
    assert not shown.endswith(text[start : start + 3]) or MASK in shown
    assert len(shown.replace(MASK, "")) <= start + 2


@settings(deadline=None)
@given(st.lists(st.sampled_from([t for t, _ in KINDS.values()]), max_size=6))
def test_masking_twice_changes_nothing(parts: list[str]) -> None:
    once = Masker().text(" ".join(parts))
    assert Masker().text(once) == once


def test_random_words_are_seldom_taken_for_secrets() -> None:
    rng = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(5_000)]
    text = " ".join(words)
    assert Masker().text(text) == text
