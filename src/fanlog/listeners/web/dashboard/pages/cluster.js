// The nodes of the cluster. Today there is one; the page shows as many cards as there are nodes.

import { Ago, Badge, Card, Copy, Definition, html, Link, Meter, Page, Problem, Stat, Stats, Table } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";

const EVERY_MS = 5000;
const STATES = { ok: ["ok", "Healthy"], degraded: ["warn", "Degraded"], failing: ["bad", "Failing"], draining: ["warn", "Stopping"] };

export default function ClusterPage() {
  const { data, error, reload } = usePoll("/v1/cluster", undefined, EVERY_MS);
  const nodes = data?.nodes ?? [];
  return html`<${Page} title="Cluster" subtitle=${data && (nodes.length === 1 ? "One node holds all topics." : `${nodes.length} nodes`)}>
    <${Problem} error=${error} onRetry=${reload} />
    ${nodes.map((node) => html`<${Node} key=${node.id} node=${node} />`)}
    ${data && html`<${Card} title="Edges"><div class="body">
      ${data.edges.length
        ? html`<p>${fmt.plural(data.edges.length, "process", "processes")} with web listeners ${data.edges.length === 1 ? "stands" : "stand"} in front of this broker:</p><ul>${data.edges.map((id) => html`<li key=${id}><code>${id}</code></li>`)}</ul>`
        : html`<p class="soft">None. An edge takes web clients off the broker: <code>fanlog edge</code>.</p>`}
    </div><//>`}
  <//>`;
}

const share = (used, total) => (total > 0 ? Number(used) / Number(total) : undefined);

function Node({ node }) {
  const [kind, text] = STATES[node.state] ?? ["bad", node.state];
  const diskUsed = node.disk_total_bytes - node.disk_free_bytes;
  const diskShare = share(diskUsed, node.disk_total_bytes);
  const memoryShare = share(node.memory_bytes, node.memory_total_bytes);
  const filesShare = share(node.open_files, node.open_files_max);
  return html`<${Card} title=${node.name} actions=${html`<${Badge} kind=${kind}>${text}<//><${Badge}>${node.role === "single" ? "only node" : node.role}<//>`}>
    <div class="body stack">
      ${node.problems > 0 && html`<p class="notice warn">${fmt.plural(node.problems, "problem")}: see the <${Link} to="/">overview<//>.</p>`}
      <${Stats}>
        <${Stat} label="Up for" value=${fmt.duration(node.uptime_seconds)} />
        <${Stat} label="Topics" value=${fmt.count(node.topics)} href="#/topics" />
        <${Stat} label="Connections" value=${fmt.count(node.connections)} href="#/clients" />
        <${Stat} label="Memory" value=${fmt.bytes(node.memory_bytes)} hint=${memoryShare === undefined ? "" : `${fmt.percent(memoryShare)} of ${fmt.bytes(node.memory_total_bytes)}`}>
          ${memoryShare !== undefined && html`<${Meter} value=${memoryShare} max=${1} kind=${memoryShare > 0.9 ? "bad" : ""} label="Memory in use" />`}
        <//>
        <${Stat} label="Disk free" value=${node.durable ? fmt.bytes(node.disk_free_bytes) : "no disk"} kind=${diskShare > 0.95 ? "bad" : diskShare > 0.85 ? "warn" : ""} hint=${node.durable ? `of ${fmt.bytes(node.disk_total_bytes)}` : "everything is in memory"}>
          ${diskShare !== undefined && html`<${Meter} value=${diskShare} max=${1} kind=${diskShare > 0.95 ? "bad" : diskShare > 0.85 ? "warn" : ""} label="Disk in use" />`}
        <//>
        <${Stat} label="Open files" value=${fmt.count(node.open_files)} kind=${filesShare > 0.9 ? "bad" : ""} hint=${node.open_files_max ? `of ${fmt.count(node.open_files_max)}` : ""} />
      <//>
      <${Definition} items=${[
        ["Version", node.version],
        ["Python", `${node.python}, ${node.system}`],
        ["Cores", fmt.count(node.cores)],
        ["Processor time", fmt.duration(node.cpu_seconds)],
        ["Started", html`<${Ago} time=${node.started} />`],
        ["Epoch", fmt.count(node.epoch)],
        ["Process", html`<code>${node.id}</code>`],
        node.folder && ["Data folder", html`<code>${node.folder}</code> <${Copy} text=${node.folder} label="Copy the data folder" />`],
      ]} />
    </div>
    <${Table}
      caption="Listeners"
      columns=${[
        { key: "name", label: "Listener", cell: (row) => row.name },
        { key: "address", label: "Address", cell: (row) => html`<code>${row.host.includes(":") ? `[${row.host}]` : row.host}:${row.port}</code>` },
        { key: "tls", label: "TLS", cell: (row) => (row.tls ? html`<${Badge} kind="ok">on<//>` : html`<${Badge}>off<//>`) },
        { key: "connections", label: "Connections", align: "right", cell: (row) => fmt.count(row.connections) },
      ]}
      rows=${node.listeners}
      id=${(row) => row.name}
    />
  <//>`;
}
