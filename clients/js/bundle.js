// `npm run bundle`: everything for a page in one file, dist/passerelle.js, whose names are members of `Passerelle`.

import { build } from "esbuild";

await build({
  entryPoints: [new URL("src/index.js", import.meta.url).pathname],
  outfile: new URL("dist/passerelle.js", import.meta.url).pathname,
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "Passerelle",
  target: "es2022",
  legalComments: "none",
});
