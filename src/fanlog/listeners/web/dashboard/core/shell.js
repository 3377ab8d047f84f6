// What is around every page: the list of pages, the state of the broker, the palette and the keys.

import { html, useEffect, useLayoutEffect, useRef, useState } from "/dashboard/vendor/htm-preact.js";
import { api, onLoginNeeded, onReachable, usePoll } from "/dashboard/core/api.js";
import { closeAll, Dialog, Dialogs, openDialog } from "/dashboard/core/dialogs.js";
import { Badge, Button, Empty, Icon, Link, Problem } from "/dashboard/core/elements.js";
import { allKeys, bind, listen } from "/dashboard/core/keys.js";
import { pageOf, PAGES } from "/dashboard/core/pages.js";
import { addCommand, openPalette } from "/dashboard/core/palette.js";
import { go, useRoute } from "/dashboard/core/router.js";
import { forgetAnswers, SessionContext, useMay, useSession } from "/dashboard/core/session.js";
import { nextTheme, theme } from "/dashboard/core/theme.js";
import { Page } from "/dashboard/core/ui.js";

const STATUS_MS = 10_000;
const STATES = { ok: ["ok", "Healthy"], degraded: ["warn", "Degraded"], failing: ["bad", "Failing"], draining: ["warn", "Stopping"] };

export function App() {
  const [session, setSession] = useState(null);
  const [login, setLogin] = useState(false);
  const [error, setError] = useState(null);

  const enter = async () => {
    try {
      const found = await api.get("/v1/whoami");
      forgetAnswers();
      setSession(found);
      setLogin(false);
      setError(null);
    } catch (fault) {
      if (fault.status === 401) setLogin(true);
      else setError(fault);
    }
  };
  useEffect(() => {
    enter();
    return onLoginNeeded(() => {
      closeAll();
      setLogin(true);
    });
  }, []);
  useEffect(() => {
    if (!error) return undefined;
    const timer = setTimeout(enter, 3000);
    return () => clearTimeout(timer);
  }, [error]);

  if (login) return html`<${Lazy} module="login" props=${{ onEntered: enter }} /><${Dialogs} />`;
  if (!session) return html`<main class="lonely">${error ? html`<${Problem} error=${error} onRetry=${enter} />` : html`<p class="faint">Connecting …</p>`}</main>`;
  return html`<${SessionContext.Provider} value=${session}><${Frame} /><//>`;
}

function Frame() {
  const route = useRoute();
  const [open, setOpen] = useState(false);
  const main = useRef(null);
  const session = useSession();

  useEffect(() => {
    setOpen(false);
    main.current?.scrollTo?.(0, 0);
  }, [route.path]);
  // Keys work as soon as there is something to see.
  useLayoutEffect(() => listen(), []);
  useLayoutEffect(() => {
    const ends = [
      bind("/", "Search on this page", () => main.current?.querySelector("[data-search]")?.focus()),
      bind("?", "Show all keys", showKeys),
      bind("Escape", "Close what is open", () => setOpen(false)),
      ...PAGES.flatMap((page) => [
        bind(page.keys, `Go to ${page.title}`, () => go(page.path)),
        addCommand(page.title, () => go(page.path), { hint: page.keys, icon: page.module }),
      ]),
      addCommand("Show all keys", showKeys, { hint: "?", icon: "info" }),
      addCommand("Change between light and dark", nextTheme, { icon: "theme" }),
      addCommand("HTTP reference", () => window.open("/v1/reference", "_blank", "noopener"), { icon: "link" }),
      ...(session.auth && session.session ? [addCommand("Log out", logOut, { icon: "user" })] : []),
    ];
    const palette = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        openPalette();
      }
    };
    document.addEventListener("keydown", palette);
    return () => {
      for (const end of ends) end();
      document.removeEventListener("keydown", palette);
    };
  }, [session]);

  const skip = (event) => {
    event.preventDefault();
    main.current?.focus();
  };
  const found = pageOf(route.parts);
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <div class="frame ${open ? "nav-open" : ""}">
      <${Side} route=${route} onClose=${() => setOpen(false)} />
      <div class="content">
        <${Top} onMenu=${() => setOpen(!open)} open=${open} />
        <main id="main" ref=${main} tabindex="-1">
          ${found
            ? html`<${Lazy} key=${found.module + route.parts.slice(1).join("/")} module=${found.module} props=${{ parts: route.parts.slice(1), params: route.params }} />`
            : html`<${NotFound} />`}
        </main>
      </div>
      <button type="button" class="curtain" aria-label="Close the list of pages" tabindex="-1" onClick=${() => setOpen(false)}></button>
    </div>
    <${Dialogs} />`;
}

export const NotFound = () =>
  html`<${Page} title="There is no such page">
    <${Empty} actions=${html`<${Button} href="#/">Go to the overview<//>`}>
      The address may be mistyped, or what it named is gone.
    <//>
  <//>`;

