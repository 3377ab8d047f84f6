// Queues: how many jobs wait, for how long, and which fail.

import { Button, html, Link, Page, Pager, Problem, Search, Select, Stat, Stats, Table, Toggle } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { go, href, route, useParam } from "/dashboard/core/router.js";
import { fmt } from "/dashboard/core/format.js";
import { Age, Count, isLate, LIST_MS, State, useList, waited } from "/dashboard/pages/group_parts.js";

const STATES = [["", "All states"], ["active", "Active"], ["inactive", "No workers"]];

const COLUMNS = [
  { key: "name", label: "Queue", sort: true, cell: (row) => html`<${Link} to=${route`/queues/${row.name}`}><strong>${row.name}</strong><//>` },
  { key: "waiting", label: "Waiting", sort: true, align: "right", cell: (row) => html`<${Count} value=${row.waiting} />` },
  { key: "in_flight", label: "In flight", sort: true, align: "right", cell: (row) => html`<${Count} value=${row.in_flight} />` },
  { key: "lag_seconds", label: "Oldest job", sort: true, align: "right", cell: (row) => html`<${Age} row=${row} />` },
  { key: "retrying", label: "Retrying", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Count} value=${row.retrying} kind="warn-text" />` },
  { key: "dead_lettered", label: "Dead letters", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Count} value=${row.dead_lettered} kind="bad-text" />` },
  { key: "state", label: "State", sort: true, cell: (row) => html`<${State} kind="queue" state=${row.state} />` },
  { key: "members", label: "Workers", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Count} value=${row.members} />` },
  { key: "topics", label: "Topics", sort: true, align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.topics) },
];

export default function QueuesPage() {
  const list = useList("", "waiting", "down");
  const [state] = useParam("state");
  const { data, error, loading, reload } = usePoll("/v1/group-list", { kind: "queue", state, ...list.params }, LIST_MS);
  const filtered = Boolean(list.search || state || list.behind);
  return html`<${Page} title="Queues" subtitle="Each message of a queue's topics is a job. One free worker gets it, and says when it is done; a job that fails is tried again." actions=${html`<${Button} href=${href("/dead")} icon="dead">Dead letters<//>`}>
    <${Problem} error=${error} onRetry=${reload} />
    <${Stats}>
      <${Stat} label=${filtered ? "Queues that fit" : "Queues"} value=${fmt.count(data?.total)} />
      <${Stat} label="With jobs" value=${fmt.count(data?.lagging)} hint="queues that have work" href=${href("/queues", { behind: "true" })} />
      <${Stat} label="Jobs not done" value=${fmt.count(data?.lag)} hint="waiting or in flight, of all" />
    <//>
    <${Worst} data=${data} list=${list} />
    <div class="toolbar">
      <${Search} value=${list.search} onInput=${list.setSearch} placeholder="Queue" label="Search queues" />
      <${Select} label="State" hideLabel value=${state} options=${STATES} onChange=${(value) => list.change({ state: value })} />
      <${Toggle} label="Only with jobs" checked=${list.behind} onChange=${list.setBehind} />
    </div>
    <${Table}
      caption="Queues"
      columns=${COLUMNS}
      rows=${data?.groups}
      id=${(row) => row.name}
      sort=${list.sort}
      descending=${list.descending}
      onSort=${list.setSort}
      onOpen=${(row) => go(route`/queues/${row.name}`)}
      busy=${loading && data !== undefined}
      empty=${filtered ? "No queue fits. Change the search." : "No queues yet. One is made when its first worker comes."}
    />
    <${Pager} offset=${list.offset} limit=${list.limit} total=${data?.total} noun=${data?.total === 1 ? "queue" : "queues"} onChange=${list.setOffset} />
  <//>`;
}

// In one sentence: where most jobs wait.
function Worst({ data, list }) {
  const first = data?.groups[0];
  if (!first || list.sort !== "waiting" || !list.descending || list.offset) return null;
  if (!Number(first.waiting)) return html`<p class="notice">No job waits for a worker.</p>`;
  const why = first.members ? `${fmt.plural(first.members, "worker")} take${first.members === 1 ? "s" : ""} jobs.` : "It has no workers.";
  return html`<p class="notice ${isLate(first) ? "warn" : ""}">
    Most jobs wait in <${Link} to=${route`/queues/${first.name}`}>${first.name}<//>: ${fmt.count(first.waiting)}${waited(first)}. ${why}
  </p>`;
}
