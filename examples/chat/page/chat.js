// The chat's page. Each room is a topic: chat.room.NAME. Who is typing is in chat.typing.NAME.
// Presence, history and recovery are the client's; this file only draws.

import { connect } from "./fanlog.js";

const STARTERS = ["lobby", "random", "help"];
const PAGE_SIZE = 30;
const GROUP_MS = 5 * 60_000; // messages of one person within it stand together
const TYPING_EVERY_MS = 2_500;
const TYPING_SHOWN_MS = 5_000;

const $ = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);

const kept = {
  get: (name) => { try { return localStorage.getItem(`chat.${name}`); } catch { return null; } },
  set: (name, text) => { try { localStorage.setItem(`chat.${name}`, text); } catch { /* private window */ } },
};

let me = query.get("name") ?? kept.get("name") ?? "";
let client;
let room = null; // { name, subscription, typing, first, last, pending, people, … }
const rooms = new Map(); // name -> { newest, seen }

// --- start -----------------------------------------------------------------------------------

for (const name of STARTERS) rooms.set(name, { newest: -1, seen: Number(kept.get(`seen.${name}`) ?? -1) });
setTheme(kept.get("theme"));
if (me) begin();
else askName();

async function begin() {
  $("my-name").textContent = me;
  paintAvatar($("my-avatar"), me);
  client = connect(await servers(), { user: me });
  window.chat = { client }; // for the curious, in the console
  client.addEventListener("statechange", showState);
  showState();
  client.subscribe("chat.room.*", { last: 1 }, noteRoom);
  enter(roomOf(location.hash) || "lobby");
}

/** This host first, then the other edges, if there are some. */
async function servers() {
  try {
    const others = await (await fetch("edges.json")).json();
    return [location.origin, ...others.filter((url) => url !== location.origin)];
  } catch {
    return [location.origin];
  }
}

function askName() {
  $("name").value = me;
  $("welcome").showModal();
}

$("welcome").addEventListener("close", () => {
  const name = $("name").value.trim();
  if (!name) return me ? undefined : askName();
  if (name === me) return;
  me = name;
  kept.set("name", me);
  client?.close();
  room = null;
  begin();
});
$("change-name").onclick = askName;

// --- rooms -----------------------------------------------------------------------------------

function roomOf(hash) {
  return decodeURIComponent(hash.replace(/^#/, "")).toLowerCase().replace(/[^\p{L}\p{N}_-]+/gu, "-").slice(0, 40);
}

function noteRoom(message) {
  const name = message.topic.slice("chat.room.".length);
  const known = rooms.get(name) ?? { newest: -1, seen: Number(kept.get(`seen.${name}`) ?? -1) };
  known.newest = Math.max(known.newest, message.offset);
  if (name === room?.name && !document.hidden) markSeen(name, known);
  rooms.set(name, known);
  drawRooms();
}

function markSeen(name, known = rooms.get(name)) {
  if (!known || known.seen >= known.newest) return;
  known.seen = known.newest;
  kept.set(`seen.${name}`, known.seen);
}

function drawRooms() {
  const items = [...rooms].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b)).map(([name, known]) => {
    const unread = name === room?.name ? 0 : known.newest - known.seen;
    const button = element("button", { className: "room-link", type: "button", onclick: () => enter(name) },
      element("span", { textContent: name }));
    if (name === room?.name) button.setAttribute("aria-current", "page");
    if (unread > 0) {
      button.append(element("span", { className: "badge", textContent: unread > 99 ? "99+" : unread }),
        element("span", { className: "hidden", textContent: "unread" }));
    }
    return element("li", {}, button);
  });
  const focused = document.activeElement?.closest("#room-list") && document.activeElement.textContent;
  $("room-list").replaceChildren(...items);
  if (focused) [...$("room-list").querySelectorAll("button")].find((b) => b.textContent === focused)?.focus();
  const elsewhere = [...rooms].some(([name, known]) => name !== room?.name && known.newest > known.seen);
  $("other-unread").hidden = !elsewhere;
  drawTitle();
}

function rank(name) {
  const at = STARTERS.indexOf(name);
  return at < 0 ? STARTERS.length : at;
}

