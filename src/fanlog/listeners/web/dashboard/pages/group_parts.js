// What the pages of groups and queues have in common: how lag is written, the table of partitions, and
// the dialogs that reset and delete.

import { Badge, Button, confirmTyped, Dialog, html, Link, openDialog, Pager, Problem, Search, Table, toast, Toggle } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { go, route, setParams, useParam } from "/dashboard/core/router.js";

export const LIST_MS = 5000;
const LIMIT = 50;

const STATES = {
  active: ["ok", "Active", "Somebody reads."],
  rebalancing: ["warn", "Rebalancing", "Partitions are changing hands."],
  inactive: ["quiet", "Nobody reads", "It has no members now. What it has committed is kept."],
};
const QUEUE_STATES = {
  ...STATES,
  active: ["ok", "Active", "Workers take jobs."],
  inactive: ["quiet", "No workers", "Nobody takes jobs now. They wait."],
};

export function State({ kind, state }) {
  const [badge, text, about] = (kind === "queue" ? QUEUE_STATES : STATES)[state] ?? ["quiet", state, ""];
  return html`<${Badge} kind=${badge} title=${about}>${text}<//>`;
}

// Of a group, a queue or a partition: how long its oldest message has been there.
export function Age({ row }) {
  if (!Number(row.lag)) return html`<span class="faint">–</span>`;
  if (row.lag_seconds === null || row.lag_seconds === undefined) return html`<span class="faint" title="The broker is looking it up.">…</span>`;
  const sure = row.lag_seconds_known !== false;
  return html`<span class=${ageClass(row.lag_seconds)} title=${sure ? "" : "At least this many: the broker is still reading older ones."}>
    ${sure ? "" : "at least "}${fmt.duration(row.lag_seconds)}
  </span>`;
}

const ageClass = (seconds) => (seconds >= 300 ? "warn-text nowrap" : "nowrap");

// A group that keeps up has a little lag all the time: what it reads is committed a moment later.
const LATE_SECONDS = 10;
export const isLate = (row) =>
  Number(row.lag) > 0 && (row.lag_seconds === null || row.lag_seconds === undefined || row.lag_seconds >= LATE_SECONDS);
export const lateText = (row) => (isLate(row) ? "warn-text" : "");

export function Count({ value, kind = "" }) {
  return Number(value) ? html`<span class=${kind}>${fmt.count(value)}</span>` : html`<span class="faint">0</span>`;
}

// In a sentence: "the oldest has waited 12 min".
export const waited = (row) =>
  row.lag_seconds === null || row.lag_seconds === undefined
    ? ""
    : `; the oldest has waited ${row.lag_seconds_known === false ? "at least " : ""}${fmt.duration(row.lag_seconds)}`;

// A member's or worker's connection, for those who may see it.
export function Connection({ of: member }) {
  if (!member.present) return html`<${Badge} kind="warn" title="Its connection is lost. It may come back.">Away<//>`;
  if (!member.address) return html`<span class="faint" title="It is in the broker's own process, for instance behind an HTTP request.">–</span>`;
  return html`<${Link} to="/clients" params=${{ search: member.address }} class="nowrap">${member.address}<//>`;
}

export function MessageLink({ topic, partition, offset, children }) {
  return html`<${Link} to="/explorer" params=${{ topic, partition, offset: String(offset) }}>${children}<//>`;
}

// The state of a list that is kept in the address.
export function useList(prefix, sortFallback, orderFallback) {
  const [search, setSearch] = useParam(`${prefix}search`);
  const [sort] = useParam(`${prefix}sort`, sortFallback);
  const [order] = useParam(`${prefix}order`, orderFallback);
  const [lagging] = useParam(`${prefix}behind`);
  const [offset, setOffset] = useParam(`${prefix}offset`, "0");
  const change = (changes) => {
    const named = Object.entries({ ...changes, offset: undefined }).map(([name, value]) => [prefix + name, value || undefined]);
    setParams(Object.fromEntries(named));
  };
  return {
    params: { search, sort, descending: order === "down", lagging: lagging === "true" || undefined, offset: Number(offset), limit: LIMIT },
    change,
    search,
    sort,
    descending: order === "down",
    behind: lagging === "true",
    offset: Number(offset),
    limit: LIMIT,
    setOffset,
    setSearch: (text) => {
      setSearch(text);
      change({ search: text });
    },
    setSort: (key, descending) => change({ sort: key, order: descending ? "down" : "up" }),
    setBehind: (on) => change({ behind: on ? "true" : undefined }),
  };
}

