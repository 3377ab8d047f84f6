// One queue: which jobs wait, who has which, what fails and why.

import { Ago, Badge, Card, Definition, Empty, html, Link, Page, Pager, Problem, Select, Stat, Stats, Table, Tabs, useStyles } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { HistoryChart } from "/dashboard/core/chart.js";
import { useCommand } from "/dashboard/core/palette.js";
import { href, route, useParam } from "/dashboard/core/router.js";
import { Allowed } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";
import { NO_HISTORY, RANGES } from "/dashboard/pages/group.js";
import { Actions, Age, Connection, Count, isLate, LIST_MS, MessageLink, Partitions, State, waited } from "/dashboard/pages/group_parts.js";
import { openReset } from "/dashboard/pages/group_reset.js";

const LIMIT = 20;
const SCHEDULED_MS = 10_000;

export default function QueuePage({ parts }) {
  useStyles("queue");
  const name = parts[0];
  const { data, error, reload } = usePoll(api.path`/v1/queues/${name}`, {}, LIST_MS);
  const [tab, setTab] = useParam("tab", "workers");
  const reset = () => data && openReset(data, true, reload);
  useCommand(`Reset the queue ${name}`, reset);
  const actions = data && html`<${Allowed} verb="queue" name=${name}><${Actions} group=${data} queue onReset=${reset} /><//>`;
  const Tab = { retries: Retries, scheduled: Scheduled, partitions: QueuePartitions, topics: Topics, settings: Settings }[tab] ?? Workers;
  return html`<${Page} title=${name} subtitle=${html`A queue. ${data && html`<${State} kind="queue" state=${data.state} />`}`} actions=${actions}>
    <${Problem} error=${error} onRetry=${reload} />
    ${!(error && !data) &&
    html`<${Figures} queue=${data} />
      ${data && html`<${Sentence} queue=${data} />`}
      <${History} name=${name} />
      <${Tabs}
        label="Parts of the queue"
        tabs=${[
          ["workers", "Workers", data?.worker_count],
          ["retries", "Retries", data?.retrying],
          ["scheduled", "Scheduled"],
          ["partitions", "Partitions", data?.partition_count],
          ["topics", "Topics and dead letters", data?.topic_count],
          ["settings", "Settings"],
        ]}
        value=${tab}
        onChange=${setTab}
      />
      <${Tab} name=${name} queue=${data} />`}
  <//>`;
}

const deadLetters = (queue) => (queue?.topics.length === 1 ? route`/dead/${queue.topics[0].dead_letter}` : "/dead");

function Figures({ queue }) {
  return html`<${Stats}>
    <${Stat} label="Waiting" value=${fmt.count(queue?.waiting)} hint="jobs no worker has taken" />
    <${Stat} label="In flight" value=${fmt.count(queue?.in_flight)} hint=${queue && `with ${fmt.plural(queue.worker_count, "worker")}`} href=${queue && href(route`/queues/${queue.name}`, { tab: "workers" })} />
    <${Stat} label="Oldest job" value=${queue ? html`<${Age} row=${queue} />` : "–"} hint=${Number(queue?.lag) ? "since it was published" : "nothing waits"} />
    <${Stat} label="Retrying" value=${fmt.count(queue?.retrying)} kind=${queue?.retrying ? "warn" : ""} hint="failed, will be tried again" href=${queue && href(route`/queues/${queue.name}`, { tab: "retries" })} />
    <${Stat} label="Dead letters" value=${fmt.count(queue?.dead_lettered)} kind=${queue?.dead_lettered ? "bad" : ""} hint="new since the broker started" href=${href(deadLetters(queue))} />
    <${Stat} label="Delivered" value=${fmt.count(queue?.delivered)} hint=${queue && `${fmt.count(queue.redelivered)} of them again`} />
  <//>`;
}

function Sentence({ queue }) {
  if (!Number(queue.lag) && queue.dead_lettered) return html`<p class="notice">No job waits, but some failed for good. <${Link} to=${deadLetters(queue)}>See why<//></p>`;
  if (!Number(queue.lag)) return html`<p class="notice">Every job is done.</p>`;
  if (queue.state === "inactive") return html`<p class="notice warn">The queue has no workers. ${fmt.plural(queue.lag, "job")} wait${Number(queue.lag) === 1 ? "s" : ""}${waited(queue)}. Start a worker. If the queue is no longer needed, delete it.</p>`;
  if (queue.waiting > queue.in_flight && isLate(queue)) return html`<p class="notice warn">${fmt.plural(queue.waiting, "job")} wait${Number(queue.waiting) === 1 ? "s" : ""}${waited(queue)}. Start more workers if that number grows. Workers that hold jobs for long are first in the list below.</p>`;
  return null;
}

