/** The way from an entry to the signed root, as a picture. */
import { counted, hex } from "../src/bytes.js";
import type { ProvedPath } from "../src/evidence.js";
import { svg } from "./elements.js";

const WIDTH = 480;
const BOX = { width: 116, height: 34 };
const STEP = 74;
const SIBLING_DISTANCE = 150;
const MAX_PEAKS = 3; // on each side of the entry's own
const CAPTION = 260; // width of the text above the root
const MARGIN = 4;
const MAX_LABEL = 8; // letters that fit under a peak

/** A box with the start of a hash; `name` is written above or below it. */
function box(x: number, y: number, hash: string, className: string, name?: string): SVGElement {
  const { width, height } = BOX;
  return svg(
    "g",
    { class: className },
    svg("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 6 }),
    svg("text", { x, y: y + 4 }, hash),
    name === undefined ? undefined : svg("text", { x, y: y + height / 2 + 15, class: "name" }, name),
  );
}

/** The entries under each peak, by its place among the peaks: the smallest tree is first and has the newest entries. */
function entriesUnder(uptoSeq: bigint): readonly (readonly [first: bigint, last: bigint])[] {
  const found: [bigint, bigint][] = [];
  let last = uptoSeq;
  for (let size = 1n; last > 0n; size *= 2n) {
    if ((uptoSeq & size) === 0n) continue;
    found.push([last - size + 1n, last]);
    last -= size;
  }
  return found;
}

const named = ([first, last]: readonly [bigint, bigint]): string => (first === last ? `entry ${first}` : `${first} to ${last}`);

const short = (hash: Uint8Array): string => `${hex(hash).slice(0, 12)}…`;

export function picture({ path, streamSeq, uptoSeq }: ProvedPath): SVGElement {
  const peaks = [...path.peaks.entries()].reverse(); // the largest tree is leftmost
  const hasRootAbove = peaks.length > 1;
  const rows = path.steps.length + (hasRootAbove ? 1 : 0);
  const height = rows * STEP + 104;
  const centre = WIDTH / 2;
  const rowY = (row: number): number => height - 48 - row * STEP;
  let [left, right] = [centre - CAPTION / 2, centre + CAPTION / 2]; // of what is drawn
  const reach = (x: number, width: number): void => {
    left = Math.min(left, x - width / 2 - MARGIN);
    right = Math.max(right, x + width / 2 + MARGIN);
  };
  const lines: SVGElement[] = [];
  const boxes: SVGElement[] = [];
  const connect = (x1: number, y1: number, x2: number, y2: number, own: boolean): void => {
    lines.push(svg("line", { x1, y1, x2, y2, class: own ? "own" : "other" }));
  };
  boxes.push(box(centre, rowY(0), short(path.leaf), path.steps.length || hasRootAbove ? "own" : "root", `leaf of entry ${streamSeq}`));
  path.steps.forEach((step, at) => {
    const y = rowY(at);
    const siblingX = centre + (step.siblingIsLeft ? -1 : 1) * SIBLING_DISTANCE;
    connect(centre, y, centre, rowY(at + 1), true);
    reach(siblingX, BOX.width);
    connect(siblingX, y, centre, rowY(at + 1), false);
    boxes.push(box(siblingX, y, short(step.sibling), "other", at === 0 ? `leaf of entry ${step.siblingIsLeft ? streamSeq - 1n : streamSeq + 1n}` : "other entries"));
    const isRoot = at + 1 === path.steps.length && !hasRootAbove;
    boxes.push(box(centre, rowY(at + 1), short(step.result), isRoot ? "root" : "own"));
  });
  const topY = rowY(path.steps.length);
  if (hasRootAbove) {
    const rootY = rowY(rows);
    connect(centre, topY, centre, rootY, true);
    const under = entriesUnder(uptoSeq);
    const others = [
      { side: -1, hashes: peaks.filter(([at]) => at > path.rank).reverse() },
      { side: 1, hashes: peaks.filter(([at]) => at < path.rank) },
    ];
    for (const { side, hashes } of others) {
      const names = hashes.slice(0, MAX_PEAKS).map(([at, peak]): [hash: string, entries: string] => [`${hex(peak).slice(0, 4)}…`, named(under[at]!)]);
      if (hashes.length > MAX_PEAKS) names[MAX_PEAKS - 1] = [`+${hashes.length - MAX_PEAKS + 1}`, ""];
      names.forEach(([name, entries], at) => {
        const x = centre + side * (90 + at * 50);
        connect(x, topY - 26, centre, rootY, false);
        reach(x, 50);
        const peak = svg("rect", { x: x - 23, y: topY - 36, width: 46, height: 20, rx: 4 });
        const label = entries.length > MAX_LABEL ? undefined : svg("text", { x, y: topY - 2, class: "name" }, entries);
        boxes.push(svg("g", { class: "other" }, peak, svg("text", { x, y: topY - 22 }, name), label));
      });
    }
    boxes.push(box(centre, rootY, short(path.root), "root"));
  }
  const caption = svg("text", { x: centre, y: 16, class: "name" }, `root of the ${counted(uptoSeq, "entry", "entries")}, signed by the hub`);
  const title = svg("title", {}, `Entry ${streamSeq} leads to the signed root in ${path.steps.length} steps`);
  return svg("svg", { viewBox: `${left} 0 ${right - left} ${height}`, width: right - left, role: "img" }, title, ...lines, ...boxes, caption);
}
