// Who is connected, and what each client does. Someone who looks for a noisy client sorts by what it
// sends, or by how far it is behind, closes it, and keeps it out with its key or its user.

import { Ago, Button, Definition, Dialog, Field, html, Link, openDialog, Page, Pager, Problem, Search, Select, Stat, Stats, Table, toast, Toggle, useState, useStyles } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { useCommand } from "/dashboard/core/palette.js";
import { href, setParams, useParam } from "/dashboard/core/router.js";
import { useMay, useSession } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";

const LIMIT = 50;
const EVERY_MS = 5000;
const LISTENERS = [["", "All listeners"], ["native", "Native"], ["redis", "Redis"], ["web", "Web"]];
const FINDERS = [
  ["received_rate", "Sends most"],
  ["sent_rate", "Takes most"],
  ["behind_bytes", "Furthest behind"],
  ["since", "Newest"],
];

export default function ClientsPage() {
  useStyles("clients");
  const [edges] = useParam("edges");
  return edges ? html`<${AllProcesses} />` : html`<${ThisProcess} />`;
}

// Connections of edges too. Each process answers for itself, so they are in the order of their ids.
function AllProcesses() {
  const [user, setUser] = useParam("user");
  const [listener, setListener] = useParam("listener");
  const [pages, setPages] = useState([""]);
  const params = { user: user || undefined, listener, after: pages.at(-1), limit: LIMIT };
  const { data, error, loading, reload } = usePoll("/v1/connections", params, EVERY_MS);
  const begin = (set) => (value) => {
    setPages([""]);
    set(value);
  };
  return html`<${Page} title="Clients of all processes" subtitle="Connections of the broker and of its edges." actions=${html`<${Button} href="#/clients">Only the broker's<//>`}>
    <${Problem} error=${error} onRetry=${reload} />
    <div class="toolbar">
      <${Search} value=${user} onInput=${begin(setUser)} placeholder="Whole name of a user" label="User" />
      <${Select} label="Listener" hideLabel value=${listener} options=${LISTENERS} onChange=${begin(setListener)} />
    </div>
    <${Table}
      caption="Clients of all processes"
      columns=${[
        ...columns(reload).filter((one) => !one.key.endsWith("_rate")).map((one) => ({ ...one, sort: undefined })),
        { key: "process", label: "Process", hideOnPhone: true, cell: (row) => html`<code>${row.process}</code>` },
      ]}
      rows=${data?.connections}
      id=${(row) => `${row.process} ${row.id}`}
      busy=${loading && data !== undefined}
      empty="No client fits."
    />
    <div class="row">
      <${Button} disabled=${pages.length < 2} onClick=${() => setPages(pages.slice(0, -1))}>Previous page<//>
      <${Button} disabled=${!data?.next} onClick=${() => setPages([...pages, data.next])}>Next page<//>
      <span class="hint">${data && `${fmt.count(data.total)} in all`}</span>
    </div>
  <//>`;
}

