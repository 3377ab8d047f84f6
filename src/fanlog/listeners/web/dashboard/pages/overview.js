// The broker at a glance: what needs attention first, then figures, and who is busy or behind.
// Everything leads to the page where it can be looked at or fixed.

import { Badge, Button, Card, Code, html, Icon, Link, Page, Problem, Stat, Stats, Table, Tabs, useState, useStyles } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { Spark } from "/dashboard/core/chart.js";
import { fmt } from "/dashboard/core/format.js";
import { go, href, route } from "/dashboard/core/router.js";
import { useMay, useSession } from "/dashboard/core/session.js";

const POLL_MS = 3000;
const SHOWN = 8;
const ROWS = 5;

const STATES = {
  ok: ["ok", "Healthy"],
  degraded: ["warn", "Degraded"],
  failing: ["bad", "Failing"],
  draining: ["warn", "Stopping"],
};

const SEVERITIES = { bad: ["bad", "Urgent"], warn: ["warn", "Warning"], info: ["info", "Note"] };

// Where a finding can be fixed, and what the link there says.
const LINKS = {
  topic: (name) => [route`/topics/${name}`, `Open ${name}`],
  group: (name) => [route`/groups/${name}`, `Open ${name}`],
  queue: (name) => [route`/queues/${name}`, `Open ${name}`],
  "dead-letters": (name) => [route`/dead/${name}`, "See the dead letters"],
  "dead-letters-of": (_name, target) => [target ? route`/dead/${target}` : "/dead", "See why"],
  disk: () => ["/topics", "See the largest topics", { sort: "size", order: "down" }],
  clients: (name) => ["/clients", "See the clients", name ? { search: name } : { behind: "true" }],
  settings: () => ["/settings", "Open the settings"],
  metrics: () => ["/metrics", "See the metrics"],
  transactions: () => ["/transactions", "See the transactions"],
  schedules: () => ["/schedules", "See the schedules"],
  pipelines: (name) => ["/pipelines", "See the run", { name }],
  audit: () => ["/audit", "See the audit log", { result: "failed" }],
  cluster: () => ["/cluster", "See this broker"],
};

export default function OverviewPage() {
  useStyles("overview");
  const { data, error, stale, reload } = usePoll("/v1/overview", {}, POLL_MS);
  if (error?.status === 403 && !data) return html`<${NotAllowed} />`;
  return html`<${Page} title="Overview" subtitle=${data && html`<${Health} data=${data} stale=${stale} />`}>
    <${Problem} error=${error} onRetry=${reload} />
    <${Attention} data=${data} />
    ${data && data.counts.topics === 0 && html`<${FirstSteps} />`}
    <${Figures} data=${data} />
    <div class="overview-columns">
      <${BusyTopics} data=${data} />
      <${Behind} data=${data} />
      <${Readers} data=${data} />
    </div>
  <//>`;
}

// Somebody who may only use some topics.
function NotAllowed() {
  return html`<${Page} title="Overview">
    <p class="notice">You may not see the broker as a whole. Your <${Link} to="/topics">topics<//> are open to you.</p>
  <//>`;
}

function Health({ data, stale }) {
  const [kind, text] = STATES[data.state] ?? ["quiet", data.state];
  return html`<span class="overview-health">
    <${Badge} kind=${kind}>${text}<//>
    <span>Fanlog ${data.release}, up ${fmt.duration(Math.round(data.uptime_seconds))}${data.in_memory ? ", in memory only" : ""}</span>
    ${stale && html`<${Badge} kind="warn">Not up to date<//>`}
  </span>`;
}

// What needs attention

function Attention({ data }) {
  const [all, setAll] = useState(false);
  if (!data) return html`<${Card} title="Needs attention"><p class="faint">Looking…</p><//>`;
  const found = data.attention;
  if (!found.length) {
    return html`<${Card} title="Needs attention">
      <p class="overview-well"><${Icon} name="ok" /> Nothing needs your attention.</p>
    <//>`;
  }
  const shown = all ? found : found.slice(0, SHOWN);
  return html`<${Card} title="Needs attention" class="overview-attention">
    <ul aria-label="What needs attention">
      ${shown.map((one) => html`<${Finding} key=${`${one.kind} ${one.about} ${one.text}`} one=${one} />`)}
    </ul>
    ${found.length > SHOWN &&
    html`<p><${Button} kind="quiet" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show all ${found.length}`}<//></p>`}
  <//>`;
}

