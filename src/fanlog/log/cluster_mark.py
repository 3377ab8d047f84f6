"""Whether a data folder belongs to a node of a cluster: it has the node's mark, `cluster.json`.

Law: such a folder is never opened alone. It would get messages that the other nodes don't have, and
would part from them."""

from __future__ import annotations

import os

from fanlog.errors import FolderUnusableError, FormatError
from fanlog.log import small_files
from fanlog.log.faults import folder_error
from fanlog.log.small_files import COPY_SUFFIX

# Its fields are in `cluster/mark.py`.
NAME = "cluster.json"


def check_alone(folder: str) -> None:
    """Refuses a folder of a cluster. Raises FolderUnusableError, or why nobody can look."""
    path = f"{folder}/{NAME}"
    for file in (path, path + COPY_SUFFIX):
        try:
            fields, _ = small_files.load(file)
        except (FileNotFoundError, FormatError):
            continue
        except OSError as fault:
            raise folder_error(fault, folder) from fault
        raise FolderUnusableError(_refusal(folder, fields))
    if os.path.exists(path) or os.path.exists(path + COPY_SUFFIX):
        raise FolderUnusableError(
            f"{path} is damaged, and so is its copy: nobody knows which cluster this folder "
            "belongs to. Move it away, and begin with an empty folder."
        )


def _refusal(folder: str, fields: dict[str, object]) -> str:
    node, cluster = fields.get("node"), fields.get("cluster_name")
    return (
        f"{os.path.abspath(folder)} belongs to node {node} of the cluster {cluster!r}. Start it "
        f"with --cluster {cluster} --node-id {node} and --etcd. To continue alone, and leave the "
        f"cluster for good, remove its files {NAME} and {NAME}{COPY_SUFFIX} first."
    )
