// The cluster, where there is one: its nodes, how far followers are, a switch-over. Then the node that answers.

import { Ago, Badge, Button, Card, Copy, Definition, Dialog, html, Link, Meter, openDialog, Page, Problem, Stat, Stats, Table, toast, useEffect, useState } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { useSession } from "/dashboard/core/session.js";

const EVERY_MS = 5000;
// While a cluster can change its primary.
const CLUSTER_EVERY_MS = 2000;
const STATES = { ok: ["ok", "Healthy"], degraded: ["warn", "Degraded"], failing: ["bad", "Failing"], draining: ["warn", "Stopping"] };

export default function ClusterPage() {
  const [everyMs, setEveryMs] = useState(EVERY_MS);
  const { data, error, reload } = usePoll("/v1/cluster", undefined, everyMs);
  const nodes = data?.nodes ?? [];
  const cluster = data?.cluster;
  useEffect(() => setEveryMs(cluster ? CLUSTER_EVERY_MS : EVERY_MS), [Boolean(cluster)]);
  return html`<${Page} title="Cluster" subtitle=${data && (cluster ? `${cluster.cluster}: ${fmt.plural(cluster.nodes.length, "node")}, seen by ${cluster.node}` : "One node holds all topics.")}>
    <${Problem} error=${error} onRetry=${reload} />
    ${cluster && html`<${Cluster} cluster=${cluster} reload=${reload} />`}
    ${nodes.map((node) => html`<${Node} key=${node.id} node=${node} />`)}
    ${data && html`<${Card} title="Edges"><div class="body">
      ${data.edges.length
        ? html`<p>${fmt.plural(data.edges.length, "process", "processes")} with web listeners ${data.edges.length === 1 ? "stands" : "stand"} in front of this broker:</p><ul>${data.edges.map((id) => html`<li key=${id}><code>${id}</code></li>`)}</ul>`
        : html`<p class="soft">None. An edge takes web clients off the broker: <code>fanlog edge</code>.</p>`}
    </div><//>`}
  <//>`;
}

const inSync = (cluster) => cluster.nodes.filter((one) => one.in_sync).length;

function Cluster({ cluster, reload }) {
  const { admin } = useSession();
  const leads = cluster.role === "primary";
  const count = inSync(cluster);
  const waits = Number(cluster.position) - Number(cluster.synced);
  return html`<${Card} title="Nodes">
    <div class="body stack">
      ${cluster.problems.map((problem) => html`<p key=${problem} class="notice bad" role="status">${problem}</p>`)}
      ${!cluster.etcd_reachable && html`<p class="notice bad" role="status">etcd does not answer this node: nobody can take over, and what is shown may be old.</p>`}
      ${cluster.moving_to && html`<p class="notice" role="status">The primary moves to <b>${cluster.moving_to}</b>, as soon as it has everything.</p>`}
      <${Stats}>
        <${Stat} label="Primary" value=${cluster.primary || "none"} kind=${cluster.primary ? "" : "bad"} />
        <${Stat} label="Epoch" value=${fmt.count(cluster.epoch)} hint="of the reign" />
        <${Stat} label="In sync" value=${fmt.count(count)} kind=${count < cluster.min_in_sync ? "bad" : count < cluster.replicas_wanted ? "warn" : ""} hint=${`of ${cluster.replicas_wanted}, at least ${cluster.min_in_sync}`} />
        ${leads && html`<${Stat} label="Committed" value=${fmt.count(cluster.synced)} hint=${`newest turn: ${fmt.count(cluster.position)}`} />`}
        ${leads && html`<${Stat} label="Waiting" value=${fmt.bytes(cluster.uncommitted_bytes)} hint=${`in ${fmt.plural(waits, "turn")}`} />`}
      <//>
      ${!leads && html`<p class="soft">This node is not the primary. Only the primary knows how far each follower is.</p>`}
    </div>
    <${Table}
      caption="Nodes of the cluster"
      columns=${[
        { key: "node", label: "Node", cell: (row) => html`<b>${row.node}</b>${row.node === cluster.node ? html` <span class="soft">this one</span>` : ""}` },
        { key: "role", label: "Role", cell: (row) => html`<${Badge} kind=${row.role === "primary" ? "info" : row.role === "in sync" ? "ok" : "quiet"}>${row.role}<//>` },
        { key: "state", label: "State", cell: (row) => (row.alive ? html`<${Badge} kind="ok">alive<//>` : html`<${Badge} kind="bad">missing<//>`) },
        { key: "behind", label: "Behind", align: "right", cell: (row) => behind(cluster, row) },
        { key: "address", label: "Address", cell: (row) => (row.address ? html`<code>${row.address}</code>` : "–") },
        { key: "zone", label: "Zone", cell: (row) => row.zone || "–" },
        { key: "release", label: "Release", cell: (row) => row.release || "–" },
        { key: "remark", label: "Remark", cell: (row) => row.remark || "–" },
        { key: "move", label: "Switch over", align: "right", cell: (row) => admin && row.role === "in sync" && row.alive && html`<${Button} onClick=${() => askMove(row.node, reload)}>Make primary<//>` },
      ]}
      rows=${cluster.nodes}
      id=${(row) => row.node}
    />
  <//>`;
}

function behind(cluster, row) {
  if (cluster.role !== "primary" || row.role === "primary" || !row.alive) return "–";
  if (!row.level) return row.behind_bytes > 0 ? `copies, ${fmt.bytes(row.behind_bytes)} left` : "not level";
  return row.behind_positions > 0 ? `${fmt.plural(row.behind_positions, "turn")}, ${fmt.bytes(row.behind_bytes)}` : "level";
}

const askMove = (node, reload) => openDialog(({ close }) => html`<${Move} node=${node} close=${close} reload=${reload} />`);

// What a switch-over means, asked again every second, and then the switch-over itself.
function Move({ node, close, reload }) {
  const [preview, setPreview] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let over = false;
    const look = () =>
      api.post("/v1/cluster/move", { node, dry_run: true }).then(
        (found) => over || (setPreview(found), setError(null)),
        (fault) => over || setError(fault),
      );
    look();
    const timer = setInterval(look, 1000);
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [node]);
  const move = async () => {
    await api.post("/v1/cluster/move", { node });
    toast(`${node} becomes the primary.`);
    reload();
  };
  return html`<${Dialog} title=${`Make ${node} the primary`} close=${close} submit="Switch over" disabled=${!preview?.possible} onSubmit=${move}>
    <${Problem} error=${error} />
    ${preview && !preview.possible && html`<p class="notice bad" role="status">${preview.reason}</p>`}
    ${preview && html`<${Definition} items=${[
      ["Primary now", preview.primary || "none"],
      ["Then", node],
      ["Level", preview.level ? "yes" : "not known to be"],
      ["Waited for", `${fmt.plural(preview.behind_positions, "turn")}, ${fmt.bytes(preview.behind_bytes)}`],
    ]} />`}
    <p class="soft">Publishers wait for a moment, until ${node} has everything. Nothing is lost. Clients of ${preview?.primary || "the primary"} connect again. Followers have no dashboard: continue with that of ${node}.</p>
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
