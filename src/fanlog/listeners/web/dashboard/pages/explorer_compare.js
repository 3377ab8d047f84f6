// What differs between two messages, line by line.

import { Dialog, html, openDialog, Problem, useEffect, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { comparable, difference } from "/dashboard/pages/explorer_values.js";

const SIGNS = { "-": "only in the first: ", "+": "only in the second: " };
const LINES_SHOWN = 2000;

const title = (row) => `${row.topic}, partition ${row.partition}, offset ${fmt.count(row.offset)}`;

function Comparison({ close, rows }) {
  const [found, setFound] = useState({ lines: null, error: null });
  useEffect(() => {
    const asked = rows.map(({ topic, partition, offset }) => api.get("/v1/explore/message", { topic, partition, offset }));
    Promise.all(asked).then(
      ([one, other]) => setFound({ lines: difference(comparable(one), comparable(other)), cut: one.truncated || other.truncated, error: null }),
      (error) => setFound({ lines: null, error }),
    );
  }, []);
  const { lines, error, cut } = found;
  const changed = lines?.filter(([sign]) => sign !== " ").length ?? 0;
  return html`<${Dialog} title="Compare two messages" close=${close} wide>
    <p><span class="diff-mark minus">−</span> ${title(rows[0])}, ${fmt.time(rows[0].time, { ms: true })}<br /><span class="diff-mark plus">+</span> ${title(rows[1])}, ${fmt.time(rows[1].time, { ms: true })}</p>
    <${Problem} error=${error} />
    ${cut && html`<p class="notice warn">Only the first 1 MiB of each value is compared.</p>`}
    ${lines && !changed && html`<p class="notice">Key, headers and value are the same.</p>`}
    ${lines &&
    html`<pre class="diff" tabindex="0" aria-label="Differences">${lines.slice(0, LINES_SHOWN).map(
      ([sign, line], i) => html`<span key=${i} class=${{ "-": "minus", "+": "plus" }[sign] ?? ""}><span class="unseen">${SIGNS[sign] ?? ""}</span><span aria-hidden="true">${sign === "-" ? "−" : sign} </span>${line}${"\n"}</span>`,
    )}</pre>`}
    ${lines?.length > LINES_SHOWN && html`<p class="hint">${fmt.count(lines.length - LINES_SHOWN)} more lines are not shown.</p>`}
  <//>`;
}

// The older one first.
export function openComparison(rows) {
  const ordered = [...rows].sort((one, other) => (one.time < other.time || (one.time === other.time && Number(one.offset) < Number(other.offset)) ? -1 : 1));
  openDialog(({ close }) => html`<${Comparison} close=${close} rows=${ordered} />`);
}