function drawTitle() {
  const known = rooms.get(room?.name);
  const unread = document.hidden && known ? known.newest - known.seen : 0;
  document.title = `${unread > 0 ? `(${unread}) ` : ""}#${room?.name ?? ""} · Chat`;
}

function enter(name) {
  closeDrawers();
  if (!name || room?.name === name) return;
  room?.subscription.close();
  room?.typing.close();
  if (!rooms.has(name)) rooms.set(name, { newest: -1, seen: -1 });
  const here = { name, topic: `chat.room.${name}`, first: null, older: true, loading: false, waiting: new Map(), typists: new Map(), drawn: new Set() };
  room = here;
  $("messages").replaceChildren();
  $("room-name").textContent = name;
  $("text").placeholder = `Message #${name}`;
  $("down").hidden = true;
  $("empty").hidden = true;
  if (roomOf(location.hash) !== name) history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  here.subscription = client.subscribe(here.topic, { last: PAGE_SIZE, presence: { name: me } }, (message) => here === room && show(message));
  here.subscription.addEventListener("presence", () => here === room && drawPeople());
  here.subscription.addEventListener("error", ({ detail }) => here === room && showNote(detail.message));
  here.subscription.addEventListener("gap", ({ detail }) => here === room && showGap(detail));
  here.subscription.ready.then(() => setTimeout(() => here === room && drawEmpty(), 400), () => {});
  here.typing = client.subscribe(`chat.typing.${name}`, {}, ({ value, time }) => here === room && noteTyping(value, time));
  here.subscription.users = [];
  drawPeople();
  drawTyping();
  markSeen(name);
  drawRooms();
  if (matchMedia("(hover: hover)").matches) $("text").focus();
}

$("new-room").onsubmit = (event) => {
  event.preventDefault();
  const name = roomOf($("new-room-name").value);
  $("new-room-name").value = "";
  enter(name);
};
addEventListener("hashchange", () => enter(roomOf(location.hash)));

// --- messages --------------------------------------------------------------------------------

function show(message) {
  const said = message.value;
  if (said === null || typeof said !== "object" || room.drawn.has(message.offset)) return;
  room.drawn.add(message.offset);
  room.first ??= message.offset;
  $("empty").hidden = true;
  const atEnd = isAtEnd();
  const waiting = room.waiting.get(said.id);
  if (waiting) {
    waiting.remove();
    room.waiting.delete(said.id);
  }
  if (room.typists.delete(said.name)) drawTyping();
  const list = $("messages");
  const node = draw(message, lastDrawn(list));
  const firstWaiting = list.querySelector(".waiting");
  if (firstWaiting) firstWaiting.before(...node);
  else list.append(...node);
  if (atEnd || said.name === me) toEnd();
  else $("down").hidden = false;
  if (!document.hidden) markSeen(room.name);
}

function lastDrawn(list) {
  return [...list.querySelectorAll(".message:not(.waiting)")].at(-1);
}

/** The line, and a day before it if a new one begins. */
function draw({ value: said, time, offset }, before) {
  const when = new Date(time);
  const earlier = before ? new Date(before.dataset.time) : null;
  const sameDay = earlier?.toDateString() === when.toDateString();
  const follows = sameDay && before.dataset.by === said.name && when - earlier < GROUP_MS;
  const node = line(said, when, !follows);
  node.dataset.offset = offset;
  if (sameDay) return [node];
  const day = when.toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long" });
  return [element("li", { className: "day", textContent: isToday(when) ? "Today" : day }), node];
}

function line(said, when, isFirst) {
  const name = String(said.name ?? "somebody");
  const avatar = element("span", { className: "avatar" });
  avatar.setAttribute("aria-hidden", "true");
  paintAvatar(avatar, name);
  const clock = when.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const node = element("li", { className: "message" }, avatar,
    element("div", { className: "by" }, element("strong", { textContent: name }),
      element("time", { textContent: clock, dateTime: when.toISOString(), title: when.toLocaleString() })),
    element("div", { className: "bubble", textContent: String(said.text ?? "") }));
  node.classList.toggle("first", isFirst);
  node.classList.toggle("mine", name === me);
  node.classList.toggle("fresh", Date.now() - when < 10_000);
  node.dataset.by = name;
  node.dataset.time = when.toISOString();
  return node;
}

