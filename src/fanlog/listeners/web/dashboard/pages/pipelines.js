// Spark queries that read this broker, and how the last runs of pipelines went.

import { Ago, Badge, Card, Code, Definition, Dialog, Empty, html, Link, openDialog, Page, Problem, Stat, Stats, Table, useStyles } from "/dashboard/core/ui.js";
import { stringify, usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { route, setParams, useParam } from "/dashboard/core/router.js";

const POLL_MS = 5000;

const RUN_STATES = {
  running: ["info", "Running", ""],
  done: ["ok", "Done", ""],
  stopped: ["quiet", "Stopped", "Somebody stopped it. Run it again to resume."],
  failed: ["bad", "Failed", ""],
  silent: ["warn", "Silent", "It has said nothing for two minutes. It may have been killed, or its display was closed."],
};
const QUERY_STATES = {
  running: ["ok", "Running", "It committed in the last ten minutes."],
  idle: ["quiet", "Idle", "It has not committed for ten minutes, or since the broker started."],
};

function State({ states, state }) {
  const [kind, text, about] = states[state] ?? ["quiet", state, ""];
  return html`<${Badge} kind=${kind} title=${about || undefined}>${text}<//>`;
}

const shortName = (name) => name.replace(/^pipeline\./, "");

const QUERY_COLUMNS = [
  { key: "group", label: "Query", cell: (row) => html`<${Link} to=${route`/groups/${row.group}`}><strong>${shortName(row.group)}</strong><//>` },
  { key: "state", label: "State", cell: (row) => html`<${State} states=${QUERY_STATES} state=${row.state} />` },
  { key: "topics", label: "Reads", hideOnPhone: true, cell: (row) => row.topics.map((name, i) => html`${i > 0 && ", "}<${Link} to=${route`/topics/${name}`}>${name}<//>`) },
  { key: "rate", label: "Rate", align: "right", cell: (row) => fmt.rate(row.per_second) },
  { key: "lag", label: "Lag", align: "right", cell: (row) => html`<span class=${Number(row.lag) ? "warn-text" : "faint"}>${fmt.count(row.lag)}</span>` },
  { key: "last", label: "Last batch", cell: (row) => (row.last_batch ? html`<${Ago} time=${row.last_batch} />` : html`<span class="faint" title="None since the broker started">–</span>`) },
  { key: "records", label: "Records in it", align: "right", hideOnPhone: true, cell: (row) => (row.last_batch ? fmt.count(row.last_batch_records) : html`<span class="faint">–</span>`) },
  { key: "batches", label: "Batches", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.batches) },
];

const RUN_COLUMNS = [
  { key: "name", label: "Run", cell: (row) => html`<button type="button" class="link" onClick=${() => show(row)}><strong>${shortName(row.name)}</strong></button>` },
  { key: "pipeline", label: "Pipeline", hideOnPhone: true, cell: (row) => row.pipeline },
  { key: "state", label: "State", cell: (row) => html`<${State} states=${RUN_STATES} state=${row.state} />` },
  { key: "started", label: "Began", cell: (row) => html`<${Ago} time=${row.started} />` },
  { key: "seconds", label: "Took", align: "right", cell: (row) => fmt.duration(Math.round(row.seconds)) },
  { key: "records", label: "Records", align: "right", cell: (row) => fmt.count(row.records) },
  { key: "result", label: "Result", hideOnPhone: true, cell: (row) => html`<span class="clip">${row.why || row.summary}</span>` },
];

const show = (row) => openDialog(({ close }) => html`<${RunDialog} run=${row} close=${close} />`);