function Finding({ one }) {
  const [kind, word] = SEVERITIES[one.severity] ?? ["quiet", one.severity];
  const link = LINKS[one.link]?.(one.about, one.target);
  return html`<li class=${`finding ${kind}`}>
    <${Badge} kind=${kind} icon=${kind === "info" ? "info" : undefined}>${word}<//>
    <span class="text">${one.text}</span>
    ${link && html`<${Link} to=${link[0]} params=${link[2]} class="where">${link[1]}<//>`}
  </li>`;
}

// Figures

function Figures({ data }) {
  const may = useMay("admin");
  if (!data) return html`<${Stats}>${["Published", "Delivered", "Lag", "Loop delay"].map((label) => html`<${Stat} key=${label} label=${label} value="…" />`)}<//>`;
  const { rates, latency, process, counts, history } = data;
  const lag = Number(counts.group_lag) + Number(counts.queue_lag);
  const delay = latency.loop_delay.p99_us;
  return html`<${Stats}>
    <${Figure} label="Published" value=${fmt.rate(rates.published_messages)} hint=${fmt.bytesRate(rates.published_bytes)} to="/metrics"
      values=${history.published_messages} format=${fmt.rate} />
    <${Figure} label="Delivered" value=${fmt.rate(rates.delivered_messages)} hint=${delivered(rates)} to="/metrics"
      values=${history.delivered_messages} format=${fmt.rate} />
    <${Figure} label="Lag of groups and queues" value=${fmt.short(lag)} hint="messages that wait" to="/groups" params=${{ behind: "true" }}
      values=${history.lag} format=${fmt.short} />
    <${Figure} label="Loop delay, 99 %" value=${fmt.ms(delay / 1000)} hint="how long clients wait" to="/metrics" kind=${delayKind(delay)}
      values=${history.loop_delay_p99_us} format=${(us) => fmt.ms(us / 1000)} />
    <${Figure} label="Processor" value=${fmt.percent(process.cpu)} hint="of one core" to="/metrics" values=${history.cpu} format=${fmt.percent} />
    <${Stat} label="Turn, 99 %" value=${time(latency.turn.p99_us)} hint=${`to take in and hand out; half take ${time(latency.turn.p50_us)}`} href=${href("/metrics")} />
    <${Stat} label="Disk sync, 99 %" value=${time(latency.sync.p99_us)} hint=${latency.sync.p99_us ? `half take ${time(latency.sync.p50_us)}` : "none in the last minute"} href=${href("/metrics")} />
    <${Stat} label="Memory" value=${process.resident_bytes ? fmt.bytes(process.resident_bytes) : "–"} hint=${`${fmt.count(process.threads)} threads`} href=${href("/metrics")} />
    <${Disk} process=${process} />
    <${Stat} label="Open files" value=${fmt.count(process.open_files)} hint=${process.open_files_max ? `of ${fmt.count(process.open_files_max)}` : ""} kind=${share(process.open_files, process.open_files_max, 0.8, 0.95)} />
    <${Stat} label="Topics" value=${fmt.count(counts.topics)} hint=${fmt.plural(counts.partitions, "partition")} href=${href("/topics")} />
    <${Stat} label="Groups" value=${fmt.count(counts.groups)} hint=${fmt.plural(counts.queues, "queue")} href=${href("/groups")} />
    <${Stat} label="Connections" value=${fmt.count(counts.connections)} hint=${`${fmt.count(counts.readers_behind)} behind`} href=${may ? href("/clients") : undefined} />
    <${Stat} label="Dead letters" value=${counts.dead_letters === null ? "–" : fmt.count(counts.dead_letters)} hint="jobs that failed for good" href=${href("/dead")} kind=${counts.dead_letters ? "warn" : ""} />
    <${Stat} label="Open transactions" value=${fmt.count(counts.transactions)} href=${href("/transactions")} />
    <${Stat} label="Delayed messages" value=${fmt.count(counts.delayed_messages)} hint=${fmt.plural(counts.schedules, "schedule")} href=${href("/schedules")} />
  <//>`;
}

