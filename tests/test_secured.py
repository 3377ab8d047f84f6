"""What `make test-secured` promises of its brokers, and that they are open without it."""

from __future__ import annotations

import aiohttp
import pytest

import fanlog
from fanlog.config import Config, ListenerOptions, RedisOptions
from fanlog.config_web import WebOptions
from fanlog.errors import UnauthenticatedError
from fanlog.node import Node
from tests import secured


async def test_every_broker_has_tls_and_asks_for_a_login_or_none_does() -> None:
    config = Config(
        listener=ListenerOptions(port=0), redis=RedisOptions(port=0), web=WebOptions(port=0)
    )
    node = Node(None, config)
    node.start()
    try:
        native, web = node.listen(), await node.listen_web()
        assert (node.security is not None) is secured.ON
        assert (node.certificates is not None) is secured.ON
        url = f"fanlog://127.0.0.1:{native.port}"
        async with fanlog.connect(url) as client:
            await client.publish("t", b"x")
        async with aiohttp.ClientSession() as http:
            wrong = {"Authorization": "Bearer fl_wrong"} if secured.ON else {}
            base = f"http://127.0.0.1:{web.port}"
            async with http.get(f"{base}/v1/status", headers=wrong) as answer:
                assert answer.status == (401 if secured.ON else 200)
            async with http.get(f"{base}/v1/status") as answer:
                assert (answer.status, answer.url.scheme == "https") == (200, secured.ON)
        if secured.ON:
            with pytest.raises(UnauthenticatedError):
                async with fanlog.connect(url, user="nobody", password="wrong"):
                    raise AssertionError("it was let in")
    finally:
        await node.stop()
