"""Settings, read once at the composition roots and handed down frozen.

Every variable has the prefix STEADYRUN_ except DATABASE_URL and REDIS_URL, which hosters set under
these names. The README's table is made from this file, so each field says what it does.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from common.addresses import wrong_postgres, wrong_redis

DEMO_PERMISSIONS = ("ops.view", "ops.restart")
"""What a demo token gives, and `chat` on the machine of a running `up`."""

LONGEST_S, LARGEST = 1_000_000_000, 2**31 - 1  # what timers and Postgres' integers can hold
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
Pause = Annotated[float, Field(ge=0, le=LONGEST_S)]
Number = Annotated[int, Field(le=LARGEST)]
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+")  # apps have schemes of their own


class Settings(BaseSettings):
    """What gateways and runners share."""

    model_config = SettingsConfigDict(env_prefix="STEADYRUN_", frozen=True, extra="ignore")

    database_url: SecretStr = Field(
        validation_alias=AliasChoices("DATABASE_URL", "STEADYRUN_DATABASE_URL"),
        description="Postgres ≥ 15, as postgresql://user:password@host:port/database",
    )
    redis_url: SecretStr = Field(
        validation_alias=AliasChoices("REDIS_URL", "STEADYRUN_REDIS_URL"),
        description="Redis ≥ 7.0 or Valkey ≥ 8, as redis:// or rediss://",
    )
    redis_prefix: str = Field("", description="put before every Redis key and channel")
    graphs: Path = Field(Path("langgraph.json"), description="the graph file (contract §8)")
    start_patience_s: Pause = Field(
        0, description="how long to wait at start for Postgres and Redis to answer"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log line that is written"
    )
    log_retention_s: Seconds = Field(
        86_400,
        description="how long the Redis log of a run that has not ended outlives its last write",
    )
    ended_log_retention_s: Seconds = Field(
        300,
        description="how long the Redis log of an ended run is kept; then the archive serves",
    )
    cleanup_interval_s: Seconds = Field(60, description="between two clean-ups of what is too old")
    presence_ttl_s: Seconds = Field(
        12, description="how long a gateway that died still counts as watching its runs"
    )
    disconnect_grace_s: Seconds = Field(
        10,
        description="how long nobody may watch a run with `onDisconnect: cancel` before it ends",
    )
    redis_timeout_s: Seconds = Field(2.0, description="limit for one answer of Redis")
    postgres_timeout_s: Seconds = Field(5.0, description="limit for one statement of ours")
    traces_url: str | None = Field(
        None,
        description="where traces go, OTLP over HTTP (`http://collector:4318/v1/traces`); needs the"
        " extra `otel`; unset: nothing is recorded",
    )
    masking_patterns: Annotated[list[str], NoDecode] = Field(
        [],
        description="further regular expressions (a JSON list of Python's) whose matches are"
        " masked; one that could take for ever is refused at start",
    )

    @field_validator("masking_patterns", mode="before")
    @classmethod
    def _patterns(cls, given: object) -> object:
        """Not decoded by pydantic-settings, which would not say what is wrong."""
        try:
            return json.loads(given or "[]") if isinstance(given, str) else given
        except ValueError:
            raise ValueError("must be a JSON list of regular expressions") from None

    @field_validator("traces_url")
    @classmethod
    def _over_http(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("https://", "http://")):
            raise ValueError("must begin with http:// or https://")
        return url

    @field_validator("database_url")
    @classmethod
    def _postgres(cls, url: SecretStr) -> SecretStr:
        if wrong := wrong_postgres(url.get_secret_value()):
            raise ValueError(wrong)
        return url

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, url: SecretStr) -> SecretStr:
        if wrong := wrong_redis(url.get_secret_value()):
            raise ValueError(wrong)
        return url


class GatewaySettings(Settings):
    """The HTTP edge."""

    gateway_host: str = Field("127.0.0.1", description="address the gateway listens on")
    gateway_port: Number = Field(8000, ge=0, le=65_535, description="port the gateway listens on")
    jwt_secret: SecretStr | None = Field(
        None, description="HS256 secret, at least 32 bytes; also signs tickets"
    )
    jwks_url: str | None = Field(
        None, description="where the keys of RS256/ES256 tokens are (https:// or file://)"
    )
    jwt_audience: str | None = Field(None, description="required `aud`; unchecked when unset")
    jwt_issuer: str | None = Field(None, description="required `iss`; unchecked when unset")
    ticket_ttl_s: Seconds = Field(600, description="how long a stream ticket opens a stream")
    demo: bool = Field(False, description="hand out demo tokens; `steadyrun up` sets it")
    cors_origins: Annotated[list[str], NoDecode] = Field(
        [], description="origins that browsers may call from, separated by commas"
    )
    gateway_pool_size: Number = Field(8, ge=1, description="Postgres connections of one gateway")
    postgres_wait_s: Seconds = Field(
        2, description="a request waits so long for a connection to Postgres, then it gets 503"
    )
    body_bytes_max: Number = Field(1 << 20, ge=1024, description="largest request body")
    content_bytes_max: Number = Field(256 << 10, ge=1, description="largest message content")
    heartbeat_interval_s: Seconds = Field(
        10,
        description="between two comment lines of a stream; clients take 35 s of silence for a cut",
    )
    send_timeout_s: Seconds = Field(
        20, description="a client that takes nothing for so long is aborted; it can come back"
    )
    receive_timeout_s: Seconds = Field(
        30,
        description="a client that owes the rest of a request, all of its head or the next bytes of"
        " its body, for so long gets 408, and its connection is closed",
    )
    ring_bytes_max: Number = Field(
        256 << 10, ge=4096, description="live frames kept per followed run"
    )
    follow_linger_s: Seconds = Field(
        3, description="how long a run is still followed after its last stream has gone"
    )
    streams_max: Number = Field(20_000, ge=1, description="open streams of one gateway")
    streams_per_user_max: Number = Field(
        200, ge=1, description="open streams of one user per gateway"
    )
    user_runs_max: Number = Field(
        0,
        ge=0,
        description="runs of one user that are queued or running, over all gateways; beyond it a"
        " new one is refused (429), while decisions and cancellations are taken; 0: no limit",
    )
    user_streams_max: Number = Field(
        0,
        ge=0,
        description="open streams and waiting calls of one user over all gateways; 0: no limit"
        " but those of each gateway, which also hold while Redis is away",
    )
    user_requests_per_minute_max: Number = Field(
        0,
        ge=0,
        description="requests of one user in a minute over all gateways, all at once if need be;"
        " 0, or while Redis is away: no limit",
    )
    drain_delay_s: Pause = Field(
        0,
        description="SIGTERM: a gateway is unready for so long before its listener closes,"
        " for load balancers that have to ask first",
    )
    drain_window_s: Seconds = Field(
        5,
        description="SIGTERM: streams are aborted one after the other over this time; a second"
        " signal aborts them at once",
    )
    sync_wait_s: Seconds = Field(
        600,
        description="a synchronous call of the session facade waits so long, then the answer is 202"
        " with status `running`; keep it below the read timeout of your proxies",
    )
    guard_timeout_s: Seconds = Field(5, description="limit for a graph's guard or resume validator")
    idempotency_retention_s: Seconds = Field(86_400, description="how long answers are kept by key")

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _origins(cls, value: object) -> object:
        return (
            [o.strip() for o in value.split(",") if o.strip()] if isinstance(value, str) else value
        )

    @field_validator("cors_origins")
    @classmethod
    def _without_paths(cls, origins: list[str]) -> list[str]:
        """As browsers send them: anything else would never be equal."""
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError("must be origins, such as https://a.example, or *")
        return origins

    @field_validator("jwks_url")
    @classmethod
    def _fetchable(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("https://", "http://", "file://")):
            raise ValueError("must begin with https:// or file://")
        return url

    @field_validator("jwt_secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value().encode()) < 32:
            raise ValueError("must have at least 32 bytes")
        return secret


class RunnerSettings(Settings):
    """The executing side."""

    runner_concurrency: Number = Field(16, ge=1, description="runs executed at once by one runner")
    runner_pool_size: Number = Field(6, ge=1, description="Postgres connections beside checkpoints")
    checkpoint_pool_size: Number = Field(
        8, ge=1, description="Postgres connections for checkpoints"
    )
    lease_ttl_s: Seconds = Field(6, description="a runner that cannot renew for so long is dead")
    lease_renew_interval_s: Seconds = Field(1, description="between two renewals")
    loop_stall_max_s: Seconds = Field(
        60, description="a runner whose event loop stands still for longer lets its lease run out"
    )
    death_notice: Literal["lock", "lease"] = Field(
        "lock", description="`lease` behind a transaction pooler, where session locks do not hold"
    )
    reap_interval_s: Seconds = Field(0.2, description="between two looks for dead runners")
    reap_grace_s: Seconds = Field(
        0.3, description="a free lock must be seen twice with so much time between"
    )
    claim_poll_s: Seconds = Field(1, description="the safe poll beside the wake-up")
    publish_window_s: Pause = Field(
        0.01, description="events of a busy run are collected for so long"
    )
    publish_batch_bytes_max: Number = Field(
        32 << 10, ge=1024, description="size that closes a batch"
    )
    archive_interval_s: Seconds = Field(
        2, description="the log is written to the archive at least so often"
    )
    buffer_bytes_max: Number = Field(
        8 << 20,
        ge=1 << 16,
        description="un-archived frames of one run before its graph waits",
    )
    sequence_block: Number = Field(1000, ge=1, description="numbers reserved at once")
    run_timeout_s: Seconds = Field(
        3600,
        description="longest execution of a run, all its runners together; waiting for a person"
        " or in the queue does not count",
    )
    stuck_patience_s: Seconds = Field(
        10,
        description="code that goes on for so long after its run was ended costs the runner its"
        " process: its other runs are handed over, and it exits with status 1",
    )
    attempts_max: Number = Field(3, ge=1, description="deaths of a runner before the run fails")
    metrics_host: str = Field("127.0.0.1", description="address of the runner's /metrics")
    metrics_port: int | None = Field(
        None, ge=1, le=65_535, description="port of the runner's /metrics; unset: none is opened"
    )
    drain_timeout_s: Seconds = Field(
        8,
        description="SIGTERM: how long runs may take to reach a step boundary; a second signal"
        " waits for none",
    )
    events_retention_s: Seconds | None = Field(
        None,
        description="how long after a run's end its events can be replayed, then 410; "
        "unset: as long as the run is kept",
    )
    runs_retention_s: Seconds | None = Field(
        None, description="how long a run is kept after its end; its messages stay"
    )
    conversations_retention_s: Seconds | None = Field(
        None, description="how long a conversation is kept after its last use"
    )
    checkpoints_retention_s: Seconds | None = Field(
        86_400,
        description="how long all checkpoints of an idle conversation are kept, then the newest",
    )
    tool_payload_bytes_max: Number = Field(
        4096, ge=64, description="tool inputs and summaries shown"
    )
    custom_payload_bytes_max: Number = Field(32 << 10, ge=64, description="`custom` data shown")
    output_bytes_max: Number = Field(64 << 10, ge=64, description="`output` of a run shown")
