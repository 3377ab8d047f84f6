// The lists of one topic: its partitions, files, readers, groups and queues, and producers. Each is a
// page of what the broker has.

import { Ago, Badge, Button, Definition, html, Icon, Link, Pager, Table } from "/dashboard/core/ui.js";
import { fmt } from "/dashboard/core/format.js";
import { href, route } from "/dashboard/core/router.js";
import { inWords, SETTINGS } from "/dashboard/pages/topic_settings.js";

export const LIMIT = 50;

const seconds = (us) => (us ? Number(us) / 1e6 : null);
const faint = (text) => html`<span class="faint">${text}</span>`;

// A table with its pages. `page` is what the broker answered, if it did.
function Paged({ page, columns, id, caption, empty, busy, offset, setOffset, noun }) {
  const [one, many] = noun;
  return html`<${Table} caption=${caption} columns=${columns} rows=${page?.rows} id=${id} busy=${busy} empty=${empty} />
    <${Pager} offset=${offset} limit=${LIMIT} total=${page?.total} noun=${Number(page?.total) === 1 ? one : many} onChange=${setOffset} />`;
}

const messagesOf = (topic, partition) => href("/explorer", { topic, partition });

const PARTITIONS = (topic) => [
  { key: "partition", label: "Partition", align: "right", cell: (row) => fmt.count(row.partition) },
  { key: "messages", label: "Messages", align: "right", cell: (row) => (Number(row.messages) ? fmt.count(row.messages) : faint("0")) },
  { key: "offsets", label: "Offsets", align: "right", cell: (row) => html`<span title="The first that is kept, and the next to come">${fmt.count(row.start_offset)} – ${fmt.count(row.end_offset)}</span>` },
  { key: "bytes", label: "Size", align: "right", hideOnPhone: true, cell: (row) => fmt.bytes(row.bytes) },
  { key: "segments", label: "Segments", align: "right", hideOnPhone: true, cell: (row) => html`<${Link} to=${route`/topics/${topic.name}`} params=${{ tab: "segments", partition: row.partition }} aria-label=${`Segments of partition ${row.partition}`}>${fmt.count(row.segments)}<//>` },
  { key: "readers", label: "Readers", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.readers) },
  { key: "compacted", label: "Compacted up to", align: "right", hideOnPhone: true, cell: (row) => (Number(row.compacted_until) ? fmt.count(row.compacted_until) : faint("–")) },
  { key: "state", label: "State", cell: (row) => html`<${PartitionState} row=${row} />` },
  { key: "newest", label: "Newest message", align: "right", cell: (row) => (row.newest_us ? html`<a class="nowrap" href=${messagesOf(topic.name, row.partition)} aria-label=${`Newest messages of partition ${row.partition}`}><${Icon} name="explorer" /> <${Ago} time=${seconds(row.newest_us)} /></a>` : faint("none yet")) },
];

function PartitionState({ row }) {
  if (row.state === "failed") return html`<${Badge} kind="bad">failed<//>`;
  if (row.state === "damaged") return html`<${Badge} kind="warn">${fmt.plural(row.damaged, "message")} lost<//>`;
  return html`<${Badge} kind="ok">ok<//>`;
}

export function Partitions(props) {
  return html`<${Paged} ...${props} page=${props.data.partitions} columns=${PARTITIONS(props.data)} id=${(row) => String(row.partition)} caption="Partitions" noun=${["partition", "partitions"]} />`;
}

