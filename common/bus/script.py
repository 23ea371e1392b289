"""A Lua script of this package, as bytes of a command."""

from hashlib import sha1
from importlib.resources import files

from common.bus.wire import packed


class Script:
    """`<name>.lua` beside this module. A server forgets its scripts when it is restarted."""

    def __init__(self, name: str) -> None:
        source = files("common.bus").joinpath(f"{name}.lua").read_bytes()
        self.source = source
        self.load = packed("SCRIPT", "LOAD", source)
        self.sha = sha1(source, usedforsecurity=False).hexdigest()

    def call(self, keys: tuple[str, ...], *arguments: bytes | str | int) -> bytes:
        """EVALSHA, ready for an exchange."""
        return packed("EVALSHA", self.sha, len(keys), *keys, *arguments)