// A page, loaded when it is opened.
function Lazy({ module, props }) {
  const [loaded, setLoaded] = useState(null);
  useEffect(() => {
    let gone = false;
    import(`/dashboard/pages/${module}.js`).then(
      (found) => !gone && setLoaded({ View: found.default }),
      (fault) => {
        console.error(fault);
        if (!gone) setLoaded({ fault });
      },
    );
    return () => {
      gone = true;
    };
  }, [module]);
  if (!loaded) return html`<div class="page loading" aria-busy="true"></div>`;
  if (loaded.fault) {
    return html`<div class="page"><${Problem} error=${{ detail: "This page could not be loaded. Reload; if that does not help, the broker may have been updated meanwhile." }} onRetry=${() => location.reload()} /></div>`;
  }
  return html`<${loaded.View} ...${props} />`;
}

function Side({ route, onClose }) {
  const session = useSession();
  const admin = useMay("admin", "");
  const visible = PAGES.filter(
    (page) => !page.hidden && (page.verb !== "admin" || admin) && (!page.reads || session.reads_messages !== false),
  );
  const groups = [...new Set(visible.map((page) => page.group))];
  return html`<nav class="side" aria-label="Pages">
    <div class="brand">
      <${Link} to="/"><${Logo} />Fanlog<//>
      <${Button} kind="quiet" class="nav-close" icon="close" aria-label="Close the list of pages" onClick=${onClose} />
    </div>
    ${groups.map(
      (group) => html`<div key=${group} class="nav-group">
        ${group && html`<h2>${group}</h2>`}
        <ul>
          ${visible
            .filter((page) => page.group === group)
            .map((page) => {
              const here = `/${route.parts[0] ?? ""}` === page.path;
              return html`<li key=${page.path}>
                <a href=${`#${page.path}`} aria-current=${here ? "page" : undefined} title=${`Keys: ${page.keys}`} onClick=${onClose}>
                  <${Icon} name=${page.module} /><span>${page.title}</span>
                </a>
              </li>`;
            })}
        </ul>
      </div>`,
    )}
    <div class="nav-foot">
      <a href="/v1/reference" target="_blank" rel="noopener">HTTP reference</a>
    </div>
  </nav>`;
}

const Logo = () =>
  html`<svg class="logo" viewBox="0 0 24 24" aria-hidden="true"><path d="M3 12h5M8 12c4 0 4-7 9-7h3M8 12h12M8 12c4 0 4 7 9 7h3" /></svg>`;

function Top({ onMenu, open }) {
  const session = useSession();
  const [reachable, setReachable] = useState(true);
  const [look, setLook] = useState(theme());
  useEffect(() => onReachable(setReachable), []);
  useEffect(() => {
    const hear = () => setLook(theme());
    window.addEventListener("themechange", hear);
    return () => window.removeEventListener("themechange", hear);
  }, []);
  return html`<header class="top">
    <${Button} kind="quiet" class="menu" icon="menu" aria-label="Show the list of pages" aria-expanded=${open ? "true" : "false"} onClick=${onMenu} />
    <button type="button" class="palette-button" aria-label="Search or go to …" onClick=${openPalette}>
      <${Icon} name="explorer" /><span>Search or go to …</span><kbd>Ctrl K</kbd>
    </button>
    <span class="spacer"></span>
    ${reachable ? html`<${State} />` : html`<${Badge} kind="bad">Not reachable<//>`}
    <${Button} kind="quiet" icon="theme" aria-label=${`Colours: ${look}. Change`} title=${`Colours: ${look}`} onClick=${nextTheme} />
    ${session.auth &&
    html`<a class="me" href="#/sessions" title=${`${session.kind} ${session.account || session.user}, role ${session.role || "by rules"}`}>
        <${Icon} name="user" /><span>${session.user || session.account || "anonymous"}</span>
      </a>
      ${session.session && html`<${Button} kind="quiet" onClick=${logOut}>Log out<//>`}`}
  </header>`;
}

function State() {
  const { data, error } = usePoll("/v1/health", undefined, STATUS_MS);
  const state = data?.state ?? error?.body?.state;
  if (!state) return null;
  const [kind, text] = STATES[state] ?? ["bad", state];
  return html`<a class="state" href="#/" aria-label=${`The broker is ${text.toLowerCase()}`}><${Badge} kind=${kind}>${text}<//></a>`;
}

async function logOut() {
  try {
    await api.post("/v1/logout");
  } finally {
    location.reload();
  }
}

function showKeys() {
  openDialog(
    ({ close }) => html`<${Dialog} title="Keys" close=${close}>
      <table class="keys">
        <tbody>
          <tr><th scope="row"><kbd>Ctrl</kbd> <kbd>K</kbd></th><td>Open the command palette</td></tr>
          <tr><th scope="row"><kbd>j</kbd> <kbd>k</kbd> <kbd>Enter</kbd></th><td>Go to the table and its next row, previous row, open</td></tr>
          ${allKeys().map(
            ([keys, about]) => html`<tr key=${keys}>
              <th scope="row">${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</th>
              <td>${about}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    <//>`,
  );
}