function ThisProcess() {
  const [search, setSearch] = useParam("search");
  const [listener, setListener] = useParam("listener");
  const [user, setUser] = useParam("user");
  const [address, setAddress] = useParam("address");
  const [behind] = useParam("behind");
  const [requests] = useParam("requests");
  const [sort] = useParam("sort", "behind_bytes");
  const [order] = useParam("order", "down");
  const [offset, setOffset] = useParam("offset", "0");
  const may = useMay("admin", "");
  const params = {
    search, listener, user, address, sort, limit: LIMIT,
    behind: behind || undefined,
    requests: requests || undefined,
    descending: order === "down",
    offset: Number(offset),
  };
  const { data, error, loading, reload } = usePoll(may ? "/v1/connection-list" : "", params, EVERY_MS);
  const sortBy = (key, descending) => setParams({ sort: key, order: descending ? "down" : "up", offset: undefined });
  const change = (changes) => setParams({ ...changes, offset: undefined });

  useCommand("Find the client that sends most", () => sortBy("received_rate", true));
  useCommand("Find the client that is furthest behind", () => sortBy("behind_bytes", true));
  if (may === false) return html`<${Page} title="Clients"><${Problem} error=${{ detail: "Only admins see the connections. Log in as an admin, or ask one." }} /><//>`;

  return html`<${Page} title="Clients" subtitle="Who is connected to this broker now, what each one follows, and how much it sends and takes.">
    <${Problem} error=${error} onRetry=${reload} />
    <${Stats}>
      <${Stat} label="Connected" value=${fmt.count(data?.connections)} hint=${requests ? "HTTP requests too" : "HTTP requests not counted"} />
      ${LISTENERS.slice(1).map(([id, name]) => html`<${Stat} key=${id} label=${name} value=${fmt.count(data ? (data.listeners[id] ?? 0) : undefined)} href=${href("/clients", { listener: id })} />`)}
      <${Stat} label="Bytes behind" value=${fmt.bytes(data?.behind_bytes)} kind=${data?.behind_bytes > 0 ? "warn" : ""} hint="of all clients" href=${href("/clients", { behind: "true" })} />
    <//>
    ${data?.processes > 0 && html`<p class="notice">${fmt.plural(data.processes, "edge")} of this broker ${data.processes === 1 ? "has" : "have"} clients of ${data.processes === 1 ? "its" : "their"} own. This list has those of the broker itself. <${Link} to="/clients?edges=true">List those of all processes<//></p>`}
    <${Help} />
    <div class="toolbar">
      <${Search} value=${search} onInput=${(text) => { setSearch(text); setParams({ offset: undefined }); }} placeholder="User, client, address or topic" label="Search clients" />
      <${Select} label="Listener" hideLabel value=${listener} options=${LISTENERS} onChange=${(value) => { setListener(value); setParams({ offset: undefined }); }} />
      <${Toggle} label="Only behind" checked=${behind === "true"} onChange=${(on) => change({ behind: on ? "true" : undefined })} />
      <${Toggle} label="HTTP requests too" checked=${requests === "true"} onChange=${(on) => change({ requests: on ? "true" : undefined })} />
      ${user && html`<${Button} icon="close" onClick=${() => setUser("")}>Only user ${user}<//>`}
      ${address && html`<${Button} icon="close" onClick=${() => setAddress("")}>Only from ${address}<//>`}
    </div>
    ${data?.connections > 1 && html`<${Most} data=${data} />`}
    <div class="row finders" role="group" aria-label="Find a client">
      <span class="soft">Show first</span>
      ${FINDERS.map(([key, text]) => html`<${Button} key=${key} class="small" kind=${sort === key && order === "down" ? "primary" : ""} aria-pressed=${sort === key && order === "down" ? "true" : "false"} onClick=${() => sortBy(key, true)}>${text}<//>`)}
    </div>
    <${Table}
      caption="Clients"
      columns=${columns(reload, data)}
      rows=${data?.clients}
      id=${(row) => row.id}
      sort=${sort}
      descending=${order === "down"}
      onSort=${sortBy}
      onOpen=${(row) => openClient(row, data, reload)}
      busy=${loading && data !== undefined}
      empty=${search || listener || behind || user || address ? "No client fits. Change the search." : "Nobody is connected, apart from pages such as this one."}
    />
    <${Pager} offset=${Number(offset)} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "client" : "clients"} onChange=${setOffset} />
  <//>`;
}

// Who has many connections: one host that opens thousands is noisy too.
function Most({ data }) {
  const users = data.users.filter((one) => one.user).slice(0, 5);
  const chip = (text, count, params) => html`<a key=${text} class="badge quiet" href=${href("/clients", params)}>${text} <strong>${fmt.count(count)}</strong></a>`;
  return html`<div class="most">
    ${users.length > 0 && html`<div class="row"><span class="soft">Most connections by user</span>${users.map((one) => chip(one.user, one.connections, { user: one.user }))}</div>`}
    <div class="row"><span class="soft">Most connections by address</span>${data.hosts.slice(0, 5).map((one) => chip(one.host, one.connections, { address: one.host }))}</div>
  </div>`;
}

function Help() {
  return html`<details class="notice help">
    <summary>How to stop a noisy client</summary>
    <ol>
      <li><strong>Find it:</strong> choose “Sends most” for one that floods the broker, or “Furthest behind” for one that does not keep up.</li>
      <li><strong>Close it:</strong> the button “Close …” ends one connection, or all of a user. Most clients connect again by themselves.</li>
      <li><strong>Keep it out, or slow it down:</strong> click its row below, then revoke its key, or set a limit of messages or bytes a second for it. A limit takes effect at once, on open connections too.</li>
    </ol>
  </details>`;
}

const Behind = ({ row }) =>
  row.behind_bytes || row.behind_messages
    ? html`<span class="warn-text">${fmt.bytes(row.behind_bytes)}</span>${row.behind_messages > 0 && html`<br /><span class="hint">${fmt.plural(row.behind_messages, "message")}</span>`}`
    : html`<span class="faint">0</span>`;

function Subscriptions({ names, most = 2 }) {
  if (!names.length) return html`<span class="faint">none</span>`;
  return html`<span class="names">${names.slice(0, most).map((name) => html`<code key=${name}>${name}</code> `)}${names.length > most && html`<span class="hint">+${names.length - most}</span>`}</span>`;
}