// The partitions of a group or queue: a page of them, however many there are.
export function Partitions({ name, queue }) {
  const list = useList("p_", "lag", "down");
  const { data, error, loading, reload } = usePoll(api.path`/v1/groups/${name}/partitions`, list.params, LIST_MS);
  return html`<div class="stack">
    <${Problem} error=${error} onRetry=${reload} />
    <div class="toolbar">
      <${Search} value=${list.search} onInput=${list.setSearch} placeholder="Topic" label="Search partitions by topic" />
      <${Toggle} label="Only behind" checked=${list.behind} onChange=${list.setBehind} />
    </div>
    <${Table}
      caption="Partitions"
      columns=${queue ? QUEUE_PARTITIONS : GROUP_PARTITIONS}
      rows=${data?.partitions}
      id=${(row) => `${row.topic}/${row.partition}`}
      sort=${list.sort}
      descending=${list.descending}
      onSort=${list.setSort}
      busy=${loading && data !== undefined}
      empty=${list.search || list.behind ? "No partition fits. Change the search." : "It has committed nothing yet."}
    />
    <${Pager} offset=${list.offset} limit=${list.limit} total=${data?.total} noun=${data?.total === 1 ? "partition" : "partitions"} onChange=${list.setOffset} />
  </div>`;
}

const partition = {
  key: "topic",
  label: "Partition",
  sort: true,
  cell: (row) => html`<${Link} to=${route`/topics/${row.topic}`}>${row.topic}<//> <span class="soft">/ ${row.partition}</span>`,
};
const committed = (label) => ({
  key: "committed",
  label,
  sort: true,
  align: "right",
  hideOnPhone: true,
  cell: (row) =>
    row.committed === null
      ? html`<span class="faint" title="It has committed nothing here yet.">none</span>`
      : html`<${MessageLink} topic=${row.topic} partition=${row.partition} offset=${row.committed}>${fmt.count(row.committed)}<//>`,
});
const end = { key: "end_offset", label: "End", sort: true, align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.end_offset) };
const age = (label) => ({ key: "age", label, align: "right", cell: (row) => html`<${Age} row=${row} />` });

const GROUP_PARTITIONS = [
  partition,
  committed("Committed"),
  end,
  { key: "lag", label: "Lag", sort: true, align: "right", cell: (row) => html`<${Count} value=${row.lag} kind=${lateText(row)} />` },
  age("Oldest"),
  { key: "member", label: "Read by", sort: true, cell: (row) => (row.member ? html`<code>${row.member}</code>` : html`<span class="faint">nobody</span>`) },
];
const QUEUE_PARTITIONS = [
  partition,
  committed("Done up to"),
  end,
  { key: "waiting", label: "Waiting", sort: true, align: "right", cell: (row) => html`<${Count} value=${row.waiting} />` },
  { key: "in_flight", label: "In flight", sort: true, align: "right", cell: (row) => html`<${Count} value=${row.in_flight} />` },
  { key: "retrying", label: "Retrying", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Count} value=${row.retrying} kind="warn-text" />` },
  age("Oldest job"),
];

// Why a group or queue can't be changed now; empty if it can.
export function whyBusy(group, queue) {
  if (group.state === "inactive") return "";
  const who = queue ? "workers" : "members";
  return `${queue ? "Workers take its jobs" : "Members read in it"} now. Stop them first: a ${queue ? "queue" : "group"} can only be changed while it has no ${who}.`;
}

// Says what has to be done first.
export const openNotNow = (group, queue, title) =>
  openDialog(
    ({ close }) => html`<${Dialog} title=${title} close=${close}>
      <p>${whyBusy(group, queue)}</p>
      <p class="soft">${queue ? "Jobs that workers have now would be done twice, or not at all." : "Members would commit from where they are, and undo the change."} When the last one is stopped, come back here.</p>
    <//>`,
  );

export async function deleteGroup(group, queue) {
  const what = queue ? "queue" : "group";
  if (whyBusy(group, queue)) {
    openNotNow(group, queue, `Delete the ${what} ${group.name}`);
    return;
  }
  const text = queue
    ? "What is done and what has failed is forgotten. The messages stay in their topics. A worker that comes back makes a new queue, which begins where it says."
    : "What it has committed is forgotten. The messages stay in their topics. A member that comes back makes a new group, which begins where it says.";
  const yes = await confirmTyped({ title: `Delete the ${what} ${group.name}?`, text, name: group.name, action: `Delete ${what}` });
  if (!yes) return;
  try {
    await api.delete(api.path`/v1/groups/${group.name}`);
  } catch (error) {
    toast(error, { kind: "bad" });
    return;
  }
  toast(`The ${what} ${group.name} is deleted.`);
  go(queue ? "/queues" : "/groups");
}

export function Actions({ group, queue, onReset }) {
  return html`<${Button} onClick=${onReset}>Reset …<//>
    <${Button} kind="danger" onClick=${() => deleteGroup(group, queue)}>Delete …<//>`;
}
