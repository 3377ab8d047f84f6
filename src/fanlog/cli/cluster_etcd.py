"""The etcd of a cluster, from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fanlog.cluster.etcd_address import EtcdAddress
from fanlog.config_cluster import ClusterOptions
from fanlog.errors import ConfigError

if TYPE_CHECKING:
    from fanlog.cluster.etcd import Etcd


def open_etcd(cluster: ClusterOptions) -> Etcd:
    """Raises ConfigError if the settings can't be used."""
    # aiohttp takes a while to import.
    from fanlog.cluster.etcd import Etcd  # noqa: PLC0415

    return Etcd(etcd_address(cluster))


def etcd_address(cluster: ClusterOptions) -> EtcdAddress:
    """Where etcd is, and what to show it."""
    endpoints = tuple(one.strip() for one in cluster.etcd.split(",") if one.strip())
    return EtcdAddress(
        endpoints=endpoints,
        ca=cluster.etcd_ca_file,
        certificate=cluster.etcd_certificate_file,
        key=cluster.etcd_key_file,
        user=cluster.etcd_user,
        password=_password(cluster.etcd_password_file),
        lease_seconds=cluster.lease_seconds,
    )


def _password(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as fault:
        raise ConfigError(
            f"The file with etcd's password can't be read (cluster.etcd_password_file): {fault}"
        ) from fault
