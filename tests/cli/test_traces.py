"""`fanlog traces`: the broker's spans on a terminal."""

from __future__ import annotations

from fanlog.format.trace_context import TraceContext
from fanlog.sync import Client
from tests.cli.conftest import Run

CONTEXT = TraceContext(b"t" * 16, b"s" * 8)


def test_spans_of_sampled_messages_are_shown(ask: Run, client: Client) -> None:
    assert ask("traces", "--topic", "traced.a").out == ""
    client.publish("traced.a", b"x", headers={"traceparent": CONTEXT.traceparent})
    header, row = ask("traces", CONTEXT.trace_id.hex()).out.splitlines()
    assert header.split() == ["TIME", "SPAN", "TOOK", "OFFSET", "TRACE", "PARENT"]
    assert row.split()[1:3] == ["append", "traced.a"]
    assert row.split()[-2:] == [CONTEXT.trace_id.hex(), CONTEXT.span_id.hex()]
    [span] = ask("traces", "--topic", "traced.a", "--json").json["spans"]
    assert (span["name"], span["parent_id"]) == ("append traced.a", CONTEXT.span_id.hex())
    refused = ask("traces", "xyz")
    assert refused.code == 2
    assert "32 hexadecimal digits" in refused.sentence
