"""The alert rules and the dashboard: promtool accepts them, they use documented names, each alert
has a runbook, and each fires when it should and not before."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.servers import find_program
from tests.telemetry.test_names import documented

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "fanlog.json"
RUNBOOK = ROOT / "docs" / "operations.md"
HINT = "Debian's package prometheus has it"
NAME = re.compile(r"\b(?:fanlog|process)_[a-z_]+")


def promtool(*arguments: str | Path) -> str:
    program = find_program("promtool", HINT)
    ended = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expressions() -> list[str]:
    """Of the dashboard, with its variables replaced."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    chosen = {"$job": "fanlog", "$instance": ".*", "$__rate_interval": "1m", "$__range": "1h"}
    for name, value in chosen.items():
        found = [expression.replace(name, value) for expression in found]
    return found


def base_names(text: str) -> set[str]:
    """Names of metrics as the document has them."""
    known = documented()
    names = set(NAME.findall(text))
    return {re.sub(r"_(bucket|sum|count)$", "", n) if n not in known else n for n in names}


def test_promtool_accepts_the_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", PROMETHEUS / "alerts.yml")


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    key = tmp_path / "fanlog.key"
    key.write_text("a key")
    text = (PROMETHEUS / "prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/fanlog.key", str(key))
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    promtool("check", "config", tmp_path / "prometheus.yml")


def test_rules_and_dashboard_use_documented_names_only() -> None:
    used = base_names("\n".join(rule["expr"] for rule in rules()))
    assert used <= set(documented()), used - set(documented())
    used = base_names("\n".join(expressions()))
    assert used <= set(documented()), used - set(documented())
    assert len(used) > 30


def test_every_expression_of_the_dashboard_is_one(tmp_path: Path) -> None:
    records = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions())
    ]
    path = tmp_path / "dashboard.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}))
    promtool("check", "rules", path)


def test_every_alert_has_a_severity_a_summary_and_a_runbook() -> None:
    chapters = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    for rule in rules():
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert "{{" in rule["annotations"]["summary"], "Say which one it is about."
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert name in chapters, f"Write what to do for {name} in docs/operations.md."


