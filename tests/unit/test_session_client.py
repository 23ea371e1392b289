"""The example client where things go wrong: one line, a status, and an end."""

import io
from collections.abc import Callable

import httpx
import pytest

from deploy.examples import session_client
from deploy.examples.session_client import ATTEMPTS_MAX

Answer = Callable[[httpx.Request], httpx.Response]


def problem(status: int, code: str) -> Answer:
    return lambda _: httpx.Response(status, json={"code": code, "detail": "the cause"})


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


class Visit:
    """The program against a peer, with the lines that a person types."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answer, *lines: str) -> None:
        self.calls = 0
        self.pauses: list[float] = []

        def counted(request: httpx.Request) -> httpx.Response:
            self.calls += 1
            return answer(request)

        def client(**options: object) -> httpx.Client:
            transport = httpx.MockTransport(counted)
            return real(**options, transport=transport)  # type: ignore[arg-type]

        real = httpx.Client
        monkeypatch.setattr("deploy.examples.session_client.httpx.Client", client)
        monkeypatch.setattr("deploy.examples.session_client.time.sleep", self.pauses.append)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        monkeypatch.setattr("sys.argv", ["session_client", "--user", "ada"])
        monkeypatch.setenv("STEADYRUN_URL", "http://peer")
        monkeypatch.setenv("STEADYRUN_TOKEN", "token")

    def complaint(self) -> str:
        """What it says on standard error, with status 1."""
        with pytest.raises(SystemExit) as ended:
            session_client.main()
        assert isinstance(ended.value.code, str), "a text is written there, and the status is 1"
        assert "\n" not in ended.value.code
        assert "{" not in ended.value.code
        return ended.value.code


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (problem(401, "UNAUTHENTICATED"), "the token is refused: the cause (UNAUTHENTICATED)"),
        (problem(403, "FORBIDDEN"), "another user's: the cause (FORBIDDEN)"),
        (problem(500, "INTERNAL"), "the server fails: the cause (INTERNAL)"),
        (lambda _: httpx.Response(404, text="<h1>nginx</h1>"), "no Steadyrun: 404"),
        (lambda _: httpx.Response(200, text="hello"), "no Steadyrun: 200"),
        (lambda _: httpx.Response(404, json={"error": "x"}), "no Steadyrun: 404"),
    ],
)
def test_what_trying_again_does_not_heal_ends_at_once_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, says: str
) -> None:
    visit = Visit(monkeypatch, answer)
    assert says in visit.complaint()
    assert visit.calls == 1


@pytest.mark.parametrize("answer", [broken, problem(503, "UNAVAILABLE")])
def test_where_nothing_answers_it_says_so_and_gives_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    visit = Visit(monkeypatch, answer)
    assert f"given up after {ATTEMPTS_MAX} attempts" in visit.complaint()
    assert visit.calls == ATTEMPTS_MAX
    assert capsys.readouterr().out.count("trying again") == ATTEMPTS_MAX - 1
    assert 20 < sum(visit.pauses) < 60, "about half a minute"


def test_a_token_that_ends_in_the_middle_of_a_talk_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return problem(401, "UNAUTHENTICATED")(request)
        return httpx.Response(200, json={"status": "idle", "last_response": None})

    assert "refused" in Visit(monkeypatch, answer, "hello").complaint()


def test_a_refusal_of_what_was_typed_is_shown_and_the_talk_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return problem(422, "VALIDATION")(request)
        return httpx.Response(404, json={"code": "NOT_FOUND", "detail": "no session"})

    Visit(monkeypatch, answer, "hello", "hello again")
    session_client.main()
    page = capsys.readouterr().out
    assert page.count("refused: the cause") == 2
    assert page.endswith("left; the session goes on\n")


@pytest.mark.parametrize("url", ["nonsense", "http://[", "http://x:y"])
def test_an_address_that_is_none_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    def unsupported(request: httpx.Request) -> httpx.Response:
        raise httpx.UnsupportedProtocol("no protocol", request=request)

    visit = Visit(monkeypatch, unsupported)
    monkeypatch.setenv("STEADYRUN_URL", url)
    visit.complaint()
    assert visit.pauses == []


@pytest.mark.parametrize("token", ["", "a\nb", "тест"])
def test_a_token_that_is_none_is_an_unusable_argument(
    monkeypatch: pytest.MonkeyPatch, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Visit(monkeypatch, broken)
    monkeypatch.setenv("STEADYRUN_TOKEN", token)
    with pytest.raises(SystemExit) as ended:
        session_client.main()
    assert ended.value.code == 2
    assert "STEADYRUN_TOKEN must hold a token" in capsys.readouterr().err
