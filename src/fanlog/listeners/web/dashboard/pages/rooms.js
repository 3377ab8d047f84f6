// Rooms: topics with people in them. A room's page says who is there.

import { Badge, Button, confirm, html, Link, Page, Pager, Problem, Search, Stat, Stats, Table, toast } from "/dashboard/core/ui.js";
import { api, stringify, usePoll } from "/dashboard/core/api.js";
import { go, route, setParams, useParam } from "/dashboard/core/router.js";
import { useMay } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";

const LIMIT = 50;
const EVERY_MS = 5000;

export default function RoomsPage({ parts }) {
  return parts.length ? html`<${Room} topic=${parts[0]} />` : html`<${Rooms} />`;
}

function Rooms() {
  const [search, setSearch] = useParam("search");
  const [sort] = useParam("sort", "users");
  const [order] = useParam("order", "down");
  const [offset, setOffset] = useParam("offset", "0");
  const params = { search, sort, descending: order === "down", offset: Number(offset), limit: LIMIT };
  const { data, error, loading, reload } = usePoll("/v1/rooms", params, EVERY_MS);
  return html`<${Page} title="Rooms" subtitle="Topics with people in them. Web clients that subscribe with presence see each other there.">
    <${Problem} error=${error} onRetry=${reload} />
    <${Stats}>
      <${Stat} label="Rooms" value=${fmt.count(data?.total)} />
      <${Stat} label="People" value=${fmt.count(data?.users)} hint="in each room counted once" />
      <${Stat} label="Connections" value=${fmt.count(data?.connections)} />
    <//>
    <div class="toolbar">
      <${Search} value=${search} placeholder="Topic" label="Search rooms" onInput=${(text) => { setSearch(text); setParams({ offset: undefined }); }} />
    </div>
    <${Table}
      caption="Rooms"
      columns=${[
        { key: "topic", label: "Topic", sort: true, cell: (row) => html`<${Link} to=${route`/rooms/${row.topic}`}>${row.topic}<//>` },
        { key: "users", label: "People", sort: true, align: "right", cell: (row) => fmt.count(row.users) },
        { key: "connections", label: "Connections", sort: true, align: "right", cell: (row) => fmt.count(row.connections) },
      ]}
      rows=${data?.rooms}
      id=${(row) => row.topic}
      sort=${sort}
      descending=${order === "down"}
      onSort=${(key, descending) => setParams({ sort: key, order: descending ? "down" : "up", offset: undefined })}
      onOpen=${(row) => go(route`/rooms/${row.topic}`)}
      busy=${loading && data !== undefined}
      empty=${search ? "No room fits the search." : "Nobody is in a room. A browser enters one with client.subscribe(topic, { presence: true })."}
    />
    <${Pager} offset=${Number(offset)} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "room" : "rooms"} onChange=${setOffset} />
  <//>`;
}

// Somebody without a user has a name made of the connection's id.
const isGuest = (user) => user.startsWith("~");

function Room({ topic }) {
  const { data, error, reload } = usePoll(api.path`/v1/presence/${topic}`, undefined, EVERY_MS);
  const may = useMay("admin", "");
  const [search, setSearch] = useParam("search");
  const wanted = search.toLowerCase();
  const people = data?.users?.filter((one) => one.user.toLowerCase().includes(wanted));

  const close = async (row) => {
    const guest = isGuest(row.user);
    const what = guest ? "this guest" : row.user;
    const text = guest ? "The connection is closed. The client may connect again." : "All connections of this user are closed, in every room. The client may connect again.";
    if (!(await confirm({ title: `Disconnect ${what}?`, text, action: "Disconnect", danger: true }))) return;
    try {
      const { disconnected } = guest
        ? await api.delete(api.path`/v1/connections/${row.user.slice(1)}`)
        : await api.post(api.path`/v1/users/${row.user}/disconnect`);
      toast(`Closed ${fmt.plural(disconnected, "connection")}.`);
      reload();
    } catch (fault) {
      toast(fault, { kind: "bad" });
    }
  };
  return html`<${Page} title=${topic} subtitle="Who is in this room now" actions=${html`<${Button} href="#/rooms">All rooms<//><${Button} href=${`#${route`/topics/${topic}`}`}>The topic<//>`}>
    <${Problem} error=${error} onRetry=${reload} />
    <${Stats}>
      <${Stat} label="People" value=${fmt.count(data?.count)} />
      <${Stat} label="Connections" value=${fmt.count(data?.connections)} />
    <//>
    ${data && !data.users
      ? html`<p class="notice">So many people are here that the broker keeps their number, and no list (<code>web.presence_list_max</code>).</p>`
      : html`<div class="toolbar"><${Search} value=${search} placeholder="User" label="Search people" onInput=${setSearch} /></div>
        <${Table}
          caption="People in this room"
          columns=${[
            { key: "user", label: "User", cell: (row) => (isGuest(row.user) ? html`<span class="faint">guest</span> <code>${row.user.slice(1)}</code>` : html`<strong>${row.user}</strong>`) },
            { key: "connections", label: "Connections", align: "right", cell: (row) => (row.connections ? fmt.count(row.connections) : html`<${Badge} kind="quiet">just left<//>`) },
            { key: "info", label: "Info", hideOnPhone: true, cell: (row) => (row.info === undefined ? html`<span class="faint">–</span>` : html`<code>${stringify(row.info)}</code>`) },
            ...(may ? [{ key: "actions", label: "Actions", align: "right", cell: (row) => html`<${Button} class="small" aria-label=${`Disconnect ${row.user}`} onClick=${() => close(row)}>Disconnect<//>` }] : []),
          ]}
          rows=${people}
          id=${(row) => row.user}
          empty=${search ? "Nobody fits the search." : "Nobody is here now."}
        />`}
  <//>`;
}