export default function PipelinesPage() {
  useStyles("work");
  const [name] = useParam("name");
  const { data, error, loading, reload } = usePoll("/v1/pipelines", { name }, POLL_MS);
  const empty = data && !data.queries.length && !data.runs.length && !name;
  const failed = new Set();
  const seen = new Set();
  for (const run of data?.runs ?? []) {
    if (!seen.has(run.name) && run.state === "failed") failed.add(run.name);
    seen.add(run.name);
  }
  return html`<${Page} title="Pipelines" subtitle="Spark queries that commit how far they are, and the last runs of pipelines that were started with fanlog pipeline run.">
    <${Problem} error=${error} onRetry=${reload} />
    ${name && html`<p class="notice">Only ${shortName(name)} is shown. <button type="button" class="link" onClick=${() => setParams({ name: undefined })}>Show all</button></p>`}
    ${empty
      ? html`<${NoneYet} />`
      : html`<${Stats}>
            <${Stat} label="Queries at work" value=${fmt.count(data?.queries.filter((one) => one.state === "running").length)} />
            <${Stat} label="Behind" value=${fmt.short(data?.queries.reduce((sum, one) => sum + Number(one.lag), 0))} hint="messages, all queries" />
            <${Stat} label="Last run failed" value=${fmt.count(data && failed.size)} kind=${failed.size ? "bad" : ""} hint="pipelines" />
          <//>
          <${Card} title="Queries">
            <${Table} caption="Spark queries" columns=${QUERY_COLUMNS} rows=${data?.queries} id=${(row) => row.group} busy=${loading && data !== undefined}
              empty=${html`No query commits its progress. Give its source the option <code>group</code>.`} />
          <//>
          <${Card} title="Last runs">
            <${Table} caption="Last runs of pipelines" columns=${RUN_COLUMNS} rows=${data?.runs} id=${(row) => `${row.name} ${row.started}`} onOpen=${show}
              busy=${loading && data !== undefined} empty=${html`No run was reported. Start one with <code>fanlog pipeline run archive</code>.`} />
          <//>`}
  <//>`;
}

function NoneYet() {
  return html`<${Card}><${Empty} title="No pipelines yet">
    <p>Ready-made Spark pipelines archive topics to a lake, replay them, clean, join and sum them up. List them, and run one:</p>
    <${Code} label="Copy the commands">${"fanlog pipeline list\nfanlog pipeline run archive --option topics=orders --option lake=lake"}<//>
    <p>A query of your own shows up here when its source has a group:</p>
    <${Code} label="Copy the code">${'spark.readStream.format("fanlog").option("topics", "orders").option("group", "pipeline.mine").load()'}<//>
  <//><//>`;
}

const STREAM_COLUMNS = [
  { key: "name", label: "Stream" },
  { key: "batch", label: "Batch", align: "right", cell: (row) => fmt.count(row.batch) },
  { key: "records", label: "Records", align: "right", cell: (row) => fmt.count(row.records) },
  { key: "rate", label: "Rate", align: "right", cell: (row) => fmt.rate(row.per_second) },
  { key: "lag", label: "Lag", align: "right", cell: (row) => fmt.count(row.lag) },
];

// One run with all that it reported.
function RunDialog({ run, close }) {
  return html`<${Dialog} title=${`Run of ${shortName(run.name)}`} close=${close} wide>
    ${run.why && html`<p class="notice bad">${run.why}</p>`}
    ${run.summary && html`<p class="notice">${run.summary}</p>`}
    <${Definition}
      items=${[
        ["Pipeline", run.pipeline],
        ["State", html`<${State} states=${RUN_STATES} state=${run.state} />`],
        ["Began", fmt.time(run.started)],
        ["Ended", run.ended ? fmt.time(run.ended) : "–"],
        ["Took", fmt.duration(Math.round(run.seconds))],
        ["Records", fmt.count(run.records)],
        ["Group", html`<${Link} to=${route`/groups/${run.name}`}>${run.name}<//>`],
        run.host && ["Host", run.host],
        run.report && ["Report", html`<code>${run.report}/report.html</code>`],
        run.exit_code !== null && ["Exit code", String(run.exit_code)],
      ]}
    />
    ${run.streams.length > 0 && html`<h3>Streams</h3><${Table} caption="Streams of the run" columns=${STREAM_COLUMNS} rows=${run.streams} id=${(row) => row.name} />`}
    ${Object.keys(run.options).length > 0 && html`<h3>Options</h3><${Code} label="Copy the options">${stringify(run.options, 2)}<//>`}
  <//>`;
}
