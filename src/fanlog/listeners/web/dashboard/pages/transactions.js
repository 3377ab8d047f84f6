// Open transactions: who stages what, how much, and for how long. What is staged is seen by nobody
// until its program commits it.

import { Badge, Button, confirm, html, Link, Page, Pager, Problem, Stat, Stats, Table, toast } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { route, setParams, useParam } from "/dashboard/core/router.js";
import { useMay } from "/dashboard/core/session.js";

const POLL_MS = 5000;
const LIMIT = 50;
const NAMED = 3;
const OLD_SECONDS = 300;

export default function TransactionsPage() {
  const [sort] = useParam("sort", "age");
  const [order] = useParam("order", "down");
  const [offset, setOffset] = useParam("offset", "0");
  const admin = useMay("admin");
  const { data, error, loading, reload } = usePoll(
    "/v1/transactions",
    { sort, descending: order === "down", offset, limit: LIMIT },
    POLL_MS,
  );
  const abort = async (row) => {
    const name = row.id || row.number;
    const sure = await confirm({
      title: `Abort ${name}?`,
      text: `Its ${fmt.plural(row.messages, "staged message")} will be dropped. The program that began the transaction gets an error, and has to begin again.`,
      action: "Abort the transaction",
      danger: true,
    });
    if (!sure) return;
    try {
      await api.post(api.path`/v1/transactions/${row.number}/abort`);
      toast(`${name} is aborted.`);
    } catch (fault) {
      toast(fault, { kind: "bad" });
    }
    reload();
  };
  return html`<${Page} title="Transactions" subtitle="Open ones only. Messages of a transaction are staged: nobody sees them before it is committed, and then all at once.">
    <${Problem} error=${error} onRetry=${reload} />
    <${Stats}>
      <${Stat} label="Open" value=${fmt.count(data?.total)} />
      <${Stat} label="Staged" value=${fmt.bytes(data?.bytes)} hint="by all of them" />
    <//>
    <${Table}
      caption="Open transactions"
      columns=${columns(admin, abort)}
      rows=${data?.transactions}
      id=${(row) => row.number}
      sort=${sort}
      descending=${order === "down"}
      onSort=${(key, down) => setParams({ sort: key, order: down ? "down" : "up", offset: undefined })}
      busy=${loading && data !== undefined}
      empty="No transaction is open."
    />
    <${Pager} offset=${Number(offset)} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "transaction" : "transactions"} onChange=${setOffset} />
  <//>`;
}

function columns(admin, abort) {
  const found = [
    { key: "id", label: "Transaction", cell: (row) => html`<${Name} row=${row} />` },
    { key: "age", label: "Open for", sort: true, align: "right", cell: (row) => html`<${Age} seconds=${row.age_seconds} />` },
    { key: "idle", label: "Time left", sort: true, align: "right", cell: (row) => html`<${Left} row=${row} />` },
    { key: "messages", label: "Messages", sort: true, align: "right", cell: (row) => fmt.count(row.messages) },
    { key: "bytes", label: "Bytes", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Size} row=${row} />` },
    { key: "topics", label: "Topics", hideOnPhone: true, cell: (row) => html`<${Topics} row=${row} />` },
  ];
  if (!admin) return found;
  return [
    ...found,
    { key: "who", label: "Begun by", hideOnPhone: true, cell: (row) => html`<${Who} row=${row} />` },
    {
      key: "abort",
      label: "Action",
      align: "right",
      cell: (row) =>
        row.committing
          ? html`<${Badge} kind="info">Committing<//>`
          : html`<${Button} kind="danger small" onClick=${() => abort(row)} aria-label=${`Abort ${row.id || row.number}`}>Abort<//>`,
    },
  ];
}

function Name({ row }) {
  if (row.id) return html`<strong>${row.id}</strong>`;
  return html`<span class="mono" title="Its program gave it no id, or you may not see it.">${row.number}</span>`;
}

function Age({ seconds }) {
  return html`<span class=${seconds >= OLD_SECONDS ? "warn-text nowrap" : "nowrap"}>${fmt.duration(Math.round(seconds))}</span>`;
}

// It is aborted by itself when nobody has used it for its timeout.
function Left({ row }) {
  const left = Math.max(0, row.timeout_seconds - row.idle_seconds);
  const about = `Last used ${fmt.duration(Math.round(row.idle_seconds))} ago. It is aborted by itself if it is not used for ${fmt.duration(row.timeout_seconds)}.`;
  return html`<span class="nowrap" title=${about}>${fmt.duration(Math.round(left))}</span>`;
}

function Size({ row }) {
  return html`<span class="nowrap">${fmt.bytes(row.bytes)} ${row.on_disk && html`<${Badge} title="It is so large that it is in a file.">on disk<//>`}</span>`;
}

function Topics({ row }) {
  const named = row.topics.slice(0, NAMED);
  const more = row.topic_count - named.length;
  return html`${named.map((one, i) => html`${i > 0 && ", "}${one.name ? html`<${Link} to=${route`/topics/${one.name}`}>${one.name}<//>` : html`<em>a deleted topic</em>`}`)}
    ${more > 0 && ` and ${fmt.count(more)} more`}${!row.topics.length && html`<span class="faint">none yet</span>`}`;
}

function Who({ row }) {
  const name = row.user || row.client || "–";
  if (!row.address) return name;
  return html`<${Link} to="/clients" params=${{ search: row.address }} title=${row.address}>${name === "–" ? row.address : name}<//>`;
}
