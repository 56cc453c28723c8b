/** Elements of the page. Text from files is only ever set as text content, and never becomes markup. */
import { visible } from "../src/content.js";

const MAX_TEXT = 20_000;
const SVG = "http://www.w3.org/2000/svg";
export type Child = Node | string | undefined;

export function element(name: string, className: string, ...children: Child[]): HTMLElement {
  const made = document.createElement(name);
  if (className) made.className = className;
  for (const child of children) if (child !== undefined) made.append(typeof child === "string" ? textNode(child) : child);
  return made;
}

export function svg(name: string, attributes: Record<string, string | number>, ...children: Child[]): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  for (const child of children) if (child !== undefined) made.append(typeof child === "string" ? textNode(child) : child);
  return made;
}

/** Text that a reader sees as it is: bounded, and without characters that change how the rest is displayed. */
function textNode(text: string): Text {
  const shown = visible(text.slice(0, MAX_TEXT));
  const more = text.length > MAX_TEXT ? ` … (${text.length - MAX_TEXT} more characters)` : "";
  return document.createTextNode(shown + more);
}

/** Names and values. */
export function facts(...rows: (readonly [name: string, ...value: Child[]] | undefined)[]): HTMLElement {
  const made = element("dl", "");
  for (const row of rows) {
    if (row === undefined) continue;
    const [name, ...value] = row;
    made.append(element("dt", "", name), element("dd", "", ...value));
  }
  return made;
}

export const code = (text: string): HTMLElement => element("code", "", text);
export const small = (text: string): HTMLElement => element("small", "", text);
export const card = (title: string, ...children: Child[]): HTMLElement =>
  element("section", "card", element("h2", "", title), ...children);
/** Details that are shown on demand. */
export const fold = (title: string, ...children: Child[]): HTMLElement =>
  element("details", "", element("summary", "", title), ...children);