function showGap({ from, to }) {
  const count = Number.parseInt(to, 10) - Number.parseInt(from, 10);
  const what = count === 1 ? "One message is" : `${count > 0 ? count : "Some"} messages are`;
  showNote(`${what} no longer available.`);
}

function showNote(text) {
  $("empty").hidden = true;
  $("messages").append(element("li", { className: "gap", textContent: text }));
}

function drawEmpty() {
  $("empty").hidden = $("messages").childElementCount > 0;
}

$("composer").onsubmit = (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || !room) return;
  $("text").value = "";
  typedAt = 0;
  fit();
  say(text);
};

async function say(text) {
  const here = room;
  const said = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), name: me, text };
  const list = $("messages");
  const before = [...list.querySelectorAll(".message")].at(-1);
  const node = line(said, new Date(), before?.dataset.by !== me);
  node.classList.add("waiting");
  here.waiting.set(said.id, node);
  $("empty").hidden = true;
  list.append(node);
  toEnd();
  try {
    await client.publish(here.topic, said);
  } catch (error) {
    node.classList.replace("waiting", "failed");
    node.title = error.message;
  }
}

// --- history ---------------------------------------------------------------------------------

async function loadOlder() {
  const here = room;
  if (!here || !here.first || !here.older || here.loading) return; // 0 is the first of all
  here.loading = true;
  $("older").hidden = false;
  try {
    const { messages, before } = await client.history(here.topic, { before: here.first, limit: PAGE_SIZE });
    if (here !== room) return;
    here.older = messages.length > 0 && before !== null;
    if (messages.length > 0) {
      here.first = messages[0].offset;
      prepend(messages.filter((m) => m.value !== null && typeof m.value === "object" && !here.drawn.has(m.offset)));
    }
  } catch {
    here.older = false; // this bus keeps no history
  } finally {
    here.loading = false;
    if (here === room) $("older").hidden = true;
  }
}

function prepend(messages) {
  const scroller = $("scroller");
  const list = $("messages");
  const fromEnd = scroller.scrollHeight - scroller.scrollTop;
  let before;
  const nodes = messages.flatMap((message) => {
    room.drawn.add(message.offset);
    const drawn = draw(message, before);
    before = drawn.at(-1);
    before.classList.remove("fresh");
    return drawn;
  });
  // The day that stood first may be the day of the last older message.
  const day = list.querySelector(".day");
  const next = list.querySelector(".message");
  if (before && day && next && new Date(before.dataset.time).toDateString() === new Date(next.dataset.time).toDateString()) {
    day.remove();
    if (before.dataset.by === next.dataset.by && new Date(next.dataset.time) - new Date(before.dataset.time) < GROUP_MS) {
      next.classList.remove("first");
    }
  }
  list.setAttribute("aria-live", "off"); // history is not news
  list.prepend(...nodes);
  scroller.scrollTop = scroller.scrollHeight - fromEnd;
  setTimeout(() => list.setAttribute("aria-live", "polite"), 100);
}

function isAtEnd() {
  const { scrollHeight, scrollTop, clientHeight } = $("scroller");
  return scrollHeight - scrollTop - clientHeight < 80;
}

function toEnd() {
  $("scroller").scrollTop = $("scroller").scrollHeight;
  $("down").hidden = true;
}

$("scroller").addEventListener("scroll", () => {
  if ($("scroller").scrollTop < 120) loadOlder();
  if (isAtEnd()) $("down").hidden = true;
}, { passive: true });
$("down").onclick = toEnd;
new ResizeObserver(() => { if (room && $("down").hidden && isAtEnd()) toEnd(); }).observe($("scroller"));

// --- people and typing -----------------------------------------------------------------------

function drawPeople() {
  const { users, count } = room.subscription;
  const people = [...users].sort((a, b) => (b.user === me) - (a.user === me) || a.user.localeCompare(b.user));
  $("online-count").textContent = Math.max(count, people.length);
  const items = people.map(({ user, info, connections }) => {
    const avatar = element("span", { className: "avatar" });
    avatar.setAttribute("aria-hidden", "true");
    paintAvatar(avatar, user);
    const name = element("span", { textContent: info?.name ?? user });
    if (user === me) name.append(" ", element("small", { textContent: "you" }));
    return element("li", { className: connections === 0 ? "person away" : "person" }, avatar, name);
  });
  if (count > people.length) {
    items.push(element("li", { className: "person", textContent: `and ${count - people.length} more` }));
  }
  $("people-list").replaceChildren(...items);
}

