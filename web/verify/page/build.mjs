/** Build the verifier page: one HTML file with its script and style, both named by their hashes in its policy. */
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const out = process.argv[2] ?? here("../../../src/veen/cli/verifier.html");

const { version } = JSON.parse(readFileSync(here("../package.json"), "utf8"));
const bundle = async (entry) => {
  const made = await build({
    entryPoints: [here(entry)],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    define: { VERSION: JSON.stringify(version) },
  });
  return made.outputFiles[0].text.trim();
};
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

const script = await bundle("main.ts");
const style = await bundle("page.css");
const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  "base-uri 'none'",
  "form-action 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join("; ");
const parts = { CSP: policy, STYLE: style, SCRIPT: script };
const page = readFileSync(here("index.html"), "utf8").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
writeFileSync(out, page);
