// One group: who reads what, how far each is behind, and where the group continues.

import { Badge, Card, Empty, html, Link, Page, Problem, Select, Stat, Stats, Table, Tabs } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { HistoryChart } from "/dashboard/core/chart.js";
import { useCommand } from "/dashboard/core/palette.js";
import { replace, route, useParam } from "/dashboard/core/router.js";
import { Allowed } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";
import { Actions, Age, Connection, Count, isLate, LIST_MS, Partitions, State, waited } from "/dashboard/pages/group_parts.js";
import { openReset } from "/dashboard/pages/group_reset.js";

// The broker keeps the history of those that matter most.
export const NO_HISTORY = "No history yet. With very many groups, those with the most lag have one.";
export const RANGES = [["5m", "5 minutes"], ["15m", "15 minutes"], ["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"]];

export default function GroupPage({ parts }) {
  const name = parts[0];
  const { data, error, reload } = usePoll(api.path`/v1/groups/${name}/overview`, {}, LIST_MS);
  const [tab, setTab] = useParam("tab", "partitions");
  const reset = () => data && openReset(data, false, reload);
  useCommand(`Reset the group ${name}`, reset);
  if (data?.kind === "queue") {
    replace(route`/queues/${name}`);
    return null;
  }
  const actions = data && html`<${Allowed} verb="group" name=${name}><${Actions} group=${data} onReset=${reset} /><//>`;
  return html`<${Page} title=${name} subtitle=${html`A group. ${data && html`<${State} kind="stream" state=${data.state} />`}`} actions=${actions}>
    <${Problem} error=${error} onRetry=${reload} />
    ${!(error && !data) &&
    html`<${Figures} group=${data} />
      ${data && html`<${Sentence} group=${data} />`}
      <${Lag} name=${name} />
      <${Tabs}
        label="Parts of the group"
        tabs=${[["partitions", "Partitions", data?.partition_count], ["members", "Members", data?.member_count], ["topics", "Topics", data?.topic_count]]}
        value=${tab}
        onChange=${setTab}
      />
      ${tab === "members" ? html`<${Members} group=${data} />` : tab === "topics" ? html`<${Topics} group=${data} />` : html`<${Partitions} name=${name} />`}`}
  <//>`;
}

function Figures({ group }) {
  return html`<${Stats}>
    <${Stat} label="Lag" value=${fmt.count(group?.lag)} kind=${group && isLate(group) ? "warn" : ""} hint="messages not committed" />
    <${Stat} label="Oldest message" value=${group ? html`<${Age} row=${group} />` : "–"} hint=${Number(group?.lag) ? "since it was published" : "nothing waits"} />
    <${Stat} label="Members" value=${fmt.count(group?.member_count)} />
    <${Stat} label="Partitions" value=${fmt.count(group?.partition_count)} hint=${group && `of ${fmt.plural(group.topic_count, "topic")}`} />
    <${Stat} label="Rebalances" value=${fmt.count(group?.rebalances)} hint="since members joined" />
  <//>`;
}

// What is the matter, and what to do about it.
function Sentence({ group }) {
  if (!Number(group.lag)) return html`<p class="notice">It keeps up: everything is committed.</p>`;
  const behind = `${fmt.plural(group.lag, "message")} wait${Number(group.lag) === 1 ? "s" : ""}${waited(group)}.`;
  if (group.member_count && !isLate(group)) return html`<p class="notice">It keeps up: ${fmt.plural(group.lag, "message")} ${Number(group.lag) === 1 ? "is" : "are"} on the way, the oldest for ${fmt.duration(group.lag_seconds)}.</p>`;
  if (!group.member_count) return html`<p class="notice warn">The group has no members. ${behind} Start its members. If the group is no longer needed, delete it.</p>`;
  const [slowest] = group.members;
  return html`<p class="notice warn">
    ${behind} Furthest behind is the member <code>${slowest.id}</code>${slowest.client && html` (${slowest.client})`}, with ${fmt.plural(slowest.lag, "message")} in ${fmt.plural(slowest.partitions, "partition")}.
    ${slowest.address && html` See <${Link} to="/clients" params=${{ search: slowest.address }}>its connection<//>.`}
    ${!slowest.present && " Its connection is lost; it may come back."}
  </p>`;
}

function Lag({ name }) {
  const [range, setRange] = useParam("range", "1h");
  const [lag, members] = [`group.${name}.lag`, `group.${name}.members`];
  return html`<${Card} title="Over time" actions=${html`<${Select} label="Time range" hideLabel value=${range} options=${RANGES} onChange=${setRange} />`}>
    <div class="columns body">
      <${HistoryChart} title="Lag" names=${[lag]} labels=${{ [lag]: "Messages behind" }} range=${range} format=${fmt.short} height=${130} sync="group" empty=${NO_HISTORY} />
      <${HistoryChart} title="Members" names=${[members]} labels=${{ [members]: "Members" }} range=${range} format=${fmt.count} height=${130} sync="group" empty=${NO_HISTORY} />
    </div>
  <//>`;
}

const MEMBERS = [
  { key: "id", label: "Member", cell: (row) => html`<code>${row.id}</code> ${row.static && html`<${Badge} kind="quiet" title="Somebody gave it its name: it keeps its partitions while it restarts.">static<//>`}${row.client && html`<br /><span class="hint">${row.client}</span>`}` },
  { key: "lag", label: "Lag", align: "right", cell: (row) => html`<${Count} value=${row.lag} kind="warn-text" />` },
  { key: "partitions", label: "Partitions", align: "right", cell: (row) => html`<${Count} value=${row.partitions} />` },
  { key: "target", label: "Reads", hideOnPhone: true, cell: (row) => html`<code>${row.target}</code>` },
  { key: "connection", label: "Connection", cell: (row) => html`<${Connection} of=${row} />` },
];

function Members({ group }) {
  if (group && !group.member_count) return html`<${Empty} title="No members">The group has no members now. It resumes at its committed offsets when a member joins.<//>`;
  return html`<${Table} caption="Members" columns=${MEMBERS} rows=${group?.members} id=${(row) => row.id} />
    ${group && group.member_count > group.members.length && html`<p class="soft">The ${fmt.count(group.members.length)} that are furthest behind, of ${fmt.count(group.member_count)}.</p>`}`;
}

const TOPICS = [
  { key: "name", label: "Topic", cell: (row) => html`<${Link} to=${route`/topics/${row.name}`}>${row.name}<//>` },
  { key: "lag", label: "Lag", align: "right", cell: (row) => html`<${Count} value=${row.lag} kind="warn-text" />` },
  { key: "partitions", label: "Partitions", align: "right", cell: (row) => fmt.count(row.partitions) },
];

function Topics({ group }) {
  return html`<${Table} caption="Topics" columns=${TOPICS} rows=${group?.topics} id=${(row) => row.name} empty="It reads no topic yet." />
    ${group && group.topic_count > group.topics.length && html`<p class="soft">The ${fmt.count(group.topics.length)} in which it is furthest behind, of ${fmt.count(group.topic_count)}. All are in Partitions.</p>`}`;
}