const columns = (reload, data) => [
  { key: "user", label: "User", sort: true, cell: (row) => html`${row.user ? html`<strong>${row.user}</strong>` : html`<span class="faint">anonymous</span><br /><span class="hint phone-only">${row.address}</span>`}${row.client && html`<br /><span class="hint">${row.client}</span>`}` },
  { key: "address", label: "Address", sort: true, hideOnPhone: true, cell: (row) => html`<span class="nowrap">${row.address}</span><br /><span class="hint">${row.transport === row.listener ? row.listener : `${row.listener}, ${row.transport}`}</span>` },
  { key: "subscriptions", label: "Follows", sort: true, hideOnPhone: true, cell: (row) => html`<${Subscriptions} names=${row.subscriptions} />` },
  { key: "received_rate", label: "Sends", sort: true, align: "right", cell: (row) => fmt.bytesRate(row.received_rate) },
  { key: "sent_rate", label: "Takes", sort: true, align: "right", hideOnPhone: true, cell: (row) => fmt.bytesRate(row.sent_rate) },
  { key: "behind_bytes", label: "Behind", sort: true, align: "right", cell: (row) => html`<${Behind} row=${row} />` },
  { key: "since", label: "Connected", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<${Ago} time=${row.since} />` },
  { key: "actions", label: "Actions", align: "right", cell: (row) => html`<${Button} class="small" aria-label=${`Close ${row.user || row.address} …`} onClick=${() => closeClient(row, data, reload)}>Close …<//>` },
];

const accountPath = (row) =>
  row.account_name && (row.account === "key" || row.account === "user")
    ? { tab: row.account === "key" ? "keys" : "users", search: row.account_name, edit: row.account_name }
    : null;

// All that is known of a client, and what can be done about it.
function openClient(row, data, reload) {
  openDialog(({ close }) => {
    const session = useSession();
    const account = accountPath(row);
    return html`<${Dialog} title=${row.user || row.address} close=${close} wide>
      <${Definition} items=${[
        ["User", row.user || "anonymous"],
        ["Logged in with", row.account ? `${row.account} ${row.account_name}` : session.auth ? "nothing" : "nothing: this broker asks for no logins"],
        ["Client", row.client || "–"],
        ["Address", row.address],
        ["Listener", row.transport === row.listener ? row.listener : `${row.listener}, ${row.transport}`],
        ["Connected", html`<${Ago} time=${row.since} />`],
        ["Sends", `${fmt.bytesRate(row.received_rate)}; ${fmt.bytes(row.received_bytes)} so far`],
        ["Takes", `${fmt.bytesRate(row.sent_rate)}; ${fmt.bytes(row.sent_bytes)} so far`],
        ["Behind", `${fmt.bytes(row.behind_bytes)}, ${fmt.plural(row.behind_messages, "message")}`],
        ["Id", html`<code>${row.id}</code>`],
      ]} />
      <h3>Follows</h3>
      <${Subscriptions} names=${row.subscriptions} most=${100} />
      <div class="row">
        <${Button} kind="danger" onClick=${() => { close(); closeClient(row, data, reload); }}>Close the connection …<//>
        ${account && html`<${Button} href=${href("/security", account)}>Limit its rate<//>`}
        ${row.account === "key" && html`<${Button} href=${href("/security", { tab: "keys", search: row.account_name })}>Revoke its key<//>`}
        ${row.account === "user" && html`<${Button} href=${href("/security", { tab: "users", search: row.account_name })}>Disable its user<//>`}
        <${Button} kind="quiet" href=${href("/audit", { text: row.user || row.address })}>What it did<//>
      </div>
      ${!session.auth && html`<p class="hint">To limit or keep out single clients, turn logins on: <code>security.auth = true</code>. Limits for everybody are in <${Link} to="/settings?search=limits.">Settings<//>.</p>`}
    <//>`;
  });
}

function closeClient(row, data, reload) {
  openDialog(({ close }) => html`<${CloseDialog} ...${{ row, data, reload, close }} />`);
}

function CloseDialog({ row, data, reload, close }) {
  const [scope, setScope] = useState("one");
  const [reason, setReason] = useState("");
  const [reconnect, setReconnect] = useState(false);
  const several = data?.users.find((one) => one.user === row.user)?.connections ?? 1;
  const account = accountPath(row);
  const send = async () => {
    const params = { reason, reconnect: reconnect || undefined };
    const { disconnected } =
      scope === "all"
        ? await api.post(api.path`/v1/users/${row.user}/disconnect`, undefined, params)
        : await api.delete(api.path`/v1/connections/${row.id}`, params);
    toast(
      disconnected ? `Closed ${fmt.plural(disconnected, "connection")}.` : "It was gone already.",
      account ? { action: { label: "Keep it out …", run: () => (location.hash = href("/security", { tab: account.tab, search: account.search })) } } : {},
    );
    reload();
  };
  return html`<${Dialog} title="Close connections" close=${close} submit=${scope === "all" ? "Close connections" : "Close connection"} danger onSubmit=${send}>
    <fieldset class="choices">
      <legend>Which</legend>
      <label><input type="radio" name="scope" checked=${scope === "one"} onChange=${() => setScope("one")} /> This connection, from ${row.address}</label>
      ${row.user && html`<label><input type="radio" name="scope" checked=${scope === "all"} onChange=${() => setScope("all")} /> All connections of ${row.user}${several > 1 ? ` (${fmt.count(several)})` : ""}</label>`}
    </fieldset>
    <${Field} label="Reason" hint="The client gets it as the error, and the audit log keeps it.">
      <input value=${reason} maxlength="100" onInput=${(event) => setReason(event.target.value)} />
    <//>
    ${row.listener === "web" && html`<${Toggle} label="Ask the client to connect again" checked=${reconnect} onChange=${setReconnect} />`}
    <p class="hint">The client can connect again. ${account ? html`To keep it out, ${row.account === "key" ? "revoke its key" : "disable its user"} in Security.` : ""}</p>
  <//>`;
}
