// The module lives with the broker, which serves it. The npm package gets a copy, and the licence.

import { copyFileSync } from "node:fs";

const root = new URL("../../", import.meta.url);
const here = new URL("./", import.meta.url);
for (const name of ["fanlog.js", "fanlog.d.ts"]) {
  copyFileSync(new URL(`src/fanlog/listeners/web/static/${name}`, root), new URL(name, here));
}
copyFileSync(new URL("LICENSE", root), new URL("LICENSE", here));
