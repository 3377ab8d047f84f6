"""The card of this node: what it is, how it is, and what only admins see."""

from __future__ import annotations

from pathlib import Path

from fanlog.config import Config, ListenerOptions
from fanlog.identity import Role
from fanlog.release import VERSION
from tests.listeners.web.conftest import Serving
from tests.listeners.web.guarded import guarded


async def test_the_node_describes_itself(serving: Serving, tmp_path: Path) -> None:
    config = Config(listener=ListenerOptions(port=0))
    async with serving(config, path=tmp_path) as site:
        native = site.broker.listen()
        await site.broker.create_topic("a")
        async with site.http.get("/v1/cluster") as answer:
            found = await answer.json()
        (node,) = found["nodes"]
        assert (node["role"], node["state"], node["version"]) == ("single", "ok", VERSION)
        assert (node["topics"], node["epoch"], node["durable"]) == (1, 1, True)
        assert node["folder"] == str(tmp_path)
        assert node["cores"] > 0
        assert node["memory_bytes"] > 0
        assert 0 < node["disk_free_bytes"] <= node["disk_total_bytes"]
        ports = {one["name"]: (one["host"], one["port"], one["tls"]) for one in node["listeners"]}
        assert ports["web"] == ("127.0.0.1", site.listener.port, False)
        assert ports["native"] == ("127.0.0.1", native.port, False)
        assert found["edges"] == []


async def test_a_broker_in_memory_has_no_disk(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/cluster") as answer:
        (node,) = (await answer.json())["nodes"]
        assert (node["durable"], node["folder"], node["disk_total_bytes"]) == (False, "", 0)


async def test_the_folder_is_for_admins_and_strangers_get_nothing() -> None:
    async with guarded() as site:
        observer = site.key("watch", Role.OBSERVER)
        status, found = await site.ask("GET", "/v1/cluster", key=observer)
        assert status == 200
        assert found["nodes"][0]["folder"] == ""
        nobody = site.key("nobody", subscribe=("a",))
        assert (await site.ask("GET", "/v1/cluster", key=nobody))[0] == 403
        assert (await site.ask("GET", "/v1/cluster"))[0] == 401