const SEGMENTS = [
  { key: "partition", label: "Partition", align: "right", cell: (row) => fmt.count(row.partition) },
  { key: "file", label: "File", cell: (row) => html`<span class="file-name">${row.file}</span>` },
  { key: "offsets", label: "Offsets", align: "right", cell: (row) => html`${fmt.count(row.base_offset)} – ${row.active ? html`<${Badge} kind="info">written to<//>` : fmt.count(row.next_offset)}` },
  { key: "bytes", label: "Size", align: "right", cell: (row) => fmt.bytes(row.bytes) },
  { key: "generation", label: "Compacted", align: "right", hideOnPhone: true, cell: (row) => (row.generation ? fmt.plural(row.generation, "time") : faint("never")) },
  { key: "newest", label: "Newest message", align: "right", hideOnPhone: true, cell: (row) => (row.newest_us ? html`<${Ago} time=${seconds(row.newest_us)} />` : html`<span class="faint" title="The broker has not read this file since its start">not known</span>`) },
];

function OnlyPartition({ partition, setPartition }) {
  if (partition === "") return null;
  return html`<div class="toolbar"><${Button} icon="close" onClick=${() => setPartition("")}>Only partition ${partition}<//></div>`;
}

export function Segments(props) {
  const empty = props.data.settings.durability === "memory" ? "This topic lives in memory: it has no segments on disk." : "No segments yet. The first message makes one.";
  return html`<${OnlyPartition} ...${props} /><${Paged} ...${props} page=${props.data.segments} columns=${SEGMENTS} id=${(row) => `${row.partition}/${row.file}`} caption="Segments" noun=${["segment", "segments"]} empty=${empty} />`;
}

const READERS = [
  { key: "client", label: "Client", cell: (row) => html`${row.user ? html`<strong>${row.user}</strong> ` : ""}${row.client || (row.connection ? faint("no name") : "in the broker's process")}${row.address && html`<br /><span class="hint">${row.address}${row.transport && `, ${row.transport}`}</span>`}` },
  { key: "target", label: "Follows", hideOnPhone: true, cell: (row) => html`<code>${row.target}</code>${row.group && html`<br /><span class="hint">group <${Link} to=${route`/groups/${row.group}`}>${row.group}<//></span>`}` },
  { key: "partitions", label: "Partitions", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.partitions) },
  { key: "position", label: "Next offset", align: "right", hideOnPhone: true, cell: (row) => (row.position === null ? html`<span class="faint" title="It reads several partitions">several</span>` : fmt.count(row.position)) },
  { key: "lag", label: "Behind", align: "right", cell: (row) => (Number(row.lag) ? html`<span class="warn-text">${fmt.plural(row.lag, "message")}</span>` : html`<${Badge} kind="ok">up to date<//>`) },
  { key: "policy", label: "If it is slow", hideOnPhone: true, cell: (row) => POLICIES[row.policy] ?? row.policy },
  { key: "actions", label: "Connection", align: "right", cell: (row) => (row.connection ? html`<${Link} to="/clients" params=${{ search: row.address }} aria-label=${`Show the client at ${row.address}`}>Show<//>` : "") },
];

const POLICIES = {
  "catch-up": html`<span title="Reads what it missed from disk">catches up</span>`,
  skip: html`<span title="Jumps to the newest message, and gets a gap for the missed ones">skips</span>`,
  disconnect: html`<span title="Is disconnected with the reason">is disconnected</span>`,
};

export function Readers(props) {
  const page = props.data.readers;
  if (page?.restricted) {
    return html`<p class="notice">${fmt.plural(page.total, "reader")}, ${fmt.count(page.behind)} of them behind. Only admins see who they are.</p>`;
  }
  return html`${page && !page.complete && html`<p class="notice warn">There are more readers than the broker looks at. These are some of them.</p>`}
    <${Paged} ...${props} page=${page} columns=${READERS} id=${(row) => `${row.connection} ${row.target} ${row.group} ${row.client} ${row.position}`} caption="Readers" noun=${["reader", "readers"]} empty="Nobody reads this topic now. Groups that are away are under “Groups and queues”." />
    <${SlowReaders} counters=${props.data.counters} />`;
}

function SlowReaders({ counters }) {
  if (!Object.values(counters).some((value) => Number(value) > 0)) return null;
  return html`<section class="stack">
    <h2>Slow readers since the broker started</h2>
    <${Definition}
      items=${[
        ["Caught up from disk", `${fmt.count(counters.catch_ups)} times`],
        ["Skipped to the end", `${fmt.count(counters.skips)} times, ${fmt.plural(counters.skipped_records, "message")}`],
        ["Disconnected", `${fmt.count(counters.disconnects)} times`],
        ["Lost to retention or damage", fmt.plural(counters.lost_records, "message")],
      ]}
    />
  </section>`;
}

const stateKinds = { active: "ok", rebalancing: "info", inactive: "quiet" };
const GROUPS = [
  { key: "name", label: "Name", cell: (row) => html`<${Link} to=${row.kind === "queue" ? route`/queues/${row.name}` : route`/groups/${row.name}`}>${row.name}<//>` },
  { key: "kind", label: "Kind", cell: (row) => (row.kind === "queue" ? "queue" : "group") },
  { key: "state", label: "State", hideOnPhone: true, cell: (row) => html`<${Badge} kind=${stateKinds[row.state]}>${row.state === "inactive" ? "nobody there" : row.state}<//>` },
  { key: "members", label: "Members", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.members) },
  { key: "partitions", label: "Partitions", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.partitions) },
  { key: "lag", label: "Lag", align: "right", cell: (row) => (Number(row.lag) ? html`<span class="warn-text">${fmt.plural(row.lag, "message")}</span>` : html`<${Badge} kind="ok">up to date<//>`) },
  { key: "in_flight", label: "In flight", align: "right", hideOnPhone: true, cell: (row) => (row.kind === "queue" ? fmt.count(row.in_flight) : faint("–")) },
];

export function Groups(props) {
  return html`<${Paged} ...${props} page=${props.data.groups} columns=${GROUPS} id=${(row) => `${row.kind} ${row.name}`} caption="Groups and queues" noun=${["group or queue", "groups and queues"]} empty="No group or queue reads this topic, or none that you may see." />`;
}

const PRODUCERS = [
  { key: "name", label: "Producer", cell: (row) => html`${row.name ? html`<strong>${row.name}</strong>` : row.transaction ? "a transaction" : faint("no name")}<br /><span class="hint">id ${String(row.id)}</span>` },
  { key: "epoch", label: "Epoch", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.epoch) },
  { key: "partitions", label: "Partitions", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.partitions) },
  { key: "sequence", label: "Last sequence", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.sequence) },
  { key: "offset", label: "Last message", align: "right", cell: (row) => html`<span class="nowrap">partition ${row.partition}, offset ${fmt.count(row.offset)}</span>` },
  { key: "time", label: "When", align: "right", cell: (row) => (row.time_us ? html`<${Ago} time=${seconds(row.time_us)} />` : html`<span class="faint" title="Its last message was deleted">long ago</span>`) },
];

export function Producers(props) {
  const page = props.data.producers;
  return html`<${OnlyPartition} ...${props} />
    ${page && !page.complete && html`<p class="notice warn">There are more producers than the broker looks at. These are some of them.</p>`}
    <${Paged} ...${props} page=${page} columns=${PRODUCERS} id=${(row) => String(row.id)} caption="Producers" noun=${["producer", "producers"]} empty="The broker remembers no producer of this topic. Those that were idle for long are forgotten." />`;
}

export function Settings({ data, mayManage, alter }) {
  const shown = SETTINGS.filter((one) => one.when(data.settings));
  return html`<section class="card">
    <header>
      <h2>Settings</h2>
      ${mayManage && html`<${Button} onClick=${alter}>Change settings<//>`}
    </header>
    <${Definition} items=${shown.map((one) => [one.label, inWords(one, data.settings[one.key])])} />
  </section>`;
}
