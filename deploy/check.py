"""`steadyrun check`: what gateways and runners would refuse to start with; connects to nothing.

`settings_of_up` is the quick half of it, for `up`, which gives its children some settings itself.
"""

import asyncio
import os
from collections.abc import Mapping

from common.environment import load
from common.errors import Unusable
from common.masking import Masker
from common.settings import GatewaySettings, RunnerSettings
from runner.renewal import check_renewal

_OWN = {"gateway_host": "127.0.0.1", "gateway_port": "0"}  # what `up` sets whatever is given
_FILLED_IN = {"jwt_secret": "0" * 32, "demo": "0", "start_patience_s": "0"}  # where it is empty
_SERVERS = {"DATABASE_URL": "postgresql://embedded", "REDIS_URL": "redis://embedded"}


def settings_of_up(runners: int) -> None:
    """Raises Unusable. Servers that are not given are ours to start."""
    given = {f"{prefix}{name}" for name in _SERVERS for prefix in ("", "STEADYRUN_")}
    missing = {
        name: url
        for name, url in _SERVERS.items()
        if not any(os.environ.get(v) for v in given if v.endswith(name))
    }
    empty = {n: v for n, v in _FILLED_IN.items() if os.environ.get(f"STEADYRUN_{n.upper()}") == ""}
    settings = _settings(missing | empty)
    if settings.metrics_port is not None and runners > 1:
        raise Unusable(
            f"STEADYRUN_METRICS_PORT: {runners} runners on one machine cannot share a port; unset"
            " it, or start one by --runners 1"
        )


def check() -> str:
    """What is fine: the graphs of the graph file, all loaded. Raises Misconfigured. An environment
    of runners has no secret, and needs none."""
    from common.tracing import tracing  # only here: `up` starts faster without
    from gateway.services.hooks import Hooks
    from runner.registry import Registry

    settings = _settings({})
    tracing(settings.traces_url, "check")
    registry = Registry.load(settings.graphs)
    asyncio.run(registry.prepare())
    Hooks(registry.file, timeout_s=1.0)  # guards as gateways make them; nothing is asked
    has_secret = load(GatewaySettings, **_OWN).jwt_secret is not None
    more = "" if has_secret else "; gateways also need STEADYRUN_JWT_SECRET"
    return f"settings and graphs are fine: {', '.join(registry.names)}{more}"


def _settings(missing: Mapping[str, str]) -> RunnerSettings:
    """Of both roles; those of the runner."""
    load(GatewaySettings, **missing, **_OWN)
    settings = load(RunnerSettings, **missing)
    Masker(settings.masking_patterns)
    check_renewal(settings.lease_ttl_s, settings.lease_renew_interval_s)
    return settings