function Figure({ label, value, hint, to, params, kind, values, format }) {
  return html`<${Stat} label=${label} value=${value} hint=${hint} kind=${kind} href=${href(to, params)}>
    <${Spark} values=${values} label=${`${label}, last 5 minutes`} width=${126} height=${26} format=${format} />
  <//>`;
}

function Disk({ process }) {
  if (!process.disk_total_bytes) return html`<${Stat} label="Disk" value="–" hint="nothing is kept on disk" />`;
  const used = process.disk_total_bytes - process.disk_free_bytes;
  const left = process.disk_full_seconds;
  const hint = left === null || left > 30 * 86400 ? `free of ${fmt.bytes(process.disk_total_bytes)}` : `full in about ${fmt.duration(left)}`;
  return html`<${Stat} label="Disk" value=${fmt.bytes(process.disk_free_bytes)} hint=${hint} kind=${share(used, process.disk_total_bytes, 0.9, 0.97)}
    href=${href("/topics", { sort: "size", order: "down" })} />`;
}

const delivered = (rates) =>
  rates.delivered_jobs > 0 ? `${fmt.bytesRate(rates.delivered_bytes)}, ${fmt.rate(rates.delivered_jobs)} jobs` : fmt.bytesRate(rates.delivered_bytes + rates.fetched_bytes);
const time = (us) => (us ? fmt.ms(us / 1000) : "–");
const delayKind = (us) => (us >= 1_000_000 ? "bad" : us >= 250_000 ? "warn" : "");
const share = (value, max, warn, bad) => (!max || value / max < warn ? "" : value / max < bad ? "warn" : "bad");

// Who is busy, and who is behind

const TOPIC_COLUMNS = [
  { key: "name", label: "Topic", cell: (row) => html`<${Link} to=${route`/topics/${row.name}`}>${row.name}<//>` },
  { key: "rate", label: "Published", align: "right", cell: (row) => fmt.rate(row.messages_per_second) },
  { key: "bytes", label: "Bytes", align: "right", hideOnPhone: true, cell: (row) => fmt.bytesRate(row.bytes_per_second) },
  { key: "readers", label: "Readers", align: "right", cell: (row) => fmt.count(row.readers) },
];

function BusyTopics({ data }) {
  return html`<${Card} title="Busiest topics" actions=${html`<${Link} to="/topics" params=${{ sort: "rate", order: "down" }}>All topics<//>`}>
    <${Table} caption="Busiest topics" columns=${TOPIC_COLUMNS} rows=${data?.topics.slice(0, ROWS)} id=${(row) => row.name}
      onOpen=${(row) => go(route`/topics/${row.name}`)} empty="No topics yet." />
  <//>`;
}

const BEHIND_COLUMNS = [
  {
    key: "name",
    label: "Name",
    cell: (row) => html`<${Link} to=${row.kind === "queue" ? route`/queues/${row.name}` : route`/groups/${row.name}`}>${row.name}<//>`,
  },
  { key: "kind", label: "Kind", hideOnPhone: true, cell: (row) => (row.kind === "queue" ? "Queue" : "Group") },
  { key: "members", label: "Members", align: "right", cell: (row) => html`<${Members} row=${row} />` },
  { key: "lag", label: "Lag", align: "right", cell: (row) => fmt.count(row.lag) },
];

// A pipeline moves its group without being a member.
function Members({ row }) {
  if (row.members) return fmt.count(row.members);
  if (row.kind === "group" && row.name.startsWith("pipeline.")) return html`<${Badge}>pipeline<//>`;
  return html`<${Badge} kind="warn">none<//>`;
}

function Behind({ data }) {
  const rows = data && [
    ...data.groups.map((one) => ({ ...one, kind: "group" })),
    ...data.queues.map((one) => ({ ...one, kind: "queue", members: one.workers })),
  ]
    .filter((one) => Number(one.lag) > 0)
    .sort((a, b) => Number(b.lag) - Number(a.lag))
    .slice(0, ROWS);
  return html`<${Card} title="Furthest behind" actions=${html`<${Link} to="/groups">All groups<//>`}>
    <${Table} caption="Groups and queues that are furthest behind" columns=${BEHIND_COLUMNS} rows=${rows} id=${(row) => `${row.kind} ${row.name}`}
      onOpen=${(row) => go(row.kind === "queue" ? route`/queues/${row.name}` : route`/groups/${row.name}`)} empty="No group or queue is behind." />
  <//>`;
}

