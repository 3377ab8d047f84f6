// Dead letters: which topics have some, how many, and why most of them died.

import { Ago, Badge, html, Link, Page, Pager, Problem, Search, Table, Toggle, useStyles } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { go, route, setParams, useParam } from "/dashboard/core/router.js";
import { fmt } from "/dashboard/core/format.js";
import { TaskList } from "/dashboard/pages/dead_tasks.js";

const LIST_MS = 5000;
const LIMIT = 50;

const COLUMNS = [
  { key: "name", label: "Topic", sort: true, cell: (row) => html`<${Link} to=${route`/dead/${row.name}`}><strong>${row.name}</strong><//>` },
  {
    key: "letters",
    label: "Dead letters",
    sort: true,
    align: "right",
    cell: (row) => html`<span class=${Number(row.letters) ? "bad-text" : "faint"}>${fmt.count(row.letters)}</span>
      ${!row.complete && html` <${Badge} kind="info" title="The broker is reading the topic">counting<//>`}`,
  },
  {
    key: "reason",
    label: "Main reason",
    class: "dead-reason",
    cell: (row) =>
      row.top_reason
        ? html`<${Link} to=${route`/dead/${row.name}`} params=${{ group: row.top_reason }}>${row.top_reason}<//>
            <span class="faint"> (${fmt.count(row.top_count)})</span>`
        : html`<span class="faint">–</span>`,
  },
  { key: "newest", label: "Newest", sort: true, hideOnPhone: true, class: "nowrap", cell: (row) => html`<${Ago} time=${row.newest} />` },
  { key: "oldest", label: "Oldest", hideOnPhone: true, class: "nowrap", cell: (row) => html`<${Ago} time=${row.oldest} />` },
  {
    key: "sources",
    label: "Jobs came from",
    hideOnPhone: true,
    cell: (row) => row.sources.map((name, i) => html`${i ? ", " : ""}<${Link} to=${route`/topics/${name}`}>${name}<//>`),
  },
];

export default function DeadPage() {
  useStyles("dead");
  const [search] = useParam("search");
  const [sort] = useParam("sort", "letters");
  const [at] = useParam("offset", "0");
  const [empty] = useParam("empty");
  const offset = Math.max(0, Number(at) || 0);
  const params = { search, sort, offset, limit: LIMIT, empty: empty ? "true" : "false" };
  const { data, error, loading, reload } = usePoll("/v1/dead-letters", params, LIST_MS);
  const change = (changes) => setParams({ offset: undefined, ...changes });
  return html`<${Page} title="Dead letters" subtitle="A dead letter is a job that its queue gave up on. Open a topic to see why, and to put jobs back when the cause is fixed.">
    <${Problem} error=${error} onRetry=${reload} />
    <${TaskList} />
    <div class="toolbar">
      <${Search} value=${search} onInput=${(value) => change({ search: value })} placeholder="Topic" label="Search topics with dead letters" />
      <${Toggle} label="Also topics without dead letters" checked=${Boolean(empty)} onChange=${(on) => change({ empty: on ? "1" : undefined })} />
    </div>
    <${Table}
      caption="Topics with dead letters"
      columns=${COLUMNS}
      rows=${data?.topics}
      id=${(row) => row.name}
      sort=${sort}
      descending=${sort !== "name"}
      onSort=${(name) => change({ sort: name === "letters" ? undefined : name })}
      onOpen=${(row) => go(route`/dead/${row.name}`)}
      busy=${loading && data !== undefined}
      empty=${search ? "No topic fits. Change the search." : "No dead letters: no job has failed for good."}
    />
    <${Pager} offset=${offset} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "topic" : "topics"} onChange=${(next) => setParams({ offset: next || undefined })} />
  <//>`;
}
