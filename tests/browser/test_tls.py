"""A real browser over https:// and wss://."""

from __future__ import annotations

from pathlib import Path

from tests.browser.conftest import Chromium, new_context
from tests.tls.papers import Papers, serving

TALK = """async () => {
  const { connect } = await import("/fanlog.js");
  const client = connect();
  const room = client.subscribe("chat", { start: "earliest" });
  await client.publish("chat", { text: "hello" });
  for await (const message of room) {
    client.close();
    return [location.protocol, message.value.text];
  }
}"""


async def test_a_page_publishes_and_reads_over_tls(chromium: Chromium, tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers")
    async with serving(papers.options(), web=True) as served, chromium.driven() as browser:
        assert served.web is not None
        # The authority is not one of the browser's; all else of TLS is.
        visitor = await new_context(browser, ignore_https_errors=True)
        page = await visitor.new_page()
        await page.goto(f"https://localhost:{served.web.port}/v1/topics")
        assert await page.evaluate(TALK) == ["https:", "hello"]
