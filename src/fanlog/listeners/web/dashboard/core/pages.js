// The pages: where they are, and how to get there. A page's module is loaded when it is opened.
//
// `verb`: who may not do this (about the broker) does not see the page in the list. `detail` is the
// page of one entry, such as `/topics/orders`.

export const PAGES = [
  { path: "/", title: "Overview", module: "overview", keys: "g o", group: "" },
  { path: "/topics", title: "Topics", module: "topics", detail: "topic", keys: "g t", group: "Messages" },
  { path: "/explorer", title: "Explorer", module: "explorer", keys: "g e", group: "Messages", reads: true },
  { path: "/groups", title: "Groups", module: "groups", detail: "group", keys: "g g", group: "Readers" },
  { path: "/queues", title: "Queues", module: "queues", detail: "queue", keys: "g q", group: "Readers" },
  { path: "/dead", title: "Dead letters", module: "dead", detail: "dead_topic", keys: "g d", group: "Readers" },
  { path: "/clients", title: "Clients", module: "clients", keys: "g c", group: "Readers", verb: "admin" },
  { path: "/rooms", title: "Rooms", module: "rooms", detail: "rooms", keys: "g r", group: "Readers" },
  { path: "/schedules", title: "Schedules", module: "schedules", keys: "g h", group: "Work" },
  { path: "/transactions", title: "Transactions", module: "transactions", keys: "g x", group: "Work" },
  { path: "/pipelines", title: "Pipelines", module: "pipelines", keys: "g p", group: "Work" },
  { path: "/metrics", title: "Metrics", module: "metrics", keys: "g m", group: "Broker" },
  { path: "/cluster", title: "Cluster", module: "cluster", keys: "g n", group: "Broker" },
  { path: "/security", title: "Security", module: "security", keys: "g s", group: "Broker" },
  { path: "/sessions", title: "Sessions", module: "sessions", keys: "g i", group: "Broker", hidden: true },
  { path: "/audit", title: "Audit", module: "audit", keys: "g a", group: "Broker", verb: "admin" },
  { path: "/settings", title: "Settings", module: "settings", keys: "g ,", group: "Broker", verb: "admin" },
];

// The page of a route, and the module that shows it.
export function pageOf(parts) {
  const page = PAGES.find((one) => one.path === `/${parts[0] ?? ""}`);
  if (!page || (parts.length > 1 && !page.detail)) return null;
  return { page, module: parts.length > 1 ? page.detail : page.module };
}