function History({ name }) {
  const [range, setRange] = useParam("range", "1h");
  const [lag, held] = [`queue.${name}.lag`, `queue.${name}.in_flight`];
  return html`<${Card} title="Over time" actions=${html`<${Select} label="Time range" hideLabel value=${range} options=${RANGES} onChange=${setRange} />`}>
    <div class="columns body">
      <${HistoryChart} title="Jobs not done" names=${[lag]} labels=${{ [lag]: "Jobs" }} range=${range} format=${fmt.short} height=${130} sync="queue" empty=${NO_HISTORY} />
      <${HistoryChart} title="In flight" names=${[held]} labels=${{ [held]: "Jobs" }} range=${range} format=${fmt.short} height=${130} sync="queue" empty=${NO_HISTORY} />
    </div>
  <//>`;
}

// "orders / 0, offset 12–14 (3 jobs)"
function Job({ row }) {
  const last = BigInt(row.offset) + BigInt(row.jobs) - 1n;
  return html`<span class="nowrap">${row.topic} <span class="soft">/ ${row.partition}</span></span>${" "}
    <${MessageLink} topic=${row.topic} partition=${row.partition} offset=${row.offset}>
      ${row.jobs > 1 ? `offsets ${fmt.count(row.offset)}–${fmt.count(last)} (${fmt.plural(row.jobs, "job")})` : `offset ${fmt.count(row.offset)}`}
    <//>`;
}

const lateness = (lease, queue) => {
  const whole = queue?.settings.visibility_seconds;
  return whole && lease.seconds_left < whole * 0.2 ? "warn-text nowrap" : "nowrap";
};

function Leases({ worker, queue }) {
  if (!worker.leases.length) return html`<span class="faint">none</span>`;
  const shown = worker.leases.reduce((sum, lease) => sum + lease.jobs, 0);
  return html`<ul class="stack-tight">
    ${worker.leases.map(
      (lease) => html`<li key=${`${lease.topic}/${lease.partition}/${lease.offset}`}>
        <${Job} row=${lease} />${" "}
        <span class="soft">for ${fmt.duration(lease.held_seconds)},</span>${" "}
        <span class=${lateness(lease, queue)}>${fmt.duration(lease.seconds_left)} left</span>${" "}
        ${lease.deliveries > 1 && html`<${Badge} kind="warn" title="It has failed before.">delivery ${lease.deliveries}<//>`}
      </li>`,
    )}
    ${shown < worker.in_flight && html`<li class="hint">and ${fmt.plural(worker.in_flight - shown, "job")} more</li>`}
  </ul>`;
}

function Workers({ name, queue }) {
  const [offset, setOffset] = useParam("w_offset", "0");
  const { data, error, loading, reload } = usePoll(api.path`/v1/queues/${name}/workers`, { offset: Number(offset), limit: LIMIT }, LIST_MS);
  if (data?.total === 0) return html`<${Empty} title="No workers">Nobody takes jobs of this queue now. They wait until a worker comes.<//>`;
  const columns = [
    { key: "id", label: "Worker", cell: (row) => html`<code>${row.id}</code>${row.client && html`<br /><span class="hint">${row.client}</span>`}` },
    { key: "in_flight", label: "Jobs", align: "right", cell: (row) => html`<${Count} value=${row.in_flight} />` },
    { key: "held", label: "Held for", align: "right", cell: (row) => (row.held_seconds === null ? html`<span class="faint">–</span>` : html`<span class="nowrap">${fmt.duration(row.held_seconds)}</span>`) },
    { key: "leases", label: "Its jobs", cell: (row) => html`<${Leases} worker=${row} queue=${queue} />` },
    { key: "target", label: "Works on", hideOnPhone: true, cell: (row) => html`<code>${row.target}</code>` },
    { key: "connection", label: "Connection", hideOnPhone: true, cell: (row) => html`<${Connection} of=${row} />` },
  ];
  return html`<div class="stack">
    <${Problem} error=${error} onRetry=${reload} />
    <p class="soft">Workers that hold a job longest come first. When its time is over, another worker gets the job.</p>
    <${Table} caption="Workers" columns=${columns} rows=${data?.workers} id=${(row) => row.id} busy=${loading && data !== undefined} />
    <${Pager} offset=${Number(offset)} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "worker" : "workers"} onChange=${setOffset} />
  </div>`;
}

