"""What operators did to a cluster, in the audit log: they write to etcd, so that it works while no
node serves anybody, and the primary notes it.

Law: what a primary could not note yet stays in etcd, for the next one."""

from __future__ import annotations

from fanlog.broker.ports import Audit
from fanlog.cluster.records import ShardRecord
from fanlog.cluster.requests import OperatorRequest
from fanlog.identity import Identity


def note_forced_reign(audit: Audit, record: ShardRecord) -> None:
    """An operator has begun a reign although something may be lost."""
    detail = f"accept-loss: epoch {record.forced_epoch} begins with what the node has"
    audit.note(_operator(record.forced_by), "cluster.promote", record.forced_node, "ok", detail)


def note_request(audit: Audit, request: OperatorRequest) -> None:
    """A primary has carried a request out, or begins to."""
    if request.by:
        audit.note(_operator(request.by), f"cluster.{request.what}", request.node, "ok")


def _operator(by: str) -> Identity:
    return Identity(user=by, listener="etcd")
