// The dashboard begins here.

import { html, render } from "/dashboard/vendor/htm-preact.js";
import { App } from "/dashboard/core/shell.js";
import { applyTheme } from "/dashboard/core/theme.js";

applyTheme();
render(html`<${App} />`, document.getElementById("app"));
