"""The Python client over real connections."""

import asyncio

from deploy.client import Client, Event

_STREAMS = 101  # one more than httpx lets a client have by default
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
_END = b'id: 1\nevent: done\ndata: {"type":"done","runId":"run_1","sequence":1}\n\n'


async def test_one_client_follows_more_runs_at_once_than_a_pool_has_connections() -> None:
    """The server ends the streams once all of them are there."""
    there = asyncio.Barrier(_STREAMS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await there.wait()
        writer.write(_HEAD + _END)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Client(f"http://127.0.0.1:{port}", "token") as client, asyncio.timeout(8):
        read = [events(client, f"run_{n}") for n in range(_STREAMS)]
        assert all(
            [one["type"] for one in seen] == ["done"] for seen in await asyncio.gather(*read)
        )


async def events(client: Client, run_id: str) -> list[Event]:
    return [event async for event in client.follow(run_id)]
