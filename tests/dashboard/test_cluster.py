"""The card of the node and the nodes of its cluster, as an admin and as a viewer see them."""

from __future__ import annotations

from msgspec.structs import replace
from playwright.async_api import expect

from fanlog.cluster.status import preview_move
from fanlog.format.cluster_view import ClusterMember, ClusterStatus, MovePreview
from fanlog.identity import Role
from tests.dashboard.boards import axe, fits
from tests.dashboard.conftest import Dashboard


async def test_the_node_is_described(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.client():
        await board.broker.create_topic("orders")
        async with board.visit("/cluster") as page:
            await expect(page.get_by_text("One node holds all topics.")).to_be_visible()
            await expect(page.get_by_role("main").get_by_text("Healthy")).to_be_visible()
            table = page.get_by_role("table", name="Listeners")
            await expect(table).to_contain_text(f"127.0.0.1:{board.listener.port}")
            await expect(table.get_by_role("row", name="native")).to_be_visible()
            await expect(page.get_by_text(str(board.node.core.folder))).to_be_visible()
            await axe(page)


async def test_a_viewer_does_not_see_the_folder(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/cluster", login="ann", phone=True, dark=True) as page:
            await expect(page.get_by_text("One node holds all topics.")).to_be_visible()
            await expect(page.get_by_text("Data folder")).to_have_count(0)
            await fits(page)
            await axe(page)


class FakeCluster:
    """A cluster of three, as its primary `a` sees it. `moved` are the switch-overs asked for."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        followers = [
            ClusterMember(
                node="b",
                role="in sync",
                alive=True,
                in_sync=True,
                address="fanlog://10.0.0.2:7420",
                zone="rack-2",
                release="0.1.0",
                level=True,
                behind_positions=3,
                behind_bytes=2048,
            ),
            ClusterMember(node="c", role="replica", alive=False, in_sync=False),
        ]
        primary = ClusterMember(
            node="a",
            role="primary",
            alive=True,
            in_sync=True,
            address="fanlog://10.0.0.1:7420",
            zone="rack-1",
            release="0.1.0",
        )
        self.now = ClusterStatus(
            cluster="orders",
            epoch=7,
            primary="a",
            min_in_sync=2,
            replicas_wanted=3,
            nodes=[primary, *followers],
            problems=[],
            node="a",
            role="primary",
            position=48_211,
            committed=48_210,
            synced=48_208,
            uncommitted_bytes=2048,
        )

    def status(self) -> ClusterStatus:
        return self.now

    async def move(self, node: str, *, dry_run: bool) -> MovePreview:
        preview = preview_move(self.now, node)
        if not dry_run:
            self.moved.append(node)
            self.now = replace(self.now, moving_to=node)
        return preview


async def test_the_nodes_of_a_cluster_are_shown_and_an_admin_switches_over(
    dashboard: Dashboard,
) -> None:
    async with dashboard() as board:
        board.node.core.cluster = cluster = FakeCluster()
        async with board.visit("/cluster") as page:
            table = page.get_by_role("table", name="Nodes of the cluster")
            follower = table.get_by_role("row", name="b in sync")
            await expect(follower).to_contain_text("3 turns, 2 KiB")
            await expect(table.get_by_role("row", name="c replica")).to_contain_text("missing")
            await axe(page)
            await follower.get_by_role("button", name="Make primary").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text("3 turns")
            assert cluster.moved == []
            await axe(page)
            await dialog.get_by_role("button", name="Switch over").click()
            await expect(page.get_by_text("The primary moves to b")).to_be_visible()
            assert cluster.moved == ["b"]


async def test_a_follower_that_is_lost_can_not_be_chosen_any_more(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        board.node.core.cluster = cluster = FakeCluster()
        async with board.visit("/cluster") as page:
            await page.get_by_role("button", name="Make primary").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog.get_by_role("button", name="Switch over")).to_be_enabled()
            a, b, c = cluster.now.nodes
            lost = [a, replace(b, alive=False), c]
            cluster.now = replace(cluster.now, nodes=lost, problems=["b is gone."])
            await expect(dialog).to_contain_text("b is not alive")
            await expect(dialog.get_by_role("button", name="Switch over")).to_be_disabled()
            await expect(page.get_by_text("b is gone.")).to_be_visible()


async def test_a_viewer_sees_a_cluster_and_moves_nothing(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        board.node.core.cluster = cluster = FakeCluster()
        cluster.now = replace(cluster.now, role="follower", node="b")
        async with board.visit("/cluster", login="ann", phone=True, dark=True) as page:
            await expect(page.get_by_text("This node is not the primary.")).to_be_visible()
            await expect(page.get_by_role("button", name="Make primary")).to_have_count(0)
            await fits(page)
            await axe(page)
