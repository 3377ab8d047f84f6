// The spans of one trace, as the broker knows them, and the way to its messages.

import { Badge, Button, Dialog, Empty, html, openDialog, Problem } from "/dashboard/core/ui.js";
import { usePoll, api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { go } from "/dashboard/core/router.js";

function Span({ span, begin, length }) {
  const start = Number(span.start_us) - begin;
  const took = Number(span.end_us) - Number(span.start_us);
  const left = (start / length) * 100;
  const width = Math.max(0.5, (took / length) * 100);
  return html`<li class="span">
    <div class="span-name"><strong>${span.name}</strong> <span class="faint">${span.kind}</span> ${span.error && html`<${Badge} kind="bad">${span.error}<//>`}</div>
    <div class="span-bar" aria-hidden="true"><span style=${{ marginLeft: `${Math.min(left, 99)}%`, width: `${Math.min(width, 100 - Math.min(left, 99))}%` }}></span></div>
    <div class="faint">begins after ${fmt.ms(start / 1000)}, takes ${fmt.ms(took / 1000)}</div>
  </li>`;
}

function TraceDialog({ close, trace }) {
  const { data, error, reload } = usePoll(api.path`/v1/traces/${trace}`, {}, 0);
  const spans = data?.spans ?? [];
  const begin = Math.min(...spans.map((span) => Number(span.start_us)));
  const end = Math.max(...spans.map((span) => Number(span.end_us)));
  const follow = () => {
    close();
    go("/explorer", { topic: ">", mode: "history", trace });
  };
  return html`<${Dialog} title="Trace" close=${close} wide>
    <p><code>${trace}</code></p>
    <div><${Button} kind="primary" icon="explorer" onClick=${follow}>Show its messages in all topics<//></div>
    <${Problem} error=${error} onRetry=${reload} />
    ${data && spans.length === 0 && html`<${Empty} title="No spans of this trace">The broker keeps its last 4,096 spans in memory. Spans of programs are at their own collector.<//>`}
    <ol class="spans">${spans.map((span) => html`<${Span} key=${span.span_id} span=${span} begin=${begin} length=${Math.max(1, end - begin)} />`)}</ol>
  <//>`;
}

export const openTrace = (trace) => openDialog(({ close }) => html`<${TraceDialog} close=${close} trace=${trace} />`);
