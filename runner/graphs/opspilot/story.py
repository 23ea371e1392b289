"""What the scripted model says next: a pure function of the conversation.

One turn of the model is a text and at most one tool call. Which one comes next is read from the
conversation alone: what the user's last message wants, and which tools have answered since. So the
same conversation always goes on in the same way, also after a restart of the process.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from runner.graphs.opspilot.phrases import Voice, voice_for
from runner.graphs.opspilot.subject import Subject, last_dealt_with, named_in, result_of

Wish = Literal["restart", "break", "errors", "instances", "services", "help"]
Result = dict[str, Any]

# the first row that matches wins
_WISHES: tuple[tuple[Wish, re.Pattern[str]], ...] = (
    ("break", re.compile(r"\bbreak\b|弄坏|搞坏|制造故障", re.I)),
    ("restart", re.compile(r"\brestart|\breboot|重启|重新启动", re.I)),
    ("errors", re.compile(r"investigat|\berrors?\b|\blogs?\b|排查|调查|错误|报错|日志", re.I)),
    ("instances", re.compile(r"\binstances?\b|\bstat(e|us)\b|\bhealth|实例|状态|健康", re.I)),
    ("services", re.compile(r"\bservices?\b|\bfleet\b|服务|集群", re.I)),
    ("errors", re.compile(r"\bcontinue\b|\bkeep\b|\bgo on\b|\blook at\b|继续|看看", re.I)),
    ("errors", re.compile(r"\bthe one (just now|before)\b|\bwhat about it\b|刚才|它呢", re.I)),
)
_ABNORMAL = re.compile(r"abnormal|broken|degraded|unhealthy|faulty|异常|故障|有问题", re.I)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says, and the tool that it calls, if any."""

    text: str
    tool: str | None = None
    args: dict[str, Any] | None = None


def next_turn(messages: Sequence[BaseMessage]) -> Turn:
    """The model's answer to this conversation."""
    start = max((n for n, m in enumerate(messages) if isinstance(m, HumanMessage)), default=-1)
    if start < 0:
        return Turn(voice_for("").say("help"))
    return _Scene(messages[:start], str(messages[start].text), messages[start + 1 :]).play()


