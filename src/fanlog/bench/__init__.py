"""Benchmarks of Fanlog next to Redis and NATS, behind `fanlog bench`.

Law: every system is measured by the same code in the same run, every run is verified, and every
report says where it ran.

>>> from fanlog.bench import FanoutOptions, render, run_fanout  # doctest: +SKIP
>>> rich.print(render(run_fanout(FanoutOptions(subscribers=(1, 10)))))  # doctest: +SKIP
"""

from fanlog.bench.clients import ClientsOptions, run_clients
from fanlog.bench.durable import DurableOptions, run_durable
from fanlog.bench.embedded import EmbeddedOptions, run_embedded
from fanlog.bench.fanout import FanoutOptions, run_fanout
from fanlog.bench.groups import GroupsOptions, run_groups
from fanlog.bench.idle import IdleOptions, run_idle
from fanlog.bench.latency import LatencyOptions, run_latency
from fanlog.bench.operations import Scale
from fanlog.bench.plot import save_plot
from fanlog.bench.publishers import PublishersOptions, run_publishers
from fanlog.bench.rate import RateOptions, run_rate
from fanlog.bench.results import Report, load_report, save_report, to_json
from fanlog.bench.schedule import ScheduleOptions, run_schedule
from fanlog.bench.spark import SparkBenchOptions, run_spark
from fanlog.bench.stall import StallOptions, run_stall
from fanlog.bench.stalls import StallsOptions, run_stalls
from fanlog.bench.startup import SHAPES as STARTUP_SHAPES
from fanlog.bench.startup import StartupOptions, run_startup
from fanlog.bench.systems import BenchError, SystemUnavailableError
from fanlog.bench.tables import progress_bar, render
from fanlog.bench.topics import TopicsOptions, run_topics
from fanlog.bench.web import WebFanoutOptions, WebLatencyOptions, run_web_fanout, run_web_latency

__all__ = [
    "STARTUP_SHAPES",
    "BenchError",
    "ClientsOptions",
    "DurableOptions",
    "EmbeddedOptions",
    "FanoutOptions",
    "GroupsOptions",
    "IdleOptions",
    "LatencyOptions",
    "PublishersOptions",
    "RateOptions",
    "Report",
    "Scale",
    "ScheduleOptions",
    "SparkBenchOptions",
    "StallOptions",
    "StallsOptions",
    "StartupOptions",
    "SystemUnavailableError",
    "TopicsOptions",
    "WebFanoutOptions",
    "WebLatencyOptions",
    "load_report",
    "progress_bar",
    "render",
    "run_clients",
    "run_durable",
    "run_embedded",
    "run_fanout",
    "run_groups",
    "run_idle",
    "run_latency",
    "run_publishers",
    "run_rate",
    "run_schedule",
    "run_spark",
    "run_stall",
    "run_stalls",
    "run_startup",
    "run_topics",
    "run_web_fanout",
    "run_web_latency",
    "save_plot",
    "save_report",
    "to_json",
]
