"""What the scripted model and the confirmation say, in English and in Chinese."""

# ruff: noqa: RUF001 -- Chinese punctuation is meant

import re
from collections.abc import Mapping

CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")

ENGLISH: Mapping[str, str] = {
    "which": "I'll see which service has trouble.",
    "which_not": "Several or no services have an abnormal instance ({services}). "
    "Which one do you mean?",
    "looking": "I'll look at the instances of {service} first. Nothing is changed by that.",
    "abnormal": "{instance} is degraded (version {version}, on {host}); {others} more run. "
    "I'll read its recent errors before I propose anything.",
    "chosen": "{instance} is {state} (version {version}, on {host}). "
    "I'll read its recent errors before I do anything.",
    "propose": "{instance} logged {errors} errors in the last {minutes} minutes{mostly}. "
    "I propose to restart it. This cuts the requests it is serving, so please confirm it.",
    "reason": "{errors} errors in the last {minutes} minutes{mostly}",
    "mostly": ", mostly “{message}”",
    "restarted": "Done: {instance} was restarted. It is running again, now at version {version}.",
    "changed": "I did not restart {instance}: it has changed since you were asked. It is {state} "
    "at version {version} now. Ask me again and I'll look anew.",
    "rejected": "All right, {instance} was not restarted.",
    "healthy": "All {count} instances of {service} are running, so there is nothing to restart. "
    "To see the demo again, say “break {service}”.",
    "no_instance": "{service} has no instance {instance}. It has {instances}.",
    "unknown": "I know no service {service}. I look after {known}.",
    "reading": "I'll read the recent errors of {subject}.",
    "again": "You mean {subject}. I'll read its recent errors again.",
    "quiet": "{instance} is {state} at version {version} and logged no errors in the last "
    "{minutes} minutes.",
    "noisy": "{instance} is {state} at version {version} and logged {errors} errors in the last "
    "{minutes} minutes{mostly}.",
    "calmed": "{instance} is {state} at version {version}. It logged {errors} errors in the last "
    "{minutes} minutes{mostly}, none of them since its restart at {restarted_at}.",
    "relapsed": "{instance} is {state} at version {version}. It logged {errors} errors in the last "
    "{minutes} minutes{mostly}, {since_restart} of them since its restart at {restarted_at}.",
    "offer": "Shall I restart it? Say “restart {instance}”.",
    "services": "I look after these services:",
    "service": "{name} ({description}): {instances} instances, {abnormal} abnormal",
    "instances": "The instances of {service}:",
    "instance": "{id} on {host}: {state}, version {version}, restarted {restarts} times",
    "breaking": "For the demo I'll put an instance of {service} out of order.",
    "broken": "{instance} is degraded now. Say “restart the abnormal instance of {service}”.",
    "unbroken": "Every instance of {service} is out of order already.",
    "failed": "That did not work: {reason}",
    "help": "I look after a small fleet. Ask me for example: “Which services are there?”, “Look at "
    "the recent errors of payment-api”, “Restart the abnormal instance of payment-api”, and then "
    "“Keep investigating it”. I restart nothing before you have confirmed it.",
    "running": "running",
    "degraded": "degraded",
    "space": " ",
    "comma": ", ",
    "risk": "Requests that {instance} is serving are cut off; the other instances of {service} "
    "take over while it starts.",
}

CHINESE: Mapping[str, str] = {
    "which": "我先看看是哪个服务有问题。",
    "which_not": "有多个服务或没有服务存在异常实例（{services}）。您指的是哪一个？",
    "looking": "我先查看 {service} 的实例，这一步不会改动任何东西。",
    "abnormal": "{instance} 状态异常（版本 {version}，位于 {host}），其余 {others} 个实例正常。"
    "在提出操作之前，我先读取它最近的错误。",
    "chosen": "{instance} 当前{state}（版本 {version}，位于 {host}）。我先读取它最近的错误。",
    "propose": "{instance} 在最近 {minutes} 分钟内有 {errors} 个错误{mostly}。"
    "我建议重启它。重启会中断它正在处理的请求，请您确认。",
    "reason": "最近 {minutes} 分钟内有 {errors} 个错误{mostly}",
    "mostly": "，主要是“{message}”",
    "restarted": "已完成：{instance} 已重启，现在恢复正常，当前版本 {version}。",
    "changed": "我没有重启 {instance}：在您确认之前它已发生变化，现在{state}，版本 {version}。"
    "请再说一次，我会重新查看。",
    "rejected": "好的，没有重启 {instance}。",
    "healthy": "{service} 的 {count} 个实例全部正常，没有需要重启的实例。"
    "想再看一次演示，请说“弄坏 {service}”。",
    "no_instance": "{service} 没有名为 {instance} 的实例，它有：{instances}。",
    "unknown": "没有名为 {service} 的服务。我负责的服务有：{known}。",
    "reading": "我来读取 {subject} 最近的错误。",
    "again": "您指的是 {subject}。我再次读取它最近的错误。",
    "quiet": "{instance} 当前{state}，版本 {version}，最近 {minutes} 分钟内没有错误。",
    "noisy": "{instance} 当前{state}，版本 {version}，最近 {minutes} 分钟内有 {errors} 个错误"
    "{mostly}。",
    "calmed": "{instance} 当前{state}，版本 {version}。最近 {minutes} 分钟内有 {errors} 个错误"
    "{mostly}，但自 {restarted_at} 重启以来没有新的错误。",
    "relapsed": "{instance} 当前{state}，版本 {version}。最近 {minutes} 分钟内有 {errors} 个错误"
    "{mostly}，其中 {since_restart} 个发生在 {restarted_at} 重启之后。",
    "offer": "要重启它吗？请说“重启 {instance}”。",
    "services": "我负责这些服务：",
    "service": "{name}（{description}）：{instances} 个实例，{abnormal} 个异常",
    "instances": "{service} 的实例：",
    "instance": "{id}，位于 {host}：{state}，版本 {version}，已重启 {restarts} 次",
    "breaking": "为了演示，我来弄坏 {service} 的一个实例。",
    "broken": "{instance} 现在异常了。请说“重启 {service} 的异常实例”。",
    "unbroken": "{service} 的所有实例都已经异常了。",
    "failed": "操作没有成功：{reason}",
    "help": "我负责一个小型服务集群。您可以这样问我：“有哪些服务？”、"
    "“看看 payment-api 最近的错误”、“重启 payment-api 的异常实例”，然后说“继续排查它”。"
    "在您确认之前，我不会重启任何东西。",
    "running": "正常",
    "degraded": "异常",
    "space": "",
    "comma": "、",
    "risk": "{instance} 正在处理的请求会中断；启动期间由 {service} 的其他实例接替。",
}


class Voice:
    """Speaks one of the two languages."""

    def __init__(self, *, chinese: bool) -> None:
        self._phrases = CHINESE if chinese else ENGLISH

    def say(self, phrase: str, **words: object) -> str:
        return self._phrases[phrase].format(**words)

    def join(self, words: list[str]) -> str:
        return self._phrases["comma"].join(words)


def voice_for(text: str) -> Voice:
    """The language in which `text` is written."""
    return Voice(chinese=CJK.search(text) is not None)


def risk_of_restart(instance: str, service: str, reason: str) -> str:
    """Told by the tool and not by the model; in the language of the model's reason."""
    return voice_for(reason).say("risk", instance=instance, service=service)