class _Scene:
    """One user message and what has happened since."""

    def __init__(
        self, before: Sequence[BaseMessage], text: str, since: Sequence[BaseMessage]
    ) -> None:
        answers = [message for message in since if isinstance(message, ToolMessage)]
        self._voice: Voice = voice_for(text)
        self._wish: Wish = next((w for w, words in _WISHES if words.search(text)), "help")
        self._results = {str(answer.name): result_of(answer) for answer in answers}
        self._subject = named_in(text)
        self._pointed = not self._subject.service
        self._abnormal = _ABNORMAL.search(text) is not None
        if self._pointed:
            self._subject = last_dealt_with(before)

    def play(self) -> Turn:
        failed = next((r for r in self._results.values() if "error" in r), None)
        if failed is not None:
            return self._failure(failed)
        if self._wish in ("help", "services"):
            return self._help() if self._wish == "help" else self._list_services()
        return self._settle_service() or self._act()

    def _act(self) -> Turn:
        if self._wish == "restart":
            return self._restart()
        if self._wish == "errors":
            return self._report_errors()
        return self._break() if self._wish == "break" else self._list_instances()

    # what is not about a service

    def _help(self) -> Turn:
        return Turn(self._say("help"))

    def _failure(self, result: Result) -> Turn:
        if result["error"] == "unknown_service":
            known = self._voice.join(result["known"])
            return Turn(self._say("unknown", service=result["service"], known=known))
        return Turn(self._say("failed", reason=result["error"]))

    def _list_services(self) -> Turn:
        result = self._results.get("list_services")
        if result is None:
            return Turn("", "list_services", {})
        lines = [self._say("service", **service) for service in result["services"]]
        return Turn(self._listing("services", lines))

    def _settle_service(self) -> Turn | None:
        """Neither named nor known from before: the one service that has trouble. None: settled."""
        if self._subject.service is not None:
            return None
        result = self._results.get("list_services")
        if result is None:
            return Turn(self._say("which"), "list_services", {})
        troubled = [s["name"] for s in result["services"] if s["abnormal"]]
        if len(troubled) != 1:
            names = [s["name"] for s in result["services"]]
            return Turn(self._say("which_not", services=self._voice.join(troubled or names)))
        self._subject = Subject(troubled[0])
        return None

    # restart: list, read, ask and do, tell

    def _restart(self) -> Turn:
        listed = self._results.get("list_instances")
        if listed is None:
            return self._call("looking", "list_instances", service=self._subject.service)
        chosen = self._choose(listed["instances"])
        if isinstance(chosen, Turn):
            return chosen
        if "read_errors" not in self._results:
            return self._examine(chosen, listed["instances"])
        if "restart_instance" not in self._results:
            return self._propose(chosen)
        return self._tell_outcome(self._results["restart_instance"])

    def _choose(self, instances: list[Result]) -> Result | Turn:
        """The instance to restart: the one meant, else the first abnormal one."""
        named = None if self._abnormal and self._pointed else self._subject.instance
        abnormal = [i for i in instances if i["state"] != "running"]
        if named is None and not abnormal:
            return Turn(self._say("healthy", count=len(instances), service=self._subject.service))
        wanted = [i for i in instances if i["id"] == named] if named else abnormal
        if wanted:
            return wanted[0]
        there = self._voice.join([i["id"] for i in instances])
        about = {"service": self._subject.service, "instance": named, "instances": there}
        return Turn(self._say("no_instance", **about))

    def _examine(self, chosen: Result, instances: list[Result]) -> Turn:
        known = "abnormal" if chosen["state"] != "running" else "chosen"
        others = sum(i["state"] == "running" and i is not chosen for i in instances)
        text = self._say(known, **self._about(chosen), others=others)
        return Turn(text, "read_errors", {"service": chosen["service"], "instance": chosen["id"]})

    def _propose(self, chosen: Result) -> Turn:
        read = self._results["read_errors"]
        about = self._about(read["instances"][0]) | {"minutes": read["minutes"]}
        args = {
            "instance": chosen["id"],
            "version": chosen["version"],
            "reason": self._say("reason", **about),
        }
        return Turn(self._say("propose", **about), "restart_instance", args)

    def _tell_outcome(self, result: Result) -> Turn:
        return Turn(self._say(result["outcome"], **self._about(result["instance"])))

    # errors

    def _report_errors(self) -> Turn:
        read = self._results.get("read_errors")
        if read is None:
            phrase = "again" if self._pointed and self._subject.instance else "reading"
            return self._call(phrase, "read_errors", **self._aim())
        if not read["instances"]:
            there = {"instance": self._subject.instance, "service": self._subject.service}
            return Turn(self._say("no_instance", **there, instances="…"))
        lines = [self._diagnosis(i, read["minutes"]) for i in read["instances"]]
        return Turn(self._voice.say("space").join(lines) + self._offer(read["instances"]))

    def _aim(self) -> dict[str, Any]:
        aim = {"service": self._subject.service, "instance": self._subject.instance}
        return {name: value for name, value in aim.items() if value is not None}

    def _diagnosis(self, instance: Result, minutes: int) -> str:
        if not instance["errors"]:
            phrase = "quiet"
        elif "restarted_at" not in instance:
            phrase = "noisy"
        else:
            phrase = "relapsed" if instance["since_restart"] else "calmed"
        return self._say(phrase, **self._about(instance), minutes=minutes)

    def _offer(self, instances: list[Result]) -> str:
        abnormal = [i["id"] for i in instances if i["state"] != "running"]
        if not abnormal:
            return ""
        return self._voice.say("space") + self._say("offer", instance=abnormal[0])

    # the rest

    def _list_instances(self) -> Turn:
        listed = self._results.get("list_instances")
        if listed is None:
            return self._call("looking", "list_instances", service=self._subject.service)
        lines = [self._say("instance", **i | self._about(i)) for i in listed["instances"]]
        return Turn(self._listing("instances", lines, service=self._subject.service))

    def _break(self) -> Turn:
        result = self._results.get("break_instance")
        if result is None:
            return self._call("breaking", "break_instance", service=self._subject.service)
        if result["broken"] is None:
            return Turn(self._say("unbroken", service=self._subject.service))
        return Turn(self._say("broken", **self._about(result["broken"])))

    # words

    def _say(self, phrase: str, **words: object) -> str:
        return self._voice.say(phrase, **words)

    def _call(self, phrase: str, tool: str, **args: Any) -> Turn:
        text = self._say(phrase, service=self._subject.service, subject=self._subject.name)
        return Turn(text, tool, args)

    def _listing(self, title: str, lines: list[str], **words: object) -> str:
        return "\n".join([self._say(title, **words), *(f"- {line}" for line in lines)])

    def _about(self, instance: Result) -> Result:
        """An instance's fields as the phrases name them."""
        messages = list(instance.get("messages", ()))
        mostly = self._say("mostly", message=messages[0]) if messages else ""
        state = self._say(instance["state"])
        return instance | {"instance": instance["id"], "state": state, "mostly": mostly}