function Retries({ name, queue }) {
  const [offset, setOffset] = useParam("r_offset", "0");
  const { data, error, loading, reload } = usePoll(api.path`/v1/queues/${name}/retries`, { offset: Number(offset), limit: 50 }, LIST_MS);
  const most = queue?.settings.max_deliveries;
  const columns = [
    { key: "job", label: "Job", cell: (row) => html`<${Job} row=${row} />` },
    {
      key: "attempts",
      label: "Failed",
      cell: (row) => html`<span class=${row.attempts + 1 >= most ? "bad-text nowrap" : "nowrap"}>${row.attempts} of ${most ?? "…"} times</span><br />
        <span class="hint nowrap">again ${row.due_seconds > 0 ? `in ${fmt.duration(row.due_seconds)}` : "now"}${row.attempts + 1 >= most ? ", for the last time" : ""}</span>`,
    },
    { key: "reason", label: "Why it failed", cell: (row) => (row.reason ? html`<span class="reason">${row.reason}</span>` : html`<span class="faint">not known</span>`) },
  ];
  return html`<div class="stack">
    <${Problem} error=${error} onRetry=${reload} />
    <${Table} caption="Retries" columns=${columns} rows=${data?.retries} id=${(row) => `${row.topic}/${row.partition}/${row.offset}`} busy=${loading && data !== undefined} empty="No failed job waits for its next try." />
    <${Pager} offset=${Number(offset)} limit=${50} total=${data?.total} noun="entries, next due first" onChange=${setOffset} />
  </div>`;
}

const SCHEDULED = [
  { key: "due", label: "Due", cell: (row) => html`<${Ago} time=${row.due} /><br /><span class="hint">${fmt.time(row.due)}</span>` },
  { key: "topic", label: "Topic", cell: (row) => html`<${Link} to=${route`/topics/${row.topic}`}>${row.topic}<//>` },
  { key: "id", label: "Id", cell: (row) => html`<code>${row.id}</code>` },
  { key: "schedule", label: "Schedule", hideOnPhone: true, cell: (row) => (row.schedule ? html`<${Link} to="/schedules" params=${{ search: row.schedule }}>${row.schedule}<//>` : html`<span class="faint">once</span>`) },
  { key: "bytes", label: "Size", align: "right", hideOnPhone: true, cell: (row) => fmt.bytes(row.bytes) },
];

function Scheduled({ name }) {
  const { data, error, loading, reload } = usePoll(api.path`/v1/queues/${name}/scheduled`, {}, SCHEDULED_MS);
  return html`<div class="stack">
    <${Problem} error=${error} onRetry=${reload} />
    <${Table} caption="Scheduled jobs" columns=${SCHEDULED} rows=${data?.scheduled} id=${(row) => `${row.topic} ${row.id}`} busy=${loading && data !== undefined} empty="No message is scheduled for its topics." />
    ${data?.count > 0 && html`<p class="soft">${data.complete ? "" : "At least "}${fmt.plural(data.count, "job")} scheduled${data.count > data.scheduled.length ? `; the first ${data.scheduled.length} are shown` : ""}. <${Link} to="/schedules">All that is scheduled<//></p>`}
  </div>`;
}

const QueuePartitions = ({ name }) => html`<${Partitions} name=${name} queue />`;

const TOPICS = [
  { key: "name", label: "Topic", cell: (row) => html`<${Link} to=${route`/topics/${row.name}`}>${row.name}<//>` },
  { key: "lag", label: "Jobs not done", align: "right", cell: (row) => html`<${Count} value=${row.lag} />` },
  { key: "partitions", label: "Partitions", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.partitions) },
  { key: "dead_letter", label: "Dead letters", cell: (row) => html`<${Link} to=${route`/dead/${row.dead_letter}`}>${row.dead_letter}<//>` },
];

function Topics({ queue }) {
  return html`<${Table} caption="Topics" columns=${TOPICS} rows=${queue?.topics} id=${(row) => row.name} empty="It works on no topic yet." />
    ${queue && queue.topic_count > queue.topics.length && html`<p class="soft">The ${fmt.count(queue.topics.length)} with the most jobs, of ${fmt.count(queue.topic_count)}.</p>`}`;
}

function Settings({ queue }) {
  if (!queue) return null;
  const set = queue.settings;
  const wait = set.retry_delay_seconds
    ? `${fmt.duration(set.retry_delay_seconds)}${set.retry_factor > 1 ? `, then ${set.retry_factor} times longer each time, at most ${fmt.duration(set.retry_max_seconds)}` : ""}${set.retry_jitter ? `, up to ${fmt.percent(set.retry_jitter)} less by chance` : ""}`
    : "none: at once";
  return html`<${Card}>
    <${Definition}
      items=${[
        ["Time a worker has for a job", fmt.duration(set.visibility_seconds)],
        ["Deliveries before a job is a dead letter", fmt.count(set.max_deliveries)],
        ["Wait before a failed job is tried again", wait],
        ["Dead letters go to", set.dead_letter ? html`<${Link} to=${route`/dead/${set.dead_letter}`}>${set.dead_letter}<//>` : html`<code>dead.</code> and the topic's name`],
        ["Order", set.ordered ? "One job of a key at a time, in the order of the log" : "None: any free worker gets the next job"],
        ["A new queue begins at", set.reset === "latest" ? "the end of a topic" : "the beginning of a topic"],
      ]}
    />
    <p class="soft">Workers set these when they join.</p>
  <//>`;
}
