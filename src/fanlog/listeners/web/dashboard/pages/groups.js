// Consumer groups: who lags, at a glance. The one that is furthest behind comes first.

import { html, Link, Page, Pager, Problem, Search, Select, Stat, Stats, Table, Toggle } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { useCommand } from "/dashboard/core/palette.js";
import { go, href, route, setParams, useParam } from "/dashboard/core/router.js";
import { fmt } from "/dashboard/core/format.js";
import { Age, Count, isLate, lateText, LIST_MS, State, useList, waited } from "/dashboard/pages/group_parts.js";

const STATES = [["", "All states"], ["active", "Active"], ["rebalancing", "Rebalancing"], ["inactive", "Nobody reads"]];

const COLUMNS = [
  { key: "name", label: "Group", sort: true, cell: (row) => html`<${Link} to=${route`/groups/${row.name}`}><strong>${row.name}</strong><//>` },
  { key: "lag", label: "Lag", sort: true, align: "right", cell: (row) => html`<${Count} value=${row.lag} kind=${lateText(row)} />` },
  { key: "lag_seconds", label: "Oldest message", sort: true, align: "right", cell: (row) => html`<${Age} row=${row} />` },
  { key: "state", label: "State", sort: true, cell: (row) => html`<${State} kind="stream" state=${row.state} />` },
  { key: "members", label: "Members", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Count} value=${row.members} />` },
  { key: "topics", label: "Topics", sort: true, align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.topics) },
  { key: "partitions", label: "Partitions", sort: true, align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.partitions) },
  { key: "rebalances", label: "Rebalances", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Count} value=${row.rebalances} />` },
];

export default function GroupsPage() {
  const list = useList("", "lag", "down");
  const [state] = useParam("state");
  const { data, error, loading, reload } = usePoll("/v1/group-list", { kind: "stream", state, ...list.params }, LIST_MS);
  useCommand("Find the group that lags most", () => setParams({ sort: undefined, order: undefined, offset: undefined, search: undefined, behind: undefined, state: undefined }));
  const filtered = Boolean(list.search || state || list.behind);
  return html`<${Page} title="Groups" subtitle="The members of a group share the partitions of a topic. A group's lag is how many messages it has not committed yet.">
    <${Problem} error=${error} onRetry=${reload} />
    <${Stats}>
      <${Stat} label=${filtered ? "Groups that fit" : "Groups"} value=${fmt.count(data?.total)} />
      <${Stat} label="Behind" value=${fmt.count(data?.lagging)} hint="groups with any lag" href=${href("/groups", { behind: "true" })} />
      <${Stat} label="Lag" value=${fmt.count(data?.lag)} hint="messages, in all groups" />
    <//>
    <${Worst} data=${data} list=${list} />
    <div class="toolbar">
      <${Search} value=${list.search} onInput=${list.setSearch} placeholder="Group" label="Search groups" />
      <${Select} label="State" hideLabel value=${state} options=${STATES} onChange=${(value) => list.change({ state: value })} />
      <${Toggle} label="Only behind" checked=${list.behind} onChange=${list.setBehind} />
    </div>
    <${Table}
      caption="Groups"
      columns=${COLUMNS}
      rows=${data?.groups}
      id=${(row) => row.name}
      sort=${list.sort}
      descending=${list.descending}
      onSort=${list.setSort}
      onOpen=${(row) => go(route`/groups/${row.name}`)}
      busy=${loading && data !== undefined}
      empty=${filtered ? "No group fits. Change the search." : "No groups yet. One is made when its first member joins, for instance with: fanlog tail orders --group billing"}
    />
    <${Pager} offset=${list.offset} limit=${list.limit} total=${data?.total} noun=${data?.total === 1 ? "group" : "groups"} onChange=${list.setOffset} />
  <//>`;
}

// In one sentence: who lags most.
function Worst({ data, list }) {
  const first = data?.groups[0];
  if (!first || list.sort !== "lag" || !list.descending || list.offset || !data.total) return null;
  if (!Number(first.lag)) return html`<p class="notice">Every group keeps up.</p>`;
  const why = first.members ? `${fmt.plural(first.members, "member")} read${first.members === 1 ? "s" : ""} in it.` : "Nobody reads in it.";
  return html`<p class="notice ${isLate(first) ? "warn" : ""}">
    <${Link} to=${route`/groups/${first.name}`}>${first.name}<//> is furthest behind: ${fmt.plural(first.lag, "message")}${waited(first)}. ${why}
  </p>`;
}