let typedAt = 0;
$("text").addEventListener("input", () => {
  fit();
  if (!room || !$("text").value || Date.now() - typedAt < TYPING_EVERY_MS) return;
  typedAt = Date.now();
  // Worth nothing later: without a connection it fails, and nobody minds.
  client.publish(`chat.typing.${room.name}`, { name: me }, { queue: false }).catch(() => {});
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});

function noteTyping(value, time) {
  const name = value?.name;
  // A tab that slept gets what is long over.
  if (!name || name === me || Date.now() - new Date(time) > TYPING_SHOWN_MS * 4) return;
  const typists = room.typists;
  clearTimeout(typists.get(name));
  typists.set(name, setTimeout(() => { typists.delete(name); drawTyping(); }, TYPING_SHOWN_MS));
  drawTyping();
}

function drawTyping() {
  const names = [...room.typists.keys()];
  if (names.length === 0) return $("typing").replaceChildren();
  const who = names.length === 1 ? `${names[0]} is` : names.length === 2 ? `${names[0]} and ${names[1]} are` : "Several people are";
  $("typing").replaceChildren(element("i"), element("i"), element("i"), `${who} typing`);
}

function fit() {
  const text = $("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
}

// --- the connection --------------------------------------------------------------------------

let countdown;
function showState() {
  clearInterval(countdown);
  const { state, transport, nextAttempt } = client;
  const isOpen = state === "open";
  document.body.dataset.state = state;
  $("banner").hidden = isOpen || state === "closed" || (state === "connecting" && nextAttempt === null);
  $("retry").hidden = nextAttempt === null;
  if (isOpen) {
    const way = transport === "sse" ? "events over HTTP" : "WebSocket";
    $("via").textContent = `Connected to ${new URL(client.url).host} by ${way}`;
  } else {
    $("via").textContent = "\u00a0";
  }
  const tell = () => {
    const seconds = nextAttempt === null ? 0 : Math.ceil((nextAttempt - Date.now()) / 1000);
    const again = seconds > 1 ? ` Next try in ${seconds} s.` : "";
    $("banner-text").textContent = {
      offline: "You are offline. Messages you write are sent later.",
      "upstream-lost": "The server has lost its message bus. Messages come when it is back.",
    }[state] ?? `Reconnecting…${again}`;
  };
  tell();
  if (nextAttempt !== null) countdown = setInterval(tell, 500);
}
$("retry").onclick = () => client.reconnect();

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && room) markSeen(room.name);
  drawRooms();
});

// --- drawers, theme, small things ------------------------------------------------------------

let opener = null;
for (const button of document.querySelectorAll("[data-open]")) {
  button.onclick = () => {
    opener = button;
    $(button.dataset.open).classList.add("open");
    $("shade").hidden = false;
    $(button.dataset.open).querySelector("[data-close]")?.focus();
  };
}
for (const button of document.querySelectorAll("[data-close]")) button.onclick = closeDrawers;
$("shade").onclick = closeDrawers;
addEventListener("keydown", (event) => { if (event.key === "Escape") closeDrawers(); });

function closeDrawers() {
  $("rooms").classList.remove("open");
  $("people").classList.remove("open");
  $("shade").hidden = true;
  opener?.focus();
  opener = null;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}
$("theme").onclick = () => {
  const isDark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(isDark ? "light" : "dark");
  kept.set("theme", isDark ? "light" : "dark");
};

function paintAvatar(node, name) {
  let hash = 0;
  for (const character of name) hash = (hash * 31 + character.codePointAt(0)) % 997;
  node.style.setProperty("--hue", (hash * 47) % 360);
  node.textContent = [...name.trim()][0]?.toUpperCase() ?? "?";
}

function isToday(when) {
  return when.toDateString() === new Date().toDateString();
}

function element(tag, fields = {}, ...children) {
  const node = Object.assign(document.createElement(tag), fields);
  node.append(...children);
  return node;
}