# For each alert: series that make it fire, and one thing in them changed so that it does not.
# "a+bxn": begins at a and grows by b, n times.
Series = dict[str, str]
I = 'job="fanlog",instance="b:1"'  # noqa: E741 - the labels of every series
SLOW = 'le="0.1"', 'le="0.25"', 'le="5"', 'le="+Inf"'
CASES: dict[str, tuple[Series, Series]] = {
    "FanlogDown": ({f"up{{{I}}}": "0x60"}, {f"up{{{I}}}": "1x60"}),
    "FanlogFailing": (
        {f'fanlog_state{{{I},state="failing"}}': "1x60"},
        {f'fanlog_state{{{I},state="failing"}}': "0x60"},
    ),
    "FanlogNotReady": ({f"fanlog_ready{{{I}}}": "0x60"}, {f"fanlog_ready{{{I}}}": "1x60"}),
    "FanlogDegraded": ({f"fanlog_problems{{{I}}}": "2x60"}, {f"fanlog_problems{{{I}}}": "0x60"}),
    "FanlogRestarting": (
        {f"process_start_time_seconds{{{I}}}": "0+1x60"},
        {f"process_start_time_seconds{{{I}}}": "7x60"},
    ),
    "FanlogDiskAlmostFull": (
        {f"fanlog_disk_free_bytes{{{I}}}": "5x60", f"fanlog_disk_total_bytes{{{I}}}": "100x60"},
        {f"fanlog_disk_free_bytes{{{I}}}": "50x60", f"fanlog_disk_total_bytes{{{I}}}": "100x60"},
    ),
    "FanlogDiskFullSoon": (
        {f"fanlog_disk_free_bytes{{{I}}}": "1000000-5000x60"},
        {f"fanlog_disk_free_bytes{{{I}}}": "1000000-1x60"},
    ),
    "FanlogSyncSlow": (
        {
            f"fanlog_sync_seconds_bucket{{{I},{le}}}": v
            for le, v in zip(SLOW, ("0+1x60", "0+2x60", "0+9x60", "0+9x60"), strict=True)
        },
        {f"fanlog_sync_seconds_bucket{{{I},{le}}}": "0+9x60" for le in SLOW},
    ),
    "FanlogLoopDelayed": (
        {
            f"fanlog_loop_delay_seconds_bucket{{{I},{le}}}": v
            for le, v in zip(SLOW, ("0+1x60", "0+9x60", "0+9x60", "0+9x60"), strict=True)
        },
        {f"fanlog_loop_delay_seconds_bucket{{{I},{le}}}": "0+9x60" for le in SLOW},
    ),
    "FanlogOpenFilesAlmostUsed": (
        {f"process_open_fds{{{I}}}": "90x60", f"process_max_fds{{{I}}}": "100x60"},
        {f"process_open_fds{{{I}}}": "50x60", f"process_max_fds{{{I}}}": "100x60"},
    ),
    "FanlogConnectionsRefused": (
        {f'fanlog_connections_refused_total{{{I},listener="web"}}': "0+1x60"},
        {f'fanlog_connections_refused_total{{{I},listener="web"}}': "5x60"},
    ),
    "FanlogMessagesMissed": (
        {f'fanlog_missed_messages_total{{{I},reason="retention"}}': "0+1x60"},
        {f'fanlog_missed_messages_total{{{I},reason="skipped"}}': "0+1x60"},
    ),
    "FanlogReadersSkip": (
        {f'fanlog_slow_readers_total{{{I},policy="skip"}}': "0+60x60"},
        {f'fanlog_slow_readers_total{{{I},policy="catch-up"}}': "0+60x60"},
    ),
    "FanlogGroupLagGrows": (
        {f'fanlog_group_lag_messages{{{I},group="g"}}': "20000+10x60"},
        {f'fanlog_group_lag_messages{{{I},group="g"}}': "20000-10x60"},
    ),
    "FanlogGroupWithoutMembers": (
        {
            f'fanlog_group_lag_messages{{{I},group="g"}}': "5x60",
            f'fanlog_group_members{{{I},group="g"}}': "0x60",
        },
        {
            f'fanlog_group_lag_messages{{{I},group="g"}}': "5x60",
            f'fanlog_group_members{{{I},group="g"}}': "1x60",
        },
    ),
    "FanlogRebalancing": (
        {f"fanlog_group_rebalances_total{{{I}}}": "0+10x60"},
        {f"fanlog_group_rebalances_total{{{I}}}": "0+1x60"},
    ),
    "FanlogQueueLagGrows": (
        {f'fanlog_queue_lag_jobs{{{I},queue="q"}}': "20000+10x60"},
        {f'fanlog_queue_lag_jobs{{{I},queue="q"}}': "20+10x60"},
    ),
    "FanlogDeadLetters": (
        {f'fanlog_queue_dead_letters_total{{{I},queue="q"}}': "0+1x60"},
        {f'fanlog_queue_dead_letters_total{{{I},queue="q"}}': "9x60"},
    ),
    "FanlogRedeliveries": (
        {
            f"fanlog_redelivered_jobs_total{{{I}}}": "0+5x60",
            f"fanlog_delivered_jobs_total{{{I}}}": "0+10x60",
        },
        {
            f"fanlog_redelivered_jobs_total{{{I}}}": "0+5x60",
            f"fanlog_delivered_jobs_total{{{I}}}": "0+100x60",
        },
    ),
    "FanlogAuthFailures": (
        {f'fanlog_auth_failures_total{{{I},listener="web"}}': "0+120x60"},
        {f'fanlog_auth_failures_total{{{I},listener="web"}}': "0+12x60"},
    ),
    "FanlogDenied": (
        {f'fanlog_denied_total{{{I},verb="publish"}}': "0+120x60"},
        {f'fanlog_denied_total{{{I},verb="publish"}}': "0+12x60"},
    ),
    "FanlogClusterWaiting": (
        {f'fanlog_cluster_role{{{I},role="waiting"}}': "1x60"},
        {f'fanlog_cluster_role{{{I},role="waiting"}}': "0x60"},
    ),
    "FanlogClusterProblems": (
        {f"fanlog_cluster_problems{{{I}}}": "1x60"},
        {f"fanlog_cluster_problems{{{I}}}": "0x60"},
    ),
    "FanlogClusterReplicaMissing": (
        {
            f"fanlog_cluster_in_sync_nodes{{{I}}}": "2x60",
            f"fanlog_cluster_replicas_wanted{{{I}}}": "3x60",
        },
        {
            f"fanlog_cluster_in_sync_nodes{{{I}}}": "3x60",
            f"fanlog_cluster_replicas_wanted{{{I}}}": "3x60",
        },
    ),
    "FanlogClusterEtcdAway": (
        {f"fanlog_cluster_etcd_reachable{{{I}}}": "0x60"},
        {f"fanlog_cluster_etcd_reachable{{{I}}}": "1x60"},
    ),
    "FanlogClusterFlaps": (
        {f"fanlog_cluster_epoch{{{I}}}": "0+1x60"},
        {f"fanlog_cluster_epoch{{{I}}}": "7x60"},
    ),
    "FanlogFollowerBehind": (
        {f'fanlog_cluster_follower_behind_bytes{{{I},node="c"}}': "200000000x60"},
        {f'fanlog_cluster_follower_behind_bytes{{{I},node="c"}}': "5x60"},
    ),
}


def test_every_alert_is_tried() -> None:
    assert set(CASES) == {rule["alert"] for rule in rules()}


def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    """As promtool evaluates them: an hour of series, a sample a minute. Each alert has an instance
    of its own, so that all can be tried at once."""
    (tmp_path / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    tests: list[dict[str, Any]] = []
    for fires in (True, False):
        given: list[dict[str, str]] = []
        asked: list[dict[str, Any]] = []
        for name, (firing, silent) in CASES.items():
            for key, values in (firing if fires else silent).items():
                series = key.replace('instance="b:1"', f'instance="{name}"')
                given.append({"series": series, "values": values})
            wanted = f'alertname="{name}",instance="{name}",alertstate="firing"'
            samples = [{"labels": "{}", "value": 1}] if fires else []
            expression = f"count(ALERTS{{{wanted}}})"
            asked.append({"expr": expression, "eval_time": "60m", "exp_samples": samples})
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": asked})
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": tests}))
    promtool("test", "rules", path)
