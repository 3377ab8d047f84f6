"""`fanlog bench ...`: thin wrappers over `fanlog.bench`, which is imported only when one runs. It
is long because the options of each benchmark are the signature of its command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fanlog.cli.bench_options import (
    Against,
    ByListener,
    Folder,
    Json,
    ListenerPort,
    Payload,
    Plot,
    Received,
    Receiving,
    Repeat,
    Seconds,
    Subscribers,
    bench_app,
    byte_sizes,
    numbers,
    show,
    systems,
    web_systems,
)
from fanlog.errors import InvalidArgumentError
from fanlog.model import MIB


@bench_app.command(
    epilog="Example: [bold]fanlog bench fanout --subscribers 1,100 --against redis[/]"
)
def fanout(
    *,
    subscribers: Subscribers = "1,10,100,1000",
    payload: Payload = 128,
    against: Against = "redis,nats",
    seconds: Seconds = 2.0,
    repeat: Repeat = 1,
    receive: Receiving = Received.COPY,
    listener: ByListener = ListenerPort.NATIVE,
    tls: Annotated[
        bool, typer.Option("--tls", help="Measure every row once more with TLS. Not with NATS.")
    ] = False,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Deliveries a second to many subscribers."""
    from fanlog.bench import (  # noqa: PLC0415
        FanoutOptions,
        WebFanoutOptions,
        run_fanout,
        run_web_fanout,
    )

    if tls and (listener.is_web or receive is not Received.COPY):
        raise InvalidArgumentError(
            "--tls is for the native port and that of Redis, and for readers that take what they "
            "receive: leave out --listener or --receive."
        )
    if listener.is_web:
        web = WebFanoutOptions(
            receive=receive.value,
            listener="sse" if listener is ListenerPort.SSE else "websocket",
            systems=web_systems(against),
            subscribers=numbers(subscribers, "--subscribers"),
            payload_bytes=payload,
            run_s=seconds,
            repeat=repeat,
            directory=directory,
        )
        show("fanout", lambda progress: run_web_fanout(web, progress), json, plot)
        return
    options = FanoutOptions(
        receive=receive.value,
        listener=listener.value,
        tls=tls,
        systems=systems(against),
        subscribers=numbers(subscribers, "--subscribers"),
        payload_bytes=payload,
        run_s=seconds,
        repeat=repeat,
        directory=directory,
    )
    show("fanout", lambda progress: run_fanout(options, progress), json, plot)