const READER_COLUMNS = [
  {
    key: "who",
    label: "Client",
    cell: (row) => html`<${Link} to="/clients" params=${{ search: row.connection }}>${row.user || row.client || row.connection}<//>`,
  },
  { key: "target", label: "Reads", hideOnPhone: true, cell: (row) => row.target },
  { key: "behind", label: "Behind", align: "right", class: "nowrap", cell: (row) => html`${fmt.plural(row.messages, "message")}<br /><span class="hint">${fmt.bytes(row.bytes)}</span>` },
];

function Readers({ data }) {
  if (!data || data.readers === null) return null;
  return html`<${Card} title="Slowest readers" actions=${html`<${Link} to="/clients">All clients<//>`}>
    <${Table} caption="Slowest readers" columns=${READER_COLUMNS} rows=${data.readers.slice(0, ROWS)} id=${(row) => row.connection} empty="All readers are up to date." />
  <//>`;
}

// For a newcomer

const DEFAULT_PORTS = { native: 7420, redis: 7421 };

// Where the listeners are, as far as the broker says: a native one with TLS has another scheme.
function addresses(listeners) {
  const found = (name) => listeners.find((one) => one.name === name);
  const native = found("native");
  const port = (name) => found(name)?.port ?? DEFAULT_PORTS[name];
  const url = `${native?.tls ? "fanlogs" : "fanlog"}://${location.hostname}:${port("native")}`;
  const usual = url === `fanlog://127.0.0.1:${DEFAULT_PORTS.native}`;
  return { url, option: usual ? "" : ` --url ${url}`, redis: `redis-cli -h ${location.hostname} -p ${port("redis")}`, hasRedis: !listeners.length || Boolean(found("redis")) };
}

const STEPS = {
  cli: [
    "Command line",
    (at) => [
      ["Read what comes", `fanlog tail orders${at.option}`],
      ["Send the first message, in another terminal", `fanlog publish orders "hello"${at.option}`],
    ],
  ],
  curl: [
    "curl",
    () => [
      ["Send the first message", `curl ${location.origin}/v1/topics/orders/messages -d hello`],
      ["Read it", `curl ${location.origin}/v1/topics/orders/messages`],
    ],
  ],
  python: [
    "Python",
    (at) => [
      [
        "Send and read a message",
        `import asyncio, fanlog

async def main():
    async with fanlog.connect("${at.url}") as client:
        await client.publish("orders", "hello")
        async with client.subscribe("orders", start="earliest") as messages:
            print((await messages.next()).value)

asyncio.run(main())`,
      ],
    ],
  ],
  redis: ["redis-cli", (at) => [["Read what comes", `${at.redis} subscribe orders`], ["Send the first message, in another terminal", `${at.redis} publish orders hello`]]],
};

function FirstSteps() {
  const [way, setWay] = useState("cli");
  const may = useMay("publish", "orders");
  const session = useSession();
  const { data } = usePoll("/v1/cluster");
  const at = addresses(data?.nodes[0]?.listeners ?? []);
  const ways = Object.entries(STEPS).filter(([id]) => id !== "redis" || at.hasRedis);
  return html`<${Card} title="Send the first message" class="overview-first">
    <div class="body">
      <p>There are no topics yet. The first message to a topic creates it. Then it shows up here by itself.</p>
      <${Tabs} label="Ways to send a message" tabs=${ways.map(([id, [text]]) => [id, text])} value=${way} onChange=${setWay} />
      ${session.auth && html`<p class="hint">This broker asks for a login. Give commands a key: <code>FANLOG_KEY=fl_…</code> before them, or a header <code>Authorization: Bearer fl_…</code> with curl. Keys are made on the page <${Link} to="/security">Security<//>.</p>`}
      ${STEPS[way][1](at).map(([about, text]) => html`<div key=${about} class="step"><p>${about}</p><${Code} label=${`Copy: ${about}`}>${text}<//></div>`)}
      ${may && html`<p>Or <${Link} to="/topics">create a topic<//> and publish from this dashboard, in the <${Link} to="/explorer">Explorer<//>.</p>`}
    </div>
  <//>`;
}