@bench_app.command(
    epilog="Example: [bold]fanlog bench latency --rate 1000,5000 --subscribers 10[/]"
)
def latency(
    *,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            help="Messages a second, in turn: an open loop, latency from the scheduled time. "
            "Without it one message at a time.",
            metavar="N,N,...",
        ),
    ] = None,
    subscribers: Annotated[
        str | None,
        typer.Option(
            "--subscribers",
            help="How many, in turn. By default 1,10,100, and with --rate 10,100.",
            metavar="N,N,...",
        ),
    ] = None,
    payload: Payload = 128,
    against: Against = "redis,nats",
    seconds: Seconds = 2.0,
    repeat: Repeat = 1,
    listener: Annotated[
        ListenerPort | None,
        typer.Option(
            "--listener",
            help="Fanlog's port: its own, that of Redis, or the web's. By default its own; with "
            "--rate also that of Redis.",
        ),
    ] = None,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Time from publishing to the last reader."""
    from fanlog.bench import (  # noqa: PLC0415
        LatencyOptions,
        RateOptions,
        WebLatencyOptions,
        run_latency,
        run_rate,
        run_web_latency,
    )

    is_web = listener is not None and listener.is_web
    common: dict[str, Any] = {
        "systems": web_systems(against) if is_web else systems(against),
        "payload_bytes": payload,
        "run_s": seconds,
        "repeat": repeat,
        "directory": directory,
    }
    if listener is not None and is_web:
        if rate is not None:
            raise InvalidArgumentError("--rate is for the native and the Redis port.")
        web = WebLatencyOptions(
            listener="sse" if listener is ListenerPort.SSE else "websocket",
            subscribers=numbers(subscribers or "1,10,100", "--subscribers"),
            **common,
        )
        show("latency", lambda progress: run_web_latency(web, progress), json, plot)
        return
    if rate is None:
        options = LatencyOptions(
            listener="native" if listener is None else listener.value,
            subscribers=numbers(subscribers or "1,10,100", "--subscribers"),
            **common,
        )
        show("latency", lambda progress: run_latency(options, progress), json, plot)
        return
    at_rate = RateOptions(
        listeners=("native", "redis") if listener is None else (listener.value,),
        rates=numbers(rate, "--rate"),
        subscribers=numbers(subscribers or "10,100", "--subscribers"),
        **common,
    )
    show("latency", lambda progress: run_rate(at_rate, progress), json, plot)


@bench_app.command(
    epilog="Example: [bold]fanlog bench publishers --connections 50 --against redis[/]"
)
def publishers(
    *,
    connections: Annotated[
        str, typer.Option("--connections", help="How many, in turn.", metavar="N,N,...")
    ] = "1,50,500",
    subscribers: Annotated[
        str,
        typer.Option("--subscribers", help="How many, in turn; 0 is nobody.", metavar="N,N,..."),
    ] = "1,0",
    pipelines: Annotated[
        str,
        typer.Option(
            "--pipelines",
            help="Messages that a connection publishes before it waits, in turn. More than 1 only "
            "with the protocol of Redis.",
            metavar="N,N,...",
        ),
    ] = "1,16",
    payload: Payload = 128,
    against: Against = "redis,nats",
    seconds: Seconds = 2.0,
    repeat: Repeat = 1,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Many connections that each wait for an answer before they publish again."""
    from fanlog.bench import PublishersOptions, run_publishers  # noqa: PLC0415

    options = PublishersOptions(
        systems=systems(against),
        connections=numbers(connections, "--connections"),
        subscribers=numbers(subscribers, "--subscribers", least=0),
        pipelines=numbers(pipelines, "--pipelines"),
        payload_bytes=payload,
        run_s=seconds,
        repeat=repeat,
        directory=directory,
    )
    show("publishers", lambda progress: run_publishers(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench durable --windows 1000 --directory .[/]")
def durable(
    *,
    windows: Annotated[
        str, typer.Option("--windows", help="Messages unacknowledged at a time.", metavar="N,N,...")
    ] = "1,1000",
    payload: Payload = 128,
    against: Against = "redis,nats",
    seconds: Seconds = 2.0,
    repeat: Repeat = 1,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Acknowledged messages a second, by what an acknowledgement promises."""
    from fanlog.bench import DurableOptions, run_durable  # noqa: PLC0415

    options = DurableOptions(
        systems=systems(against),
        windows=numbers(windows, "--windows"),
        payload_bytes=payload,
        run_s=seconds,
        repeat=repeat,
        directory=directory,
    )
    show("durable", lambda progress: run_durable(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench clients --messages 100000[/]")
def clients(
    *,
    messages: Annotated[int, typer.Option("--messages", min=1, help="How many.")] = 1_000_000,
    payload: Payload = 128,
    against: Against = "redis,nats",
    repeat: Repeat = 1,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Python client to Python client."""
    from fanlog.bench import ClientsOptions, run_clients  # noqa: PLC0415

    options = ClientsOptions(
        systems=systems(against),
        messages=messages,
        payload_bytes=payload,
        repeat=repeat,
        directory=directory,
    )
    show("clients", lambda progress: run_clients(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench embedded --subscribers 10[/]")
def embedded(
    *,
    messages: Annotated[int, typer.Option("--messages", min=1, help="How many.")] = 500_000,
    subscribers: Annotated[int, typer.Option("--subscribers", min=1, help="How many.")] = 10,
    payload: Payload = 128,
    repeat: Repeat = 1,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """The broker inside a program."""
    from fanlog.bench import EmbeddedOptions, run_embedded  # noqa: PLC0415

    options = EmbeddedOptions(
        messages=messages, subscribers=subscribers, payload_bytes=payload, repeat=repeat
    )
    show("embedded", lambda progress: run_embedded(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench edges --readers 1000 --edges 4[/]")
def edges(
    *,
    readers: Annotated[int, typer.Option("--readers", min=1, help="How many.")] = 1000,
    many: Annotated[int, typer.Option("--edges", min=1, help="How many.")] = 4,
    messages: Annotated[int, typer.Option("--messages", min=1, help="How many.")] = 500,
    payload: Payload = 128,
    repeat: Repeat = 1,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """What a message costs the broker, with readers of its own and with edges."""
    from fanlog.bench.edges import EdgesOptions, run_edges  # noqa: PLC0415

    options = EdgesOptions(
        readers=readers,
        edges=many,
        messages=messages,
        payload_bytes=payload,
        repeat=repeat,
        directory=directory,
    )
    show("edges", lambda progress: run_edges(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench cores --workers 0,2 --subscribers 1000[/]")
def cores(
    *,
    workers: Annotated[
        str,
        typer.Option("--workers", help="How many, in turn; 0 is one process.", metavar="N,N,..."),
    ] = "0,1,2",
    subscribers: Subscribers = "100,1000",
    batches: Annotated[
        str, typer.Option("--batches", help="Messages of a batch, in turn.", metavar="N,N,...")
    ] = "64,1",
    publishes: Annotated[
        int,
        typer.Option(
            "--publishes",
            help="Publishes, or pipelines of 16, that redis-benchmark sends; 0: without it.",
            min=0,
        ),
    ] = 100_000,
    payload: Payload = 128,
    against: Annotated[
        str, typer.Option("--against", help="redis, or none: only Fanlog.", metavar="redis")
    ] = "redis",
    seconds: Seconds = 2.0,
    repeat: Repeat = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, to see that it works.")
    ] = False,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """A broker with and without workers: fan-out, and Redis's own benchmark."""
    from fanlog.bench.cores import QUICK, CoresOptions, run_cores  # noqa: PLC0415

    options = CoresOptions(
        workers=numbers(workers, "--workers", least=0),
        subscribers=numbers(subscribers, "--subscribers"),
        batches=numbers(batches, "--batches"),
        publishes=publishes,
        payload_bytes=payload,
        against_redis="redis" in systems(against),
        run_s=seconds,
        repeat=repeat,
        directory=directory,
    )
    if quick:
        options = replace(options, **QUICK)
    show("cores", lambda progress: run_cores(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench overhead --features tracing[/]")
def overhead(
    *,
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            help="What the second broker has. none: two equal brokers, to see what is noise. "
            "Default: auth,metrics,audit,tracing; none with --dashboard.",
            metavar="NAME,NAME,...",
            show_default=False,
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Keep dashboards open on the second broker.")
    ] = False,
    dashboards: Annotated[
        int, typer.Option("--dashboards", help="How many, with --dashboard.", min=1, max=100)
    ] = 10,
    subscribers: Annotated[
        str | None,
        typer.Option(
            "--subscribers",
            help="How many, in turn; 0 is a publisher that waits for acknowledgements. "
            "Default: 0,1,100; 100 with --dashboard.",
            metavar="N,N,...",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[
        str, typer.Option("--batches", help="Messages of a batch, in turn.", metavar="N,N,...")
    ] = "64,1",
    payload: Payload = 128,
    sampled: Annotated[
        float, typer.Option("--sampled", help="Share of messages in a trace.", min=1e-6, max=1)
    ] = 0.01,
    rounds: Annotated[
        int, typer.Option("--rounds", help="Pairs of slices; their median counts.", min=1)
    ] = 16,
    seconds: Annotated[float, typer.Option("--seconds", help="Of a slice.", min=0.05)] = 0.5,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """What logins, metrics, the audit log and traces cost, beside a broker without them. Or what
    open dashboards cost."""
    from fanlog.bench.overhead import (  # noqa: PLC0415
        FEATURES,
        NO_FEATURES,
        OverheadOptions,
        features_named,
        run_overhead,
    )

    usual = (NO_FEATURES, "100") if dashboard else (",".join(FEATURES), "0,1,100")
    options = OverheadOptions(
        features=features_named(features or usual[0]),
        dashboards=dashboards if dashboard else 0,
        subscribers=numbers(subscribers or usual[1], "--subscribers", least=0),
        batches=numbers(batches, "--batches"),
        payload_bytes=payload,
        sampled=sampled,
        rounds=rounds,
        slice_s=seconds,
        directory=directory,
    )
    show("overhead", lambda progress: run_overhead(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench stall --stop-seconds 10[/]")
def stall(
    *,
    subscribers: Annotated[int, typer.Option("--subscribers", min=1, help="The others.")] = 100,
    stop_seconds: Annotated[
        float, typer.Option("--stop-seconds", help="How long the reader is stopped.", min=0.1)
    ] = 30.0,
    payload: Payload = 128,
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long a phase without it is.", min=0.1)
    ] = 5.0,
    repeat: Annotated[int, typer.Option("--repeat", help="How often a reader stops.", min=1)] = 1,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """A reader stops: what the others notice, and how it catches up."""
    from fanlog.bench import StallOptions, run_stall  # noqa: PLC0415

    options = StallOptions(
        subscribers=subscribers,
        stop_s=stop_seconds,
        payload_bytes=payload,
        run_s=seconds,
        repeat=repeat,
        directory=directory,
    )
    show("stall", lambda progress: run_stall(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench stalls --topics 10000 --gib 0.1[/]")
def stalls(
    *,
    many: Annotated[int, typer.Option("--topics", min=1, help="Topics to list.")] = 100_000,
    gib: Annotated[float, typer.Option("--gib", min=0.001, help="GiB to delete.")] = 1.0,
    positions: Annotated[int, typer.Option("--positions", min=1, help="Committed.")] = 1_000_000,
    producers: Annotated[int, typer.Option("--producers", min=1, help="Of a partition.")] = 10_000,
    segments: Annotated[int, typer.Option("--segments", min=1, help="Dropped at once.")] = 2_000,
    many_groups: Annotated[int, typer.Option("--groups", min=1, help="To list.")] = 10_000,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, to see that it works.")
    ] = False,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """What other clients wait while the broker deletes, lists and tidies up."""
    from fanlog.bench import Scale, StallsOptions, run_stalls  # noqa: PLC0415
    from fanlog.bench.operations import SMALL  # noqa: PLC0415

    scale = Scale(
        topics=many,
        log_bytes=int(gib * 1024 * MIB),
        positions=positions,
        producers=producers,
        segments=segments,
        groups=many_groups,
    )
    options = StallsOptions(scale=SMALL if quick else scale, directory=directory)
    show("stalls", lambda progress: run_stalls(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench rebalance --topics 1000 --members 8[/]")
def rebalance(
    *,
    many: Annotated[int, typer.Option("--topics", min=1, help="Of the group.")] = 10_000,
    members: Annotated[int, typer.Option("--members", min=1, help="Of the group.")] = 64,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """How fast a large group shares its topics out, and what other clients wait meanwhile."""
    from fanlog.bench.rebalance import RebalanceOptions, run_rebalance  # noqa: PLC0415

    options = RebalanceOptions(topics=many, members=members, directory=directory)
    show("rebalance", lambda progress: run_rebalance(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench topics --topics 10,100000[/]")
def topics(
    *,
    many: Annotated[
        str, typer.Option("--topics", help="How many, in turn.", metavar="N,N,...")
    ] = "10,1000,10000,100000",
    payload: Payload = 128,
    seconds: Seconds = 1.0,
    repeat: Annotated[int, typer.Option("--repeat", help="Rounds over all of them.", min=1)] = 5,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Very many topics with a reader each."""
    from fanlog.bench import TopicsOptions, run_topics  # noqa: PLC0415

    options = TopicsOptions(
        topics=numbers(many, "--topics"),
        payload_bytes=payload,
        run_s=seconds,
        repeat=repeat,
        directory=directory,
    )
    show("topics", lambda progress: run_topics(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench startup --sizes 400MiB,4GiB[/]")
def startup(
    *,
    sizes: Annotated[
        str, typer.Option("--sizes", help="Sizes of the log.", metavar="SIZE,SIZE,...")
    ] = "400MiB,4GiB",
    shapes: Annotated[
        bool,
        typer.Option(
            help="Also with 5,000 topics, with 4,000 segments, and with a segment of small batches."
        ),
    ] = True,
    repeat: Repeat = 5,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Start-up with a small and a large log, and with folders that take longest."""
    from fanlog.bench import STARTUP_SHAPES, StartupOptions, run_startup  # noqa: PLC0415

    options = StartupOptions(
        sizes_bytes=byte_sizes(sizes, "--sizes"),
        shapes=STARTUP_SHAPES if shapes else (),
        repeat=repeat,
        directory=directory,
    )
    show("startup", lambda progress: run_startup(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench schedule --pending 1000000 --due 10000[/]")
def schedule(
    *,
    pending: Annotated[
        int, typer.Option("--pending", help="Delayed messages that wait.", min=1)
    ] = 1_000_000,
    due: Annotated[
        int, typer.Option("--due", help="Those of them that are due within one second.", min=1)
    ] = 10_000,
    payload: Payload = 128,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Delayed messages over a kill of the broker: lost, early, twice, and how late."""
    from fanlog.bench import ScheduleOptions, run_schedule  # noqa: PLC0415

    options = ScheduleOptions(pending=pending, due=due, payload_bytes=payload, directory=directory)
    show("schedule", lambda progress: run_schedule(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench groups --repeat 3 --against none[/]")
def groups(
    *,
    workers: Annotated[
        str, typer.Option("--workers", help="How many, in turn.", metavar="N,N,...")
    ] = "1,2,4",
    backlog: Annotated[
        int, typer.Option("--backlog", min=1, help="Messages to read, and jobs to do.")
    ] = 8_000_000,
    payload: Payload = 128,
    against: Annotated[
        str, typer.Option("--against", help="Other systems; none: only Fanlog.", metavar="nats")
    ] = "nats",
    seconds: Seconds = 1.0,
    repeat: Repeat = 3,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Exactly-once publishing, consumer groups and work queues."""
    from fanlog.bench import GroupsOptions, run_groups  # noqa: PLC0415

    options = GroupsOptions(
        systems=systems(against),
        workers=numbers(workers, "--workers"),
        backlog=backlog,
        payload_bytes=payload,
        run_s=seconds,
        repeat=repeat,
        directory=directory,
    )
    show("groups", lambda progress: run_groups(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench spark --records 1000000 --repeat 1[/]")
def spark(
    *,
    records: Annotated[int, typer.Option("--records", min=1000, help="To scan.")] = 10_000_000,
    payload: Payload = 128,
    master: Annotated[str, typer.Option("--master", help="Spark's.")] = "local[2]",
    repeat: Repeat = 3,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Scans, streams and writes by Spark, beside the most that Spark takes from Python."""
    from fanlog.bench import SparkBenchOptions, run_spark  # noqa: PLC0415

    options = SparkBenchOptions(
        records=records,
        row_records=min(records, 500_000),
        sink_records=min(records, 2_000_000),
        payload_bytes=payload,
        master=master,
        repeat=repeat,
        directory=directory,
    )
    show("spark", lambda progress: run_spark(options, progress), json, plot)


@bench_app.command(epilog="Example: [bold]fanlog bench idle --connections 10000[/]")
def idle(
    *,
    connections: Annotated[
        str, typer.Option("--connections", help="How many, in turn.", metavar="N,N,...")
    ] = "1000,10000",
    listener: Annotated[
        ListenerPort, typer.Option("--listener", help="How they connect: websocket or sse.")
    ] = ListenerPort.WEBSOCKET,
    directory: Folder = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Memory of connections that wait for messages."""
    from fanlog.bench import IdleOptions, run_idle  # noqa: PLC0415

    if not listener.is_web:
        raise InvalidArgumentError("--listener is websocket or sse here.")
    options = IdleOptions(
        listener="sse" if listener is ListenerPort.SSE else "websocket",
        connections=numbers(connections, "--connections"),
        directory=directory,
    )
    show("idle", lambda progress: run_idle(options, progress), json, plot)


@bench_app.command("all", epilog="Example: [bold]fanlog bench all --save reports[/]")
def everything(
    *,
    payload: Payload = 128,
    against: Against = "redis,nats",
    seconds: Seconds = 2.0,
    repeat: Repeat = 1,
    directory: Folder = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write each report (JSON) and picture there.", metavar="DIR"),
    ] = None,
) -> None:
    """Every benchmark, one after the other."""

    def files(name: str) -> dict[str, Any]:
        if save is None:
            return {"json": None, "plot": None}
        save.mkdir(parents=True, exist_ok=True)
        return {"json": save / f"{name}.json", "plot": save / f"{name}.png"}

    common: dict[str, Any] = {"payload": payload, "repeat": repeat}
    beside: dict[str, Any] = {"against": against, "directory": directory}
    fanout(**common, **beside, seconds=seconds, **files("fanout"))
    discard: dict[str, Any] = {"receive": Received.DISCARD, "seconds": seconds}
    fanout(**common, **beside, **discard, **files("fanout-discard"))
    latency(**common, **beside, seconds=seconds, **files("latency"))
    latency(rate="1000,5000", **common, **beside, seconds=seconds, **files("latency-rate"))
    publishers(**common, **beside, seconds=seconds, **files("publishers"))
    redis: dict[str, Any] = {
        "against": "redis" if "redis" in against else "none",
        "listener": ListenerPort.REDIS,
        "directory": directory,
        "seconds": seconds,
    }
    fanout(**common, **redis, **files("fanout-redis"))
    latency(**common, **redis, **files("latency-redis"))
    for port in (ListenerPort.WEBSOCKET, ListenerPort.SSE):
        web: dict[str, Any] = {"listener": port, "directory": directory, "seconds": seconds}
        fanout(**common, **web, **files(f"fanout-{port}"))
        latency(**common, **web, **files(f"latency-{port}"))
    idle(directory=directory, **files("idle"))
    durable(**common, **beside, seconds=seconds, **files("durable"))
    clients(**common, **beside, **files("clients"))
    embedded(**common, **files("embedded"))
    edges(**common, directory=directory, **files("edges"))
    cores_against = "redis" if "redis" in against else "none"
    cores(**common, directory=directory, against=cores_against, **files("cores"))
    overhead(payload=payload, directory=directory, **files("overhead"))
    stall(payload=payload, directory=directory, **files("stall"))
    stalls(directory=directory, **files("stalls"))
    topics(payload=payload, directory=directory, **files("topics"))
    startup(directory=directory, **files("startup"))
    schedule(payload=payload, directory=directory, **files("schedule"))
    groups(**common, **beside, **files("groups"))
    spark(**common, directory=directory, **files("spark"))
